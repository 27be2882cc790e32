"""Exports a network to MINDIR or ONNX, runs the file, and delivers it only if scores agree.

Or only its weights, as safetensors. Every file has the description of its network
(utils/weights/description.py) in its metadata, so commands need no config file for it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils import cli, log, runtime
from utils.evaluate.label_space import list_class_names
from utils.evaluate.scorer import Steps
from utils.files import check_target, make_drafts, report_write_errors, set_default_mode
from utils.inference import mindir, onnx_graph
from utils.inference.checkpoint import load_for_inference, load_network, use_own_names
from utils.inference.engines import ENGINES, choose_engine, list_engines, run_in_process
from utils.networks import Network
from utils.nn.conv3d import Conv3d, DepthwiseConv3d, FrameConv, PointwiseConv3d
from utils.nn.fuse_conv_bn import replace_cell
from utils.settings import NetworkConfig
from utils.weights.checkpoint import list_texts, weights_of
from utils.weights.checkpoint_file import DESCRIPTION, read_checkpoint
from utils.weights.description import append_checksum, describe, drop_folders, read_description

# As a fraction of the spread of the scores. A float16 has eleven bits; a rounding errs by up to
# 5e-4 of the number, and the roundings of fifty layers in a row add up to a few times that.
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2}
LEVEL = {"fp32": "O0", "fp16": "O2"}
INPUT = "input"  # its name in an ONNX file
TRACED_BATCHES = 2, 3  # from which the graph with a dynamic batch is made
WITH_FEATURES = "scores,features"
WEIGHTS_ONLY = (None, "uint8", "fp32", "scores", False)  # the default options of a network
STEPS = 6  # frames by which the file of an online network is compared
Builders = Mapping[type, Callable[[nn.Cell], nn.Cell]]


class ExportOptions(NamedTuple):
    """The checked options of export.py; batch 0 is a dynamic one, `dtype` the clips'.

    `engine` runs an ONNX file for the comparison. `outputs` are scores, or scores,features.
    `online`: one step of an online network, for one frame.
    """

    kind: str
    target: Path
    batch: int
    dtype: str
    precision: str
    engine: str = ""
    outputs: str = "scores"
    online: bool = False


@dataclass(frozen=True)
class ExportSpec:
    """How a network is exported: what `describe_export` of a `Network` returns.

    `clip` is the shape of a clip, `output` the name of the file's output, `info` further metadata.
    `wrap` returns the Cell to export. `cells` are replaced in an ONNX file, as in `replace_cells`.
    Of one step of an online network `clip` is a frame, and `list_buffers` returns the first buffers
    of a Cell; they are further inputs, and the new buffers further outputs.
    """

    clip: tuple[int, ...]
    output: str
    info: dict[str, str] = field(default_factory=dict)
    wrap: Callable[[nn.Cell], nn.Cell] = lambda net: net  # noqa: E731
    cells: Builders = field(default_factory=dict)
    list_buffers: Callable[[nn.Cell], Sequence[Tensor]] = lambda net: ()  # noqa: E731

    def open_steps(self, net: nn.Cell) -> Steps:
        """MindSpore's computation of a Cell that `wrap` has returned."""
        buffers = [buffer.asnumpy() for buffer in self.list_buffers(net)]
        return Steps(partial(mindir.run_graph, net), buffers)


def read_batch(text: str) -> int:
    """The number of clips; 0 for `free`."""
    return 0 if text == "free" else cli.number_between(1)(text)


def check_options(
    eval_batch: int,
    *,
    format: Literal["mindir", "onnx", "safetensors"],
    target: Path,
    batch: Optional[Annotated[int, read_batch]] = None,
    input: Literal["uint8", "float32"] = "uint8",
    precision: Literal["fp32", "fp16"] = "fp32",
    outputs: Literal["scores", "scores,features"] = "scores",
    online: bool = False,
) -> ExportOptions:
    """Raises ValueError for options that do not fit, or a missing package."""
    if format == "onnx" and not (find_spec("onnx") and list_engines()):
        raise ValueError(  # an engine runs the file before it is delivered
            "--format onnx needs onnx, and openvino or onnxruntime: pip install onnx onnxruntime"
        )
    if format == "safetensors" and (batch, input, precision, outputs, online) != WEIGHTS_ONLY:
        options = "--batch, --input, --precision, --outputs, --online"
        raise ValueError(f"--format safetensors holds weights: leave out {options}")
    if online and (batch not in (None, 1) or outputs != "scores"):
        raise ValueError("--online takes one frame: leave out --batch and --outputs")
    if target.suffix in {f".{kind}" for kind in ("mindir", "onnx", "safetensors")} - {f".{format}"}:
        raise ValueError(f"--target {target} ends in {target.suffix} and --format is {format}")
    if target.suffix != f".{format}":
        target = target.with_name(f"{target.name}.{format}")
    if batch is None:
        batch = 1 if online else eval_batch
    engine = list_engines()[0] if format == "onnx" else ""
    return ExportOptions(format, target, batch, input, precision, engine, outputs, online)


