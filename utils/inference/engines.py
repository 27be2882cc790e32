"""The network in an exported file; OpenVINO and ONNX Runtime on a CPU, which run an ONNX file.

MindSpore is imported only for a file that takes normalised clips.

    python -m utils.inference.engines ENGINE FILE CLIPS OUTPUTS

runs a file in a separate process. A defect of an engine can end its process without a Python
exception, on some processors only; at the export of a file it must end this process, not the run.
CLIPS and OUTPUTS are .npz files: an array for each batch, and the first buffers of an online
network; and each output for all batches.
"""

import abc
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from utils.cores import count_workers
from utils.evaluate.scorer import Scorer, Steps
from utils.files import ROOT
from utils.inference.checkpoint import build_network
from utils.load_config import to_dict
from utils.log import log
from utils.messages import escape_control, format_error
from utils.processes import call_within, describe_exit, die_with_parent
from utils.runtime import uncapped_instruction_set
from utils.settings import NetworkConfig, Run, name_network
from utils.weights.checkpoint_file import DESCRIPTION
from utils.weights.description import check_checksum, parse

if TYPE_CHECKING:
    from utils.networks import Network

ENGINES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}  # the preferred one first
MODULE = "utils.inference.engines"  # in ROOT, also of a wheel
LONGEST = 300  # seconds to open a file and to compute its first batch
FLOATS = (1, 10, 11, 16)  # types of onnx.TensorProto: float32, float16, float64, bfloat16
# Clips to scores, and features if there are; or a frame and buffers to scores and new buffers
Session = Callable[..., list[np.ndarray]]


@dataclass(eq=False)
class FileScorer(Scorer):
    """The network in a file.

    It takes uint8 clips (N, ...); for a file that expects normalised ones, `normalize` computes
    them. `shape` is that of the clips in the file; its N is below 1 if it takes any number.
    `classes` are those of all heads. A file of one step of an online network has the shapes of its
    `buffers`, and takes a frame (1, C, H, W) instead of clips.
    """

    path: Path
    shape: tuple[int, ...]
    classes: int
    normalize: Optional[Callable[[np.ndarray], np.ndarray]] = None
    buffers: Optional[Sequence[tuple[int, ...]]] = None

    def __post_init__(self) -> None:
        self.name = str(self.path)
        self.batch = max(self.shape[0], 0)

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run(clips)[0]

    def features(self, clips: np.ndarray) -> np.ndarray:
        """ValueError if the file was exported without features."""
        _, *features = self.run(clips)
        if not features:
            raise ValueError(
                f"{self.path} has no features; export it again with --outputs scores,features"
            )
        return features[0]

    def run(self, clips: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The scores, and the features if the file has them; of a step the new buffers.

        Raises ValueError if the clips do not fit, if the graph fails, or for outputs of another
        shape.
        """
        if self.buffers is not None and not buffers:
            raise ValueError(
                f"{self.path} takes one frame at a time, for stream.py without --window and --step;"
                " for clips, export the checkpoint without --online"
            )
        (batch, *expected), (count, *shape) = self.shape, clips.shape
        if shape != expected or 0 < batch < count:
            raise ValueError(
                f"{self.path} takes clips {list(self.shape)}, and the config file's are "
                f"{list(clips.shape)}; export it again with this config file"
            )
        if batch > count:  # one video's view, in a file for several
            clips = np.resize(clips, (batch, *shape))
        size = len(clips)
        if self.normalize is not None:
            clips = self.normalize(clips[None])[0] if buffers else self.normalize(clips)
        try:
            outputs = self.compute(clips, *buffers)
        except Exception as error:  # noqa: BLE001 the libraries raise several kinds
            raise ValueError(f"{self.path}: cannot run: {shorten_error(error)}") from None
        scores, *others = shapes = [output.shape for output in outputs]
        fits = len(scores) >= 2 and (scores[0], scores[-1]) == (size, self.classes)
        if buffers:
            fits = fits and others == [buffer.shape for buffer in buffers]
        else:
            fits = fits and [len(shape) for shape in others] in ([], [2])
        if not fits:
            raise ValueError(f"{self.path} gives outputs {shapes}; export it again")
        return outputs if buffers else [output[:count] for output in outputs]

    def open_steps(self) -> Steps:
        """ValueError if the file takes clips."""
        if self.buffers is None:
            raise ValueError(
                f"{self.path} takes clips: frame by frame, this network needs a checkpoint, or a "
                "file exported with --online; give --window and --step for clips"
            )
        return Steps(self.run, [np.zeros(shape, np.float32) for shape in self.buffers])

    @abc.abstractmethod
    def compute(self, clips: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The outputs for as many clips as the file takes; any error of the library."""


def count_classes(cfg: NetworkConfig) -> int:
    """The classes of all heads."""
    return int(np.sum(cfg.model_arguments()["num_classes"]))


def build_normalization(
    network: "Network", cfg: NetworkConfig
) -> Callable[[np.ndarray], np.ndarray]:
    """The function from uint8 clips to those that the network's first layer takes."""
    from mindspore import Tensor

    normalize = build_network(network, cfg).normalize
    return lambda clips: normalize(Tensor(clips)).asnumpy()


def warn_without_checksum(path: Path) -> None:
    """Logs a warning for a file without a checksum; raises ValueError if its checksum differs."""
    if path.is_file() and not check_checksum(path):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)


