"""Export, then reload and compare: a file nobody has run again is not delivered."""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Callable, Literal, NamedTuple, Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils.export import mindir, onnx_graph
from utils.files import explained
from utils.messages import VALUE, cut
from utils.train import amp
from utils.weights.model_checksum import append_checksum

# Of the spread of the scores. A float16 has eleven bits; a rounding errs by up to 5e-4 of the
# number, and the roundings of fifty layers in a row add up to a few times that.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}
LEVEL = {"fp32": "O0", "fp16": "O2"}
INPUT = "input"  # its name in an ONNX file
TRACED = 2, 3  # batches from which the graph with a free one is made


class Wanted(NamedTuple):
    """What the command line asks for; batch 0 is a free one."""

    kind: str
    target: Path
    batch: int
    dtype: str
    precision: str

    @property
    def tried(self) -> tuple[int, ...]:
        """The batches with which the file is run; the largest first."""
        return (self.batch,) if self.batch else (2, 1)


def read_batch(text: str) -> int:
    """The number of clips; 0 is a free one."""
    if text != "free" and not (text.isdecimal() and len(text) <= 18 and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"must be a whole number above 0, or free, not {cut(text, VALUE)}"
        )
    return 0 if text == "free" else int(text)


def wanted(
    eval_batch: int,
    *,
    format: Literal["mindir", "onnx"],
    target: Path,
    batch: Optional[Annotated[int, read_batch]] = None,
    input: Literal["uint8", "float32"] = "uint8",
    precision: Literal["fp32", "fp16"] = "fp32",
) -> Wanted:
    """Checks the options; ValueError for a target that does not fit or a missing package."""
    if format == "onnx":
        require("onnx", "onnxruntime")
    if target.suffix in {f".{kind}" for kind in WAYS} - {f".{format}"}:
        raise ValueError(f"--target {target} ends in {target.suffix} and --format is {format}")
    if target.suffix != f".{format}":
        target = target.with_name(f"{target.name}.{format}")
    if target.is_dir():
        raise ValueError(f"--target: {target} is a folder")
    return Wanted(format, target, eval_batch if batch is None else batch, input, precision)


def require(*packages: str) -> None:
    """Raises ValueError where one is not installed: a file must be run to be delivered."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--format onnx needs the package {package}: pip install onnx onnxruntime 'numpy<2'"
            )


def export(
    load: Callable[..., nn.Cell],
    clip: tuple[int, ...],
    gives: str,
    want: Wanted,
    info: dict[str, str],
    **grouped: str,
) -> dict:
    """Writes a network for clips of shape `clip`; returns what the last line of stdout says.

    `load(level, **changes)` builds it at an amp level, with other arguments; `grouped` are those
    with which its depthwise convolutions become ONNX's. `gives` names the output. Raises
    ValueError for a file that cannot be written, and RuntimeError where the reloaded file
    computes something else than the float32 network.
    """
    with scratch(want.target) as folder:
        net = load(LEVEL["fp32"]).set_train(False)
        clips = [some_clips((size, *clip), want.dtype) for size in want.tried]
        expected = net(Tensor(clips[0])).asnumpy()
        changes = grouped if want.kind == "onnx" else {}
        if changes or want.precision != "fp32":
            net = load(LEVEL[want.precision], **changes).set_train(False)
        if want.precision == "fp16":
            amp.store_half(net)
        file = folder / want.target.name
        write, runner = WAYS[want.kind]
        write(net, clip, want, (INPUT, gives), {**info, "classes": str(expected.shape[-1])}, file)
        append_checksum(file)
        os.chmod(file, 0o644)
        run = runner(file)
        difference = max(distance(run(x), expected[: len(x)]) for x in clips)
        relative = difference / max(np.ptp(expected), float(np.finfo(np.float32).tiny))
        if not relative <= TOLERANCE[want.precision]:
            raise RuntimeError(
                f"{want.target} is not written: it would differ from the network by "
                f"{relative:.1e} of the spread of its {gives}"
            )
        os.replace(file, want.target)
    batch = want.batch or None
    return {
        "format": want.kind,
        "file": str(want.target),
        "bytes": want.target.stat().st_size,
        "precision": want.precision,
        **({"opset": onnx_graph.OPSET} if want.kind == "onnx" else {}),
        "input": {"name": INPUT, "dtype": want.dtype, "shape": [batch, *clip]},
        "outputs": [{"name": gives, "dtype": "float32", "shape": [batch, *expected.shape[1:]]}],
        "max_abs_difference": difference,
        "relative_difference": relative,
    }


@contextlib.contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A folder beside the target, gone at the end; ValueError where nothing can be written."""
    folder = target.with_name(f".{target.name}.tmp")
    with explained(target, "--target"):
        shutil.rmtree(folder, ignore_errors=True)  # of a command that was killed
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def distance(result: np.ndarray, expected: np.ndarray) -> float:
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    return float(np.abs(result - expected).max())


def some_clips(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.RandomState(0)
    if dtype == "uint8":
        return random.randint(0, 256, shape).astype(np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def save(net: nn.Cell, given: Tensor, file: Path, info: dict[str, str]) -> mindir.Graph:
    """Writes a MINDIR; returns its graph.

    By way of another folder: MindSpore writes to no path with a blank, or a letter beyond ASCII.
    """
    net.set_inputs(given)
    with tempfile.TemporaryDirectory() as plain:
        ms.export(
            net,
            given,
            file_name=f"{plain}/net.mindir",
            file_format="MINDIR",
            custom_func=lambda model: mindir.note(model, info),
        )
        shutil.move(f"{plain}/net.mindir", file)
    return mindir.read(file)


def write_mindir(net, clip, want: Wanted, names: tuple[str, str], info: dict, file: Path) -> None:
    given = Tensor(shape=[want.batch or None, *clip], dtype=getattr(ms, want.dtype))
    save(net, given, file, info)


def run_mindir(file: Path) -> Callable:
    net = nn.GraphCell(ms.load(str(file)))
    return lambda clips: net(Tensor(clips)).asnumpy()


def write_onnx(net, clip, want: Wanted, names: tuple[str, str], info: dict, file: Path) -> None:
    import onnx

    batches = (want.batch,) if want.batch else TRACED
    graphs = [
        save(net, Tensor(np.zeros((size, *clip), want.dtype)), file.with_name(f"{size}.mindir"), {})
        for size in batches
    ]
    graph = graphs[0] if want.batch else mindir.merged(*graphs)
    model = onnx_graph.translate(graph, names, info)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))


def run_onnx(file: Path) -> Callable:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return lambda clips: session.run(None, {taken.name: clips})[0]


WAYS = {"mindir": (write_mindir, run_mindir), "onnx": (write_onnx, run_onnx)}


def columns(sets: Iterable[Any]) -> str:
    """Which columns of the output are of which data set: {name: [first, last + 1]} as JSON."""
    result, begin = {}, 0
    for each in sets:
        result[each.name] = [begin, begin + each.num_classes]
        begin += each.num_classes
    return json.dumps(result)
