"""The network in an exported file; OpenVINO and ONNX Runtime on a CPU, which run an ONNX file.

    python -m utils.inference.engines ENGINE FILE CLIPS OUTPUTS

runs a file in a separate process. A defect of an engine can end its process without a Python
exception, on some processors only; at the export of a file it must end this process, not the run.
CLIPS and OUTPUTS are .npz files: an array for each batch, and the first buffers of an online
network; and each output for all batches.
"""

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from utils.cores import count_workers
from utils.evaluate.scorer import Scorer, Steps
from utils.files import ROOT
from utils.messages import escape_control, format_error
from utils.processes import describe_exit, die_with_parent
from utils.runtime import uncapped_instruction_set
from utils.settings import Run

ENGINES = {"openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}  # the preferred one first
MODULE = "utils.inference.engines"  # in ROOT, also of a wheel
FLOATS = (1, 10, 11, 16)  # types of onnx.TensorProto: float32, float16, float64, bfloat16
# Clips to scores, and features if there are; or a frame and buffers to scores and new buffers
Session = Callable[..., list[np.ndarray]]


class Exported(NamedTuple):
    """What an exported file says of its network.

    `shape` is that of its clips; its N is below 1 if the file takes any number. `dtype` is theirs.
    A file of one step of an online network has the shapes of its `buffers`.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int
    buffers: Optional[Sequence[tuple[int, ...]]]
    info: Mapping[str, str]


@dataclass(eq=False)
class FileScorer(Scorer):
    """The network in a file.

    It takes uint8 clips (N, ...); for a file that expects normalised ones, `normalize` computes
    them. `shape` and `buffers` are those of `Exported`; with buffers it takes a frame (1, C, H, W)
    instead of clips. `classes` counts all heads'. `open_session(shape)` opens the file for
    clips of one shape.
    """

    path: Path
    shape: tuple[int, ...]
    classes: int
    open_session: Callable[[tuple[int, ...]], Session]
    engine: str = "mindspore"
    normalize: Optional[Callable[[np.ndarray], np.ndarray]] = None
    buffers: Optional[Sequence[tuple[int, ...]]] = None
    device: str = "CPU"

    def __post_init__(self) -> None:
        self.name = str(self.path)
        self.batch = max(self.shape[0], 0) if self.buffers is None else 0
        self.sessions: dict[tuple, Session] = {}  # by the shape of the clips

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run(clips)[0]

    def features(self, clips: np.ndarray) -> np.ndarray:
        """ValueError if the file was exported without features."""
        _, *features = self.run(clips)
        if not features:
            raise ValueError(f"{self.path} has no features: --outputs scores,features exports them")
        return features[0]

    def run(self, clips: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The scores, and the features if the file has them; of a step the new buffers.

        Raises ValueError if the clips do not fit, if the graph fails, or for outputs of another
        shape.
        """
        if self.buffers is not None and not buffers:
            raise ValueError(f"{self.path} takes single frames: export it without --online")
        (batch, *expected), (count, *shape) = self.shape, clips.shape
        if shape != expected or 0 < batch != count:
            sizes = f"{list(self.shape)}, and the config file's are {list(clips.shape)}"
            raise ValueError(f"{self.path} takes clips {sizes}; export it with this config file")
        if self.normalize is not None:
            clips = self.normalize(clips[None])[0] if buffers else self.normalize(clips)
        try:
            if clips.shape not in self.sessions:
                self.sessions[clips.shape] = self.open_session(clips.shape)
            outputs = self.sessions[clips.shape](clips, *buffers)
        except Exception as error:  # noqa: BLE001 the libraries raise several kinds
            raise ValueError(f"{self.path}: cannot run: {shorten_error(error)}") from None
        shape = outputs[0].shape
        if len(shape) < 2 or (shape[0], shape[-1]) != (count, self.classes):
            raise ValueError(f"{self.path} gives scores {shape}; export it again")
        return outputs


def shorten_error(error: Exception) -> str:
    """The first 120 characters of a library's error about an untrusted file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + format_error(error))[:120]


def choose_engine(run: Run) -> str:
    """The engine for `run.engine`: openvino, onnxruntime or mindspore; for auto the preferred one.

    Raises ValueError for one that is not installed, or that cannot use `run.device`.
    """
    if run.engine in ENGINES and run.device != "CPU":
        raise ValueError(f"run.engine: {run.engine} runs on a CPU only; set --run.device=CPU")
    if run.engine in ENGINES and not find_spec(run.engine):
        raise ValueError(f"run.engine: {run.engine} is not installed: pip install {run.engine}")
    engine = run.engine
    if engine == "auto":
        chooses = run.device == "CPU" and run.mode == "graph"
        engine = next(iter(list_engines()), "mindspore") if chooses else "mindspore"
    if run.engine_precision != "f32":
        setting = f"run.engine_precision: {run.engine_precision}"
        if engine != "openvino":
            raise ValueError(f"{setting} needs --run.device=CPU --run.engine=openvino")
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
    is_x86 = platform.machine() == "x86_64"
    return [name for name in ENGINES if find_spec(name) and (is_x86 or name != "openvino")]


def open_openvino(path: Path, precision: str, shape: tuple[int, ...]) -> Session:
    # OpenVINO imports this package to report its use over the network, and works without it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    settings = {
        "INFERENCE_PRECISION_HINT": precision,  # by default some processors compute in bfloat16
        "INFERENCE_NUM_THREADS": str(count_workers("auto")),
        "PERFORMANCE_HINT": "LATENCY",
        # A thread that is bound to a core would wait there for the threads that decode videos.
        "ENABLE_CPU_PINNING": "NO",
    }
    with uncapped_instruction_set():
        import openvino
        from openvino import opset8

        core = openvino.Core()
        model = core.read_model(str(path))
        model.reshape({model.inputs[0]: [*shape]})
        # A -1 among the sizes of a Reshape would cost X3D a copy of the data at every block.
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Reshape" and node.get_output_partial_shape(0).is_static:
                sizes = opset8.constant(np.array([*node.get_output_shape(0)], np.int64))
                node.set_argument(1, sizes.output(0))
        model.validate_nodes_and_infer_types()
        request = core.compile_model(model, "CPU", settings).create_infer_request()
        request.infer([np.zeros(port.shape, np.uint8) for port in model.inputs])

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        return [np.array(output) for output in request.infer([*inputs]).to_tuple()]

    return run


def open_onnxruntime(path: Path, precision: str, shape: tuple[int, ...]) -> Session:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_workers("auto")
    options.log_severity_level = 3  # errors
    options.add_free_dimension_override_by_name("batch", shape[0])
    # Threads that wait would use the cores on which videos are decoded.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    names = [source.name for source in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs)))


# Functions of a file, a precision and the shape of clips
OPEN = {"openvino": open_openvino, "onnxruntime": open_onnxruntime}


def read_onnx(path: Path) -> Exported:
    """Raises ValueError if the file is missing, no ONNX, or refused by `check_model`."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        check_model(model)
        (source, *_), (result, *_) = model.graph.input, model.graph.output
        inputs = [array.type.tensor_type.shape.dim for array in model.graph.input]
        shape, *buffers = (tuple(d.dim_value for d in sizes) for sizes in inputs)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type).name
        info = {entry.key: entry.value for entry in model.metadata_props}
        classes = result.type.tensor_type.shape.dim[-1].dim_value
    except Exception as error:  # noqa: BLE001 protobuf's and the checker's own
        raise ValueError(f"{path}: not a readable ONNX file: {shorten_error(error)}") from None
    return Exported(shape, dtype, classes, buffers if "online" in info else None, info)


