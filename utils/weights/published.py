"""The table of published weights, `published.yaml`: names, files, and the recipes that fit them."""

import os
from dataclasses import dataclass
from pathlib import Path

from utils.files import get_base_folder
from utils.load_config import build_dataclass, load_yaml
from utils.messages import check_choice, hide_secrets

TABLE = Path(__file__).with_suffix(".yaml")
MIRROR = "ZOO_WEIGHTS_MIRROR"  # the address of a folder that has the files under their own names


@dataclass(frozen=True)
class Published:
    """A row of the table; its head explains the fields."""

    name: str
    source: str
    page: str
    licence: str
    folder: str
    file: str
    published: str = ""
    recipe: str = ""
    settings: tuple[str, ...] = ()
    size: float = 0  # MiB; 0 if nobody has published it
    start: bool = False
    link: str = ""
    unused: str = ""

    @property
    def network(self) -> str:
        return self.recipe.partition("/")[0]

    @property
    def file_name(self) -> str:
        return self.file.rpartition("/")[2]

    @property
    def address(self) -> str:
        mirror = os.environ.get(MIRROR, "").rstrip("/")
        return f"{mirror}/{self.file_name}" if mirror else self.folder + self.file

    @property
    def checkpoint(self) -> Path:
        return get_base_folder() / "weights" / f"{self.name}.ckpt"


def list_published() -> dict[str, Published]:
    """The rows of the table by name."""
    table = {}
    for source, group in load_yaml(TABLE.read_bytes()).items():
        about = {key: group[key] for key in ("page", "licence", "folder")}
        for name, row in group["weights"].items():
            values = {"name": name, "source": source, **about, **row}
            table[name] = build_dataclass(Published, values, f"{name}.")
    return table


def find_published(name: str) -> Published:
    """The row of a name. Raises ValueError for an unknown one, and if no network takes the file."""
    table = list_published()
    check_choice(name, table, "published weights")
    entry = table[name]
    if entry.unused:
        raise ValueError(f"{name}: {entry.unused}; the file is {hide_secrets(entry.address)}")
    return entry


def compare_accuracy(path: Path, result: dict) -> str:
    """A line with the published accuracy and `result`'s, if a published checkpoint has it."""
    entry = list_published().get(path.stem) if path.parent.name == "weights" else None
    if entry is None or not entry.published or entry.start:
        return ""
    found = [result[key] for key in ("top1", "top5") if result.get(key) is not None]
    here = " / ".join(f"{100 * value:.2f}" for value in found)
    return f"published: top-1 / top-5 {entry.published} ({entry.page}); here: {here}"


def advise(path: Path) -> str:
    """How to get a missing checkpoint, if a published one has its name; else empty."""
    names = list_published()
    is_published = path.stem in names and path.parent.name == "weights"
    return f"run: python scripts/download_weights.py {path.stem}" if is_published else ""