def check_contents(
    path: Path, cfg: NetworkConfig, info: dict[str, str], classes: int, batch: int
) -> None:
    """Raises ValueError if a file does not fit the config file.

    `info` is the file's metadata. `classes` is the last size of its output, used if the metadata do
    not name it. `batch` is 0 if the file takes any number of clips.
    """
    network = name_network(type(cfg))
    exported = info.get("network")
    if exported and exported != network:
        name = escape_control(exported)[:80]
        raise ValueError(f"{path} holds a network of {name}, not of {network}")
    expected = str(count_classes(cfg))
    in_file = info.get("classes", str(classes))
    if in_file != expected:
        in_file = escape_control(in_file)[:20]
        raise ValueError(f"{path} has {in_file} classes, and the config file has {expected}")
    settings = parse(info[DESCRIPTION], path).settings if DESCRIPTION in info else {}
    padding = settings.get("model", {}).get("padding")
    own_padding = to_dict(cfg)["model"].get("padding")
    if padding not in (None, own_padding):
        from utils.weights.mindspore_checkpoint import check_padding

        check_padding(path, escape_control(str(padding))[:20], own_padding)
    labels = "multi" if cfg.has_several_labels else "single"
    if info.get("labels", labels) != labels:
        raise ValueError(
            f"{path} was not exported with model.labels {labels}; export it with this config file"
        )
    if batch > 0 and batch != cfg.eval.batch:
        raise ValueError(
            f"{path} takes {batch} clips at once and eval.batch is {cfg.eval.batch}: "
            f"set --eval.batch={batch} or export with --batch free"
        )


