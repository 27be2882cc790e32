"""Exports a network to MINDIR or ONNX, runs the file, and delivers it only if scores agree.

Or only its weights, as safetensors. Every file has the description of its network
(utils/weights/description.py) in its metadata, so commands need no config file for it.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Callable, Literal, NamedTuple, Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils import log, runtime
from utils.evaluate.label_space import list_class_names, read_own_names
from utils.export import onnx_graph
from utils.export.free_batch import with_dynamic_batch
from utils.export.rewrite import FOR_ONNX, Builders, replace_cells
from utils.files import check_target, make_drafts, report_write_errors, set_default_mode
from utils.messages import VALUE, shorten
from utils.scoring import mindir
from utils.scoring.checkpoint import Checkpoint
from utils.scoring.engines import ENGINES, choose_engine, list_engines
from utils.scoring.onnx_process import run_in_process
from utils.settings import NetworkConfig
from utils.train import amp
from utils.weights.checkpoint import list_texts, weights_of
from utils.weights.checkpoint_file import DESCRIPTION
from utils.weights.description import Description, describe, drop_folders, read_description
from utils.weights.model_checksum import append_checksum

if TYPE_CHECKING:
    from utils.networks import Network

# As a fraction of the spread of the scores. A float16 has eleven bits; a rounding errs by up to
# 5e-4 of the number, and the roundings of fifty layers in a row add up to a few times that.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}
LEVEL = {"fp32": "O0", "fp16": "O2"}
INPUT = "input"  # its name in an ONNX file
TRACED_BATCHES = 2, 3  # from which the graph with a free batch is made
WITH_FEATURES = "scores,features"
WEIGHTS_ONLY = (None, "uint8", "fp32", "scores")  # the default options of a network


class ExportOptions(NamedTuple):
    """The checked options of export.py; batch 0 is a free one, `dtype` that of the clips.

    `engine` runs an ONNX file for the comparison. `outputs` are scores, or scores,features.
    """

    kind: str
    target: Path
    batch: int
    dtype: str
    precision: str
    engine: str = ""
    outputs: str = "scores"

    def name_outputs(self, scores: str) -> list[str]:
        """The names of the file's outputs; `scores` is that of the scores."""
        return [scores, *self.outputs.split(",")[1:]]


@dataclass(frozen=True)
class ExportSpec:
    """How a network is exported: what `describe_export` of a `Network` returns.

    `clip` is the shape of a clip, `output` the name of the file's output, `info` further metadata.
    `wrap` returns the Cell to export. `cells` are replaced in an ONNX file, as in `replace_cells`.
    """

    clip: tuple[int, ...]
    output: str
    info: dict[str, str] = field(default_factory=dict)
    wrap: Callable[[nn.Cell], nn.Cell] = lambda net: net  # noqa: E731
    cells: Builders = field(default_factory=dict)

    def rewrite(self, net: nn.Cell) -> None:
        """Gives a network the form for an ONNX file."""
        replace_cells(net, {**FOR_ONNX, **self.cells})

    def write_onnx(self, load: Callable[..., nn.Cell], file: Path, engine: str, name: str) -> None:
        """Exports scores and features for any batch of uint8 clips; raises as `export`.

        `name` is that of the network.
        """
        options = ExportOptions("onnx", file, batch=0, dtype="uint8", precision="fp32")
        options = options._replace(engine=engine, outputs=WITH_FEATURES)
        export(load, spec=self, options=options, network=name)


def read_batch(text: str) -> int:
    """The number of clips; 0 for `free`."""
    if text != "free" and not (text.isdecimal() and len(text) <= 18 and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"must be an integer above 0, or free, not {shorten(text, VALUE)}"
        )
    return 0 if text == "free" else int(text)


def check_options(
    eval_batch: int,
    *,
    format: Literal["mindir", "onnx", "safetensors"],
    target: Path,
    batch: Optional[Annotated[int, read_batch]] = None,
    input: Literal["uint8", "float32"] = "uint8",
    precision: Literal["fp32", "fp16"] = "fp32",
    outputs: Literal["scores", "scores,features"] = "scores",
) -> ExportOptions:
    """Raises ValueError for a target that does not fit or a missing package."""
    if format == "onnx" and not (find_spec("onnx") and list_engines()):
        raise ValueError(  # an engine runs the file before it is delivered
            "--format onnx needs onnx, and openvino or onnxruntime: pip install onnx onnxruntime"
        )
    if format == "safetensors" and (batch, input, precision, outputs) != WEIGHTS_ONLY:
        raise ValueError(
            "--format safetensors holds weights: leave out --batch, --input, --precision, --outputs"
        )
    if target.suffix in {f".{kind}" for kind in (*FORMATS, "safetensors")} - {f".{format}"}:
        raise ValueError(f"--target {target} ends in {target.suffix} and --format is {format}")
    if target.suffix != f".{format}":
        target = target.with_name(f"{target.name}.{format}")
    batch = eval_batch if batch is None else batch
    engine = list_engines()[0] if format == "onnx" else ""
    return ExportOptions(format, target, batch, input, precision, engine, outputs)


