"""PyTorch and safetensors files: mutations by seed."""

import io
import zipfile
from functools import partial

from tests.fuzz.damage import mutate
from utils.files import ROOT

FILES = ROOT / "utils" / "tests" / "weights" / "torch_files"
ZIPS = ("dtypes.pt", "views.pt", "checkpoint.pt", "views_protocol4.pt")
LEGACY = ("dtypes_legacy.pt", "views_legacy.pt", "checkpoint_legacy.pt")


def mutate_file(names: tuple, seed: int) -> bytes:
    return mutate((FILES / names[seed % len(names)]).read_bytes(), seed)


def mutate_pickle(seed: int) -> bytes:
    """Builds an intact zip, with correct checksums, around a mutated pickle."""
    source = FILES / ZIPS[seed % len(ZIPS)]
    stream = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(stream, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            is_pickle = entry.filename.endswith("data.pkl")
            new.writestr(entry.filename, mutate(data, seed) if is_pickle else data)
    return stream.getvalue()


MUTATED = {
    "zip": partial(mutate_file, ZIPS),
    "legacy": partial(mutate_file, LEGACY),
    "safetensors": partial(mutate_file, ("dtypes.safetensors",)),
    "pickle": mutate_pickle,
}