def run_export(network: Network, usage: str) -> NoReturn:
    """Exports a checkpoint as the command line says, and exits; `usage` is the script's docstring.

    `check_options` made the options.
    """

    def main(
        cfg: NetworkConfig, *, checkpoint_path: str, overwrite: bool = False, **options: Any
    ) -> None:
        export_network(network, cfg, checkpoint_path, options, overwrite)

    cli.run(main, network.config, usage, check_options)


def export_network(
    network: Network, cfg: NetworkConfig, checkpoint_path: str, options: dict, overwrite: bool
) -> None:
    """Exports a checkpoint and prints the result; `check_options` made the `options`."""
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    checked = check_options(cfg.eval.batch, **options)
    check_target(checked.target, [checkpoint_path], "--target", overwrite)
    if checked.kind == "onnx" and cfg.run.engine in ENGINES:
        checked = checked._replace(engine=choose_engine(cfg.run))
    file = read_checkpoint(Path(checkpoint_path))
    # The description of the file has no path of this machine.
    spaces = network.list_label_spaces(cfg)
    own = read_description(file)
    use_own_names(spaces, file)
    classes = list_class_names(spaces, file.path.parent)
    batch = checked.batch or cfg.eval.batch
    kept = {name: getattr(own, name) for name in ("metrics", "source", "seconds")} if own else {}
    exported_cfg = replace(cfg, eval=replace(cfg.eval, batch=batch))
    description = describe(network.name, exported_cfg, classes=classes, **kept)
    description = replace(description, settings=drop_folders(description.settings))
    if checked.kind == "safetensors":
        net = load_network(network, cfg, file)
        result = export_weights(net, checked.target, list_texts(weights_of(net), description))
    else:
        load = partial(load_for_inference, network, cfg, file)
        spec = network.describe_export(cfg, checked.online)
        spec = replace(spec, info={**spec.info, DESCRIPTION: description.to_text()})
        result = export(load, spec=spec, options=checked, network=network.name)
    log.print_result(result, rt)


def export_weights(net: nn.Cell, target: Path, texts: dict[str, str]) -> dict[str, Any]:
    """Writes the weights as safetensors; returns the values of stdout's last line.

    The names are those of a checkpoint, and so are the `texts` for the metadata.
    """
    from safetensors.numpy import save_file

    arrays = {name: weight.asnumpy() for name, weight in weights_of(net).items()}
    with report_write_errors(target, "--target"), make_drafts(target.parent) as folder:
        file = folder / target.name
        save_file(arrays, str(file), metadata={"format": "ms", **texts})
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
    kind, target, batch, dtype, precision, engine, outputs, online = options
    wrap = FeatureNetwork if outputs == WITH_FEATURES else lambda net: net
    with report_write_errors(target, "--target"), make_drafts(target.parent) as folder:
        # What the float32 network computes for some batches
        net = wrap(spec.wrap(load(LEVEL["fp32"]))).set_train(False)
        sizes = (1,) * STEPS if online else (batch,) if batch else (2, 1)
        random = np.random.RandomState(0)
        shape = (sum(sizes), *spec.clip)
        is_raw = dtype == "uint8"
        clips = random.randint(0, 256, shape) if is_raw else random.standard_normal(shape)
        batches = np.split(clips.astype(dtype), np.cumsum(sizes)[:-1])
        with runtime.eager_mode():
            steps = spec.open_steps(net)
            expected = steps.run_all(batches)
        if not all(np.isfinite(values).all() for values in expected):
            raise ValueError("the network's scores of random pixels are NaN or infinite")
        # The file
        if kind == "onnx" or precision != "fp32":
            cells = {**FOR_ONNX, **spec.cells}
            rewrite = partial(replace_cells, builders=cells) if kind == "onnx" else None
            net = wrap(spec.wrap(load(LEVEL[precision], rewrite))).set_train(False)
        if precision == "fp16":
            # Weights are float16, but those of layer norms.
            norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.LayerNorm)]
            kept = {parameter.name for cell in norms for parameter in cell.get_parameters()}
            for parameter in net.get_parameters():
                if parameter.dtype == ms.float32 and parameter.name not in kept:
                    parameter.set_dtype(ms.float16)
        file = folder / target.name
        buffers = [f"buffer_{k}" for k in range(len(steps.buffers))]
        names = [spec.output, *outputs.split(",")[1:], *(f"new_{name}" for name in buffers)]
        info = {"network": network, **spec.info}
        if kind == "mindir":
            free = Tensor(shape=[batch or None, *spec.clip], dtype=getattr(ms, dtype))
            save_mindir(net, free, *spec.list_buffers(net), file=file, info=info)
        else:
            write_onnx(net, spec, options, file, [INPUT, *buffers], names, info)
        append_checksum(file)
        set_default_mode(file)
        # What the file computes
        if kind == "onnx":
            results = run_in_process(engine, file, batches, steps.buffers)
        else:
            results = run_mindir(file, batches, steps.buffers)
        absolute = relative = 0.0  # the largest differences
        for name, values, result in zip(names, expected, results):
            assert (result.shape, result.dtype) == (values.shape, values.dtype)
            difference = float(np.abs(result - values).max())
            fraction = difference / max(np.ptp(values), float(np.finfo(np.float32).tiny))
            if not fraction <= TOLERANCE[precision]:
                raise RuntimeError(
                    f"{target} is not written: it would differ from the network by {fraction:.1e} "
                    f"of the spread of its {name}"
                )
            absolute, relative = max(absolute, difference), max(relative, fraction)
        os.replace(file, target)
    arrays = zip([*names, *buffers], [*expected, *steps.buffers])
    entries = [
        {"name": name, "dtype": "float32", "shape": [batch or None, *array.shape[1:]]}
        for name, array in arrays
    ]
    return {
        "format": kind,
        "file": str(target),
        "bytes": target.stat().st_size,
        "precision": precision,
        **({"opset": onnx_graph.OPSET} if kind == "onnx" else {}),
        "input": {"name": INPUT, "dtype": dtype, "shape": [batch or None, *spec.clip]},
        **({"buffers": entries[len(names) :]} if online else {}),
        "outputs": entries[: len(names)],
        "max_abs_difference": absolute,
        "relative_difference": relative,
    }