def export_network(
    network: "Network",
    cfg: NetworkConfig,
    checkpoint_path: str,
    options: dict[str, Any],
    overwrite: bool = False,
) -> None:
    """Exports a checkpoint and prints the result; `options` are those of `check_options`."""
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    checked = check_options(cfg.eval.batch, **options)
    check_target(checked.target, [checkpoint_path], "--target", overwrite)
    if checked.kind == "onnx" and cfg.run.engine in ENGINES:
        checked = checked._replace(engine=choose_engine(cfg.run))
    checkpoint = Checkpoint(network, cfg, checkpoint_path)
    description = describe_file(network, cfg, Path(checkpoint_path), checked.batch)
    if checked.kind == "safetensors":
        result = export_weights(checkpoint.build(), checked.target, description)
    else:
        spec = network.describe_export(cfg)
        spec = replace(spec, info={**spec.info, DESCRIPTION: description.to_text()})
        result = export(checkpoint.load, spec=spec, options=checked, network=network.name)
    log.print_result(result, rt)


def describe_file(
    network: "Network", cfg: NetworkConfig, checkpoint: Path, batch: int
) -> Description:
    """The description of an exported file that takes `batch` clips; 0: any number.

    It has no path of this machine.
    """
    spaces = network.list_label_spaces(cfg)
    read_own_names(spaces, checkpoint)
    classes = list_class_names(spaces, checkpoint.parent)
    cfg = replace(cfg, eval=replace(cfg.eval, batch=batch or cfg.eval.batch))
    own = read_description(checkpoint)
    kept = ("metrics", "source", "seconds")
    values = {name: getattr(own, name) for name in kept} if own else {}
    description = describe(network.name, cfg, classes=classes, **values)
    return replace(description, settings=drop_folders(description.settings))


def export_weights(net: nn.Cell, target: Path, description: Description) -> dict[str, Any]:
    """Writes the weights as safetensors; returns the values of stdout's last line.

    The names are those of a checkpoint, and so are the texts in the metadata.
    """
    from safetensors.numpy import save_file

    weights = weights_of(net)
    arrays = {name: weight.asnumpy() for name, weight in weights.items()}
    texts = {"format": "ms", **list_texts(weights, description)}
    with report_write_errors(target, "--target"), make_drafts(target.parent) as folder:
        file = folder / target.name
        save_file(arrays, str(file), metadata=texts)
        set_default_mode(file)
        os.replace(file, target)
    size = target.stat().st_size
    return {"format": "safetensors", "file": str(target), "bytes": size, "arrays": len(arrays)}