def shorten_error(error: Exception) -> str:
    """The first 120 characters of a library's error about an untrusted file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + format_error(error))[:120]


def choose_engine(run: Run) -> str:
    """The engine for `run.engine`: openvino, onnxruntime or mindspore; for auto the preferred one.

    Raises ValueError for one that is not installed, or that cannot use `run.device`.
    """
    if run.engine in ENGINES and run.device != "CPU":
        raise ValueError(
            f"run.engine: {run.engine} runs on a CPU only; set --run.device=CPU, or "
            "--run.engine=mindspore"
        )
    if run.engine in ENGINES and not find_spec(run.engine):
        raise ValueError(f"run.engine: {run.engine} is not installed: pip install {run.engine}")
    engine = run.engine
    if engine == "auto":
        chooses = run.device == "CPU" and run.mode == "graph"
        engine = next(iter(list_engines()), "mindspore") if chooses else "mindspore"
    if run.engine_precision != "f32":
        setting = f"run.engine_precision: {run.engine_precision}"
        if engine != "openvino":
            raise ValueError(
                f"{setting} is computed by OpenVINO on a CPU, not by {engine} on {run.device}; set "
                "--run.device=CPU --run.engine=openvino, or --run.engine_precision=f32"
            )
        with uncapped_instruction_set():
            import openvino

            known = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if "BF16" not in known:
            raise ValueError(f"{setting}: this processor has no bfloat16")
    return engine


def list_engines() -> list[str]:
    """The engines that `auto` may use, the preferred one first: those that are installed.

    OpenVINO is among them on x86-64 only.
    """
    installed = [name for name in ENGINES if find_spec(name)]
    is_x86 = platform.machine() == "x86_64"
    return [name for name in installed if name != "openvino" or is_x86]


def open_openvino(
    path: Path, shape: tuple[int, ...], threads: int, precision: str = "f32"
) -> Session:
    """A session for clips of one shape."""
    # OpenVINO imports this package to report its use over the network, and works without it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    # By default some processors would compute in bfloat16.
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": str(threads)}
    # A thread that is bound to a core would wait there for the threads that decode videos.
    settings.update(PERFORMANCE_HINT="LATENCY", ENABLE_CPU_PINNING="NO")
    with uncapped_instruction_set():
        import openvino

        core = openvino.Core()
        model = core.read_model(str(path))
        fix_shapes(model, shape)
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        request.infer([np.zeros(port.shape, np.uint8) for port in model.inputs])

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        return [np.array(output) for output in request.infer([*inputs]).to_tuple()]

    return run


def fix_shapes(model: Any, shape: tuple[int, ...]) -> None:
    """Makes an OpenVINO model one for clips of one shape, as fast as a file for this batch.

    A -1 among the sizes of a Reshape would cost X3D a copy of the data at every block.
    """
    from openvino import opset8

    model.reshape({model.inputs[0]: list(shape)})
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Reshape" and node.get_output_partial_shape(0).is_static:
            sizes = opset8.constant(np.array([*node.get_output_shape(0)], np.int64))
            node.set_argument(1, sizes.output(0))
    model.validate_nodes_and_infer_types()


def open_onnxruntime(path: Path, shape: tuple[int, ...], threads: int, precision: str) -> Session:
    """A session for clips of one shape; `precision` is f32."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    options.add_free_dimension_override_by_name("batch", shape[0])
    # Threads that wait would use the cores on which videos are decoded.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    names = [source.name for source in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs)))


OPEN = {"openvino": open_openvino, "onnxruntime": open_onnxruntime}


