"""Golden cases: weights and inputs rebuilt from names and seeds, activations on the way.

A case stores no weights. Every array is a pure function of its PyTorch name and shape, so that the
network under test gets the same checkpoint, bit for bit, as the implementation that was recorded.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils.config import Run
from utils.runtime import Runtime
from utils.train.train_step import TrainStep
from utils.weights.checkpoint import weights_of
from utils.weights.convert import NORM, convert

UPDATES = 5  # that a case records


def fill(name: str, shape: tuple) -> np.ndarray:
    """One array of a PyTorch state dict: float32, or int64 for `num_batches_tracked`."""
    digest = hashlib.sha256(name.encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if leaf == "running_var" or (leaf == "weight" and len(shape) == 1):
        value = generator.uniform(0.5, 1.5, shape)
    elif leaf in ("running_mean", "bias"):
        value = generator.standard_normal(shape) * 0.1
    elif leaf == "weight":
        value = generator.standard_normal(shape) * np.sqrt(1.0 / np.prod(shape[1:]))
    else:  # tokens, positional embeddings and the like
        value = generator.standard_normal(shape) * 0.02
    return np.asarray(value, np.float32)


def fill_input(seed: int, shape: tuple) -> np.ndarray:
    """A standard-normal network input, float32."""
    generator = np.random.Generator(np.random.PCG64(int(seed)))
    return generator.standard_normal(tuple(shape)).astype(np.float32)


def load_case(path: Path) -> dict:
    return json.loads(Path(path).read_text())


def build_state(case: dict) -> dict:
    """The state dict of a case: its manifest filled, then the buffers it fixes."""
    state = {name: fill(name, tuple(shape)) for name, shape, _ in case["manifest"]}
    for name, value in case.get("overrides", {}).items():
        state[name] = np.asarray(value, state[name].dtype)
    return state


def case_state(case: dict, net: nn.Cell) -> dict:
    """The state dict of a case; one without a manifest has the names and shapes of the network."""
    return build_state(case) if "manifest" in case else fill_network(net)


def fill_network(net: nn.Cell) -> dict:
    """A PyTorch state dict with the names and shapes of a network."""
    shapes = get_shapes(net)
    return {theirs: fill(theirs, shapes[ours]) for ours, theirs in torch_names(net).items()}


def get_shapes(net: nn.Cell) -> dict:
    """{our name: shape} of all weights and statistics."""
    return {name: tuple(p.shape) for name, p in weights_of(net).items()}


def spread(values: np.ndarray) -> float:
    """Largest minus smallest: what a difference of scores is measured against."""
    return float(np.max(values) - np.min(values))


def evaluation(net: nn.Cell, clip: Tensor) -> np.ndarray:
    """What a network gives in evaluation; of several heads, side by side."""
    result = net(clip)
    parts = result if isinstance(result, tuple) else (result,)
    return np.concatenate([part.asnumpy() for part in parts], axis=-1)


def expected_evaluation(case: dict) -> np.ndarray:
    """The same of the original."""
    result = case["eval"].get("output", case["eval"]["logits"])
    parts = result.values() if isinstance(result, dict) else (result,)
    return np.concatenate([np.array(part) for part in parts], axis=-1)


def put_state(net, state: dict, network) -> None:
    """Loads the weights of a PyTorch state dict, through the converter of `network`, its record."""
    arrays = convert(state, get_shapes(net), network).arrays
    for name, parameter in weights_of(net).items():
        parameter.set_data(Tensor(arrays[name], parameter.dtype))


def build_train_step(
    net: nn.Cell, loss: nn.Cell, optimizer: nn.Cell, clip_norm: float = 0.0
) -> TrainStep:
    """The train step of a case's recorded updates: float32, one micro-batch per update."""
    settings = SimpleNamespace(accumulation_steps=1, clip_norm=clip_norm, ema_decay=0.0)
    step = TrainStep(net, loss, optimizer, Run(device="CPU"), settings, Runtime(), UPDATES)
    return step.set_train()


def build_labels(case: dict) -> np.ndarray:
    """The labels of a case, int32 (N,)."""
    return np.array(case["labels"], np.int32)


def torch_names(net) -> dict:
    """{our name: PyTorch's name} of every weight and buffer: norms change their leaves."""
    norms = {p.name.rpartition(".")[0] for p in net.get_parameters() if p.name.endswith(".gamma")}
    back = {ours: theirs for theirs, ours in NORM.items()}
    names = {}
    for name in weights_of(net):
        module, _, leaf = name.rpartition(".")
        names[name] = f"{module}.{back[leaf]}" if module in norms else name
    return names


def record_taps(net, points: list, *inputs: np.ndarray) -> dict:
    """Runs the network eagerly; {point: activation} for names of cells, or `NAME (input ...)`."""
    cells = dict(net.cells_and_names())
    activations, handles = {}, []
    for point in points:
        name, _, side = point.partition(" (input")
        handles.append(hook(cells[name], point, bool(side), activations))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        net(*(Tensor(value) for value in inputs))
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
        for handle in handles:
            handle.remove()
    return {point: value.asnumpy() for point, value in activations.items()}


def hook(cell, point: str, at_input: bool, activations: dict):
    def before(_, inputs):
        activations[point] = inputs[0]

    def after(_, __, output):
        activations[point] = output

    if at_input:
        return cell.register_forward_pre_hook(before)
    return cell.register_forward_hook(after)