class FeatureNetwork(nn.Cell):
    """A network that returns its scores and its features."""

    def __init__(self, net: nn.Cell):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, clip: Tensor) -> tuple:
        return self.net(clip, True)


def save_mindir(net: nn.Cell, *inputs: Tensor, file: Path, info: dict[str, str]) -> None:
    """Writes a MINDIR by way of a temporary folder.

    MindSpore cannot write to a path with a blank, or with a letter beyond ASCII.
    """
    net.set_inputs(*inputs)
    with make_drafts(Path(tempfile.gettempdir())) as folder:
        ms.export(
            net,
            *inputs,
            file_name=f"{folder}/net.mindir",
            file_format="MINDIR",
            custom_func=lambda model: model.user_info.update(info),
        )
        shutil.move(f"{folder}/net.mindir", file)


def write_onnx(
    net: nn.Cell, spec: ExportSpec, options: ExportOptions, file: Path, *texts: Any
) -> None:
    """Translates MINDIRs of the network, which are written beside `file`.

    `texts` are the names of the inputs and the outputs, and the metadata.
    """
    import onnx

    graphs = []
    for size in (options.batch,) if options.batch else TRACED_BATCHES:
        path = file.with_name(f"{size}.mindir")
        clips = Tensor(np.zeros((size, *spec.clip), options.dtype))
        save_mindir(net, clips, *spec.list_buffers(net), file=path, info={})
        graphs.append(mindir.read_graph(path))
    graph = graphs[0] if options.batch else onnx_graph.with_dynamic_batch(*graphs)
    model = onnx_graph.translate(graph, *texts)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(file))


def run_mindir(file: Path, batches: Iterable, buffers: Sequence) -> list[np.ndarray]:
    """As `run_in_process`."""
    net = nn.GraphCell(ms.load(str(file)))
    return Steps(partial(mindir.run_graph, net), buffers).run_all(batches)


# Forms of Cells that inference engines for ONNX compute faster: an engine copies the data when axes
# are merged or split; MindSpore does not.


def replace_cells(net: nn.Cell, builders: Builders) -> None:
    """Replaces every Cell of a type in `builders` by what its builder makes of it.

    The parameters keep their names.
    """
    for _, parent in list(net.cells_and_names()):
        for name, cell in list(parent.name_cells().items()):
            build = builders.get(type(cell))
            if build is not None:
                names = [(parameter, parameter.name) for parameter in cell.get_parameters()]
                replace_cell(parent, name, build(cell))
                for parameter, full_name in names:  # a Cell adds its own name to them
                    parameter.name = full_name


def group_depthwise(cell: DepthwiseConv3d) -> nn.Cell:
    """One grouped 3-D kernel."""
    grouped = DepthwiseConv3d(cell.channels, kernel=cell.kernel, stride=cell.stride, impl="grouped")
    grouped.weight = cell.weight
    return grouped


def convolve_clip(cell: FrameConv | PointwiseConv3d) -> nn.Cell:
    """A 3-D convolution of the clip instead of a 2-D one of its frames, or of merged axes.

    The translation to ONNX makes one of a pointwise convolution without a stride.
    """
    if isinstance(cell, PointwiseConv3d) and (cell.stride == 1 or cell.bias is not None):
        return cell
    cout, cin, *kernel = cell.weight.shape
    conv = Conv3d(cin, cout=cout, kernel=tuple(kernel), stride=cell.stride)
    conv.weight = cell.weight
    return conv


FOR_ONNX: Builders = {
    DepthwiseConv3d: group_depthwise,
    FrameConv: convolve_clip,
    PointwiseConv3d: convolve_clip,
}