def export(
    load: Callable[..., nn.Cell], spec: ExportSpec, options: ExportOptions, network: str
) -> dict:
    """Writes the network called `network`; returns the values of stdout's last line.

    `load(level, rewrite)` builds it at an amp level, after `rewrite` has replaced Cells. Raises
    ValueError if the file cannot be written or the network's scores are not finite, and
    RuntimeError if the outputs of the reloaded file differ from those of the float32 network.
    """
    kind, target, batch, dtype, precision, engine, outputs = options
    names = options.name_outputs(spec.output)
    wrap = FeatureNetwork if outputs == WITH_FEATURES else lambda net: net
    with report_write_errors(target, "--target"), make_drafts(target.parent) as folder:
        net = wrap(spec.wrap(load(LEVEL["fp32"]))).set_train(False)
        batches = (batch,) if batch else (2, 1)
        clips = [make_random_clips((size, *spec.clip), dtype) for size in batches]
        with runtime.eager_mode():
            expected = mindir.run_graph(net, clips[0])
        if not all(np.isfinite(values).all() for values in expected):
            raise ValueError("the network's scores of random pixels are NaN or infinite")
        if kind == "onnx" or precision != "fp32":
            rewrite = spec.rewrite if kind == "onnx" else None
            net = wrap(spec.wrap(load(LEVEL[precision], rewrite))).set_train(False)
        if precision == "fp16":
            amp.store_half(net)
        file = folder / target.name
        info = {"network": network, **spec.info, "classes": str(expected[0].shape[-1])}
        FORMATS[kind](net, spec, options, info, file)
        append_checksum(file)
        set_default_mode(file)
        is_onnx = kind == "onnx"
        results = run_in_process(engine, file, clips) if is_onnx else run_mindir(file, clips)
        differences = []
        relatives = []
        for name, values, *by_batch in zip(names, expected, *results):
            pairs = zip(by_batch, clips)
            difference = float(np.max([max_difference(v, values[: len(x)]) for v, x in pairs]))
            relative = difference / max(np.ptp(values), float(np.finfo(np.float32).tiny))
            if not relative <= TOLERANCE[precision]:
                raise RuntimeError(
                    f"{target} is not written: it would differ from the network by "
                    f"{relative:.1e} of the spread of its {name}"
                )
            differences.append(difference)
            relatives.append(relative)
        os.replace(file, target)
    return {
        "format": kind,
        "file": str(target),
        "bytes": target.stat().st_size,
        "precision": precision,
        **({"opset": onnx_graph.OPSET} if kind == "onnx" else {}),
        "input": {"name": INPUT, "dtype": dtype, "shape": [batch or None, *spec.clip]},
        "outputs": [
            {"name": name, "dtype": "float32", "shape": [batch or None, *values.shape[1:]]}
            for name, values in zip(names, expected)
        ],
        "max_abs_difference": max(differences),
        "relative_difference": max(relatives),
    }


class FeatureNetwork(nn.Cell):
    """A network that returns its scores and its features."""

    def __init__(self, net: nn.Cell):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, clip: Tensor) -> tuple:
        return self.net(clip, True)


def max_difference(scores: np.ndarray, expected: np.ndarray) -> float:
    assert (scores.shape, scores.dtype) == (expected.shape, expected.dtype)
    return float(np.abs(scores - expected).max())


def make_random_clips(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.RandomState(0)
    if dtype == "uint8":
        return random.randint(0, 256, shape).astype(np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def save_mindir(net: nn.Cell, clips: Tensor, file: Path, info: dict[str, str]) -> None:
    """Writes a MINDIR by way of a temporary folder.

    MindSpore cannot write to a path with a blank, or with a letter beyond ASCII.
    """
    net.set_inputs(clips)
    with make_drafts(Path(tempfile.gettempdir())) as folder:
        ms.export(
            net,
            clips,
            file_name=f"{folder}/net.mindir",
            file_format="MINDIR",
            custom_func=lambda model: model.user_info.update(info),
        )
        shutil.move(f"{folder}/net.mindir", file)


def write_mindir(
    net: nn.Cell, spec: ExportSpec, options: ExportOptions, info: dict, file: Path
) -> None:
    clips = Tensor(shape=[options.batch or None, *spec.clip], dtype=getattr(ms, options.dtype))
    save_mindir(net, clips=clips, file=file, info=info)


def write_onnx(
    net: nn.Cell, spec: ExportSpec, options: ExportOptions, info: dict, file: Path
) -> None:
    import onnx

    graphs = []
    for size in (options.batch,) if options.batch else TRACED_BATCHES:
        path = file.with_name(f"{size}.mindir")
        save_mindir(
            net, clips=Tensor(np.zeros((size, *spec.clip), options.dtype)), file=path, info={}
        )
        graphs.append(mindir.read_graph(path))
    graph = graphs[0] if options.batch else with_dynamic_batch(*graphs)
    names = options.name_outputs(spec.output)
    model = onnx_graph.translate(graph, (INPUT, *names), info)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))


def run_mindir(file: Path, batches: Iterable[np.ndarray]) -> list[list[np.ndarray]]:
    net = nn.GraphCell(ms.load(str(file)))
    return [mindir.run_graph(net, clips) for clips in batches]


FORMATS = {"mindir": write_mindir, "onnx": write_onnx}


def describe_columns(datasets: Iterable[Any]) -> str:
    """The output columns of each data set, {name: [first, last + 1]}, as JSON."""
    columns = {}
    begin = 0
    for dataset in datasets:
        columns[dataset.name] = [begin, begin + dataset.num_classes]
        begin += dataset.num_classes
    return json.dumps(columns)