@dataclass(eq=False)
class OnnxScorer(FileScorer):
    """The network in an ONNX file, computed by an inference engine.

    `precision` is a value of run.engine_precision; `sessions` are by the shape of the clips.
    """

    engine: str = "openvino"
    precision: str = "f32"
    sessions: dict[tuple, Session] = field(default_factory=dict)

    def compute(self, clips: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The outputs; TimeoutError if the first batch of a shape takes LONGEST: a bad file."""
        if clips.shape in self.sessions:
            return self.sessions[clips.shape](clips, *buffers)
        return call_within(LONGEST, lambda: self.open_session(clips.shape)(clips, *buffers))

    def open_session(self, shape: tuple[int, ...]) -> Session:
        """The session for clips of this shape. The engines raise errors of several kinds."""
        if shape not in self.sessions:
            threads = count_workers("auto")
            session = OPEN[self.engine](self.path, shape, threads, self.precision)
            self.sessions[shape] = session
        return self.sessions[shape]


def load_onnx(path: Path, network: "Network", cfg: NetworkConfig) -> OnnxScorer:
    """The network of an ONNX file for the settings of a config file.

    Raises ValueError for a damaged file, one of another network, number of classes or batch, or
    if no engine can run it. Logs a warning for a file without a checksum.
    """
    warn_without_checksum(path)
    engine = choose_engine(cfg.run)
    if engine == "mindspore":
        raise ValueError(
            f"{path}: an ONNX file runs on a CPU by OpenVINO or ONNX Runtime; set --run.device=CPU"
            f" and --run.engine=auto, or install one: pip install {next(iter(ENGINES))}"
        )
    shape, classes, info, buffers = read_description(path)
    batch = shape[0] if buffers is None else 0
    check_contents(path, cfg=cfg, info=info, classes=classes, batch=batch)
    normalize = build_normalization(network, cfg) if info["dtype"] == "float32" else None
    precision = cfg.run.engine_precision
    return OnnxScorer(path, shape, count_classes(cfg), normalize, buffers, engine, precision)


def read_description(path: Path) -> tuple[tuple[int, ...], int, dict[str, str], Optional[list]]:
    """(shape of the input, classes, metadata, shapes of the buffers) of an ONNX file.

    A dynamic batch is 0; the buffers of a file for clips are None. The metadata include `dtype`,
    that of the input. Raises ValueError if the file is missing, no ONNX, or refused by
    `check_model`.
    """
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        check_model(model)
        (source, *_), (result, *_) = model.graph.input, model.graph.output
        inputs = [array.type.tensor_type.shape.dim for array in model.graph.input]
        shape, *buffers = (tuple(d.dim_value for d in sizes) for sizes in inputs)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type)
        info = {entry.key: entry.value for entry in model.metadata_props}
        classes = result.type.tensor_type.shape.dim[-1].dim_value
    except Exception as error:  # noqa: BLE001 protobuf's and the checker's own
        raise ValueError(f"{path}: not a readable ONNX file: {shorten_error(error)}") from None
    return shape, classes, {**info, "dtype": dtype.name}, buffers if "online" in info else None


def check_model(model: Any) -> None:
    """Raises ValueError for arrays in other files, and for NaN and infinity; onnx.checker's errors.

    Some engines make 0 of NaN: the scores would not show it.
    """
    import onnx

    graphs = list(list_graphs(model.graph))
    attributes = [part for graph in graphs for node in graph.node for part in node.attribute]
    for part in attributes:
        if not np.isfinite([part.f, *part.floats]).all():
            raise ValueError(f"its {escape_control(part.name)[:100]} has NaN or infinite numbers")
    weights = [tensor for graph in graphs for tensor in graph.initializer]
    constants = [tensor for part in attributes for tensor in (part.t, *part.tensors)]
    for tensor in (*weights, *constants):
        if tensor.external_data or tensor.data_location:
            raise ValueError("its weights are in other files")
        if tensor.data_type in FLOATS:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            if not np.isfinite(values).all():
                name = escape_control(tensor.name)[:100]
                raise ValueError(f"its {name} has NaN or infinite numbers")
    onnx.checker.check_model(model)


def list_graphs(graph: Any) -> Iterator[Any]:
    """A graph of an ONNX file, and those inside it: branches, and bodies of loops."""
    yield graph
    for attribute in (part for node in graph.node for part in node.attribute):
        for inner in (attribute.g, *attribute.graphs):
            yield from list_graphs(inner)


def run_in_process(
    engine: str, file: Path, batches: Sequence[np.ndarray], buffers: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """The outputs of an ONNX file, as `Steps.run_all`. Writes scratch files beside it.

    Raises RuntimeError if the process fails.
    """
    clips, outputs = (file.with_name(f"{name}.npz").absolute() for name in ("clips", "outputs"))
    np.savez(clips, *batches, **{f"buffer_{k}": array for k, array in enumerate(buffers)})
    command = [sys.executable, "-m", MODULE, engine, file.absolute(), clips, outputs]
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace",
    )  # fmt: skip
    if done.returncode:
        reason = describe_exit(done.returncode, done.stderr.splitlines())
        raise RuntimeError(f"{ENGINES[engine]} cannot run the exported file: its process {reason}")
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def main(engine: str, file: str, clips: str, outputs: str) -> None:
    die_with_parent()
    threads = count_workers("auto")
    open_session = functools.cache(lambda shape: OPEN[engine](Path(file), shape, threads, "f32"))
    with np.load(clips) as arrays:
        batches = [arrays[name] for name in arrays.files if name.startswith("arr_")]
        buffers = [arrays[name] for name in arrays.files if name.startswith("buffer_")]
    steps = Steps(lambda batch, *state: open_session(batch.shape)(batch, *state), buffers)
    np.savez(outputs, *steps.run_all(batches))


if __name__ == "__main__":
    main(*sys.argv[1:])
