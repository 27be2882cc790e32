"""int8: the network in an ONNX file, quantised by NNCF and calibrated by clips of a list.

The cache of exported networks also keeps these files. The name of one is a checksum of the ONNX
file, the version of NNCF, names and sizes of the videos and the first clip: all that decides the
numbers.
"""

import contextlib
import hashlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from utils.data.annotation_file import name_record
from utils.files import compute_sha256, get_cache_folder, make_drafts
from utils.log import log
from utils.runtime import uncapped_instruction_set
from utils.scoring.cached_files import find_or_write
from utils.scoring.exported_file import shorten_error
from utils.settings import NetworkConfig
from utils.video.reader import VideoError
from utils.video.windows import split_into_windows
from utils.weights.model_checksum import append_checksum

if TYPE_CHECKING:
    from utils.networks import Network

NNCF = "nncf==3.4.0"  # also in pyproject.toml
Normalize = Optional[Callable[[np.ndarray], np.ndarray]]


def find_int8(
    network: "Network", cfg: NetworkConfig, run: Path, path: Path, normalize: Normalize = None
) -> Path:
    """The int8 file of an ONNX file: that in the cache, or a new one.

    `run` is the folder of the checkpoint, or of the exported file, with the classes of its
    training. `normalize` computes what the network takes from uint8 clips.

    Raises ValueError for bad lines of the list, if none of its videos can be read, or if NNCF
    cannot quantise the network.
    """
    spaces = network.list_label_spaces(cfg)
    for space in spaces:
        space.run_folder = run
    records = choose_records(network.read_records(cfg, cfg.run.calibration, spaces), cfg)
    clips = read_clips(network, cfg, records)
    first = next(clips, None)
    if first is None:
        raise ValueError(f"run.calibration {cfg.run.calibration}: no video of the list can be read")
    names = [name_record(record) for record in records]
    sizes = [os.path.getsize(r.path) if os.path.isfile(r.path) else 0 for r in records]
    first_clip = hashlib.sha256(first.tobytes()).hexdigest()
    content = repr((NNCF, compute_sha256(path), names, sizes, first_clip))
    key = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    file = get_cache_folder() / "onnx" / f"{key}-openvino-int8.npz"

    def write() -> None:
        write_model(quantize(path, [first, *clips], normalize), file)

    find_or_write(file, f"quantising the network by {len(records)} clips", write)
    return file


def choose_records(records: Sequence[Any], cfg: NetworkConfig) -> list[Any]:
    """`run.calibration_clips` of the records, at equal distances: many lists are in class order."""
    count = min(cfg.run.calibration_clips, len(records))
    return [records[int(k)] for k in np.linspace(0, len(records) - 1, count)]


def read_clips(network: "Network", cfg: NetworkConfig, records: list[Any]) -> Iterator[np.ndarray]:
    """A test view uint8 of each video, one after the other; unreadable videos are left out."""
    spaces = network.list_label_spaces(cfg)
    for number, record in enumerate(records):
        space = spaces[record.dataset_index]
        try:
            with network.open_record(cfg, record) as reader:
                (window,) = split_into_windows(reader, 0.0)
                views = space.make_views(
                    *reader.read(space.frame_indices(window), space.crop_frames)
                )
        except VideoError as error:
            log.warning("run.calibration: %s", error)
        else:
            yield np.ascontiguousarray(views[number % len(views)])


def quantize(path: Path, clips: list[np.ndarray], normalize: Normalize) -> Any:
    """The OpenVINO model of an ONNX file with convolutions and matrix products in int8."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

    def prepare(clip: np.ndarray) -> np.ndarray:
        batch = np.repeat(clip[None], size, axis=0)
        return batch if normalize is None else normalize(batch)

    # NNCF draws progress bars on stdout.
    with uncapped_instruction_set(), contextlib.redirect_stdout(io.StringIO()):
        import nncf
        import openvino
        from openvino.passes import ConstantFolding, Manager

        nncf.set_log_level(logging.ERROR)
        model = openvino.Core().read_model(str(path))
        batch = model.input(0).partial_shape[0]
        size = batch.get_length() if batch.is_static else 1
        passes = Manager()
        passes.register_pass(ConstantFolding())  # NNCF does not see weights behind a Reshape
        passes.run_passes(model)
        is_transformer = any(node.get_type_name() == "MVN" for node in model.get_ops())
        try:
            return nncf.quantize(
                model,
                nncf.Dataset(clips, prepare),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(clips),
                model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
            )
        except Exception as error:  # noqa: BLE001 NNCF raises several kinds
            raise ValueError(f"NNCF cannot quantise {path}: {shorten_error(error)}") from None


def write_model(model: Any, file: Path) -> None:
    """Writes an OpenVINO model, in two arrays of bytes, with a checksum."""
    import openvino

    with make_drafts(file.parent) as folder:
        xml = Path(folder) / "net.xml"
        openvino.save_model(model, str(xml), compress_to_fp16=False)
        arrays = {"xml": xml, "weights": xml.with_suffix(".bin")}
        scratch = Path(folder) / file.name
        np.savez(scratch, **{name: np.fromfile(part, np.uint8) for name, part in arrays.items()})
        append_checksum(scratch)
        os.replace(scratch, file)