def check_model(model: Any) -> None:
    """Raises ValueError for arrays in other files, and for NaN and infinity; onnx.checker's errors.

    Some engines make 0 of NaN: the scores would not show it.
    """
    import onnx

    graphs = [model.graph]
    attributes = []
    for graph in graphs:  # grows by the graphs inside: branches, and bodies of loops
        for attribute in (part for node in graph.node for part in node.attribute):
            attributes.append(attribute)
            graphs += [attribute.g, *attribute.graphs]
            if not np.isfinite([attribute.f, *attribute.floats]).all():
                raise ValueError(f"its {escape_control(attribute.name)[:80]} has NaN or infinity")
    weights = [tensor for graph in graphs for tensor in graph.initializer]
    constants = [tensor for part in attributes for tensor in (part.t, *part.tensors)]
    for tensor in (*weights, *constants):
        if tensor.external_data or tensor.data_location:
            raise ValueError("its weights are in other files")
        if tensor.data_type in FLOATS:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            if not np.isfinite(values).all():
                raise ValueError(f"its {escape_control(tensor.name)[:80]} has NaN or infinity")
    onnx.checker.check_model(model)


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
    get_session = functools.cache(functools.partial(OPEN[engine], Path(file), "f32"))
    with np.load(clips) as arrays:
        batches = [arrays[name] for name in arrays.files if name.startswith("arr_")]
        buffers = [arrays[name] for name in arrays.files if name.startswith("buffer_")]
    steps = Steps(lambda batch, *state: get_session(batch.shape)(batch, *state), buffers)
    np.savez(outputs, *steps.run_all(batches))


if __name__ == "__main__":
    main(*sys.argv[1:])
