"""Golden cases: generates weights and inputs from names and seeds, records activations.

A case stores no weights. Every array is a pure function of its PyTorch name and shape, so that the
network under test gets the same checkpoint, bit for bit, as the implementation that was recorded.
"""

from __future__ import annotations

import abc
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn

from scripts.analysis.activations import set_weights
from utils.files import ROOT
from utils.runtime import Runtime
from utils.settings import Run, TrainSettings
from utils.train.train_step import TrainStep
from utils.weights.checkpoint import weights_of
from utils.weights.convert import convert, map_torch_names

if TYPE_CHECKING:
    from utils.networks import Network

UPDATES = 5  # of a golden case


class GoldenCase(abc.ABC):
    """Recomputes what the original code recorded in a case of tests/golden/*.json.

    `defaults` are settings that case["train"] may leave out. `depthwise_impl` is that of `Conv3d`,
    in a network that has the argument.
    """

    network: Network
    defaults: dict[str, Any] = {}

    def __init__(self, case: dict[str, Any], depthwise_impl: str = "frames"):
        self.case = case
        self.depthwise_impl = depthwise_impl

    @abc.abstractmethod
    def model_arguments(self) -> dict[str, Any]:
        """The arguments of the network's `build_model`."""

    def build_model(self, training: bool = False) -> nn.Cell:
        """The network with its weights."""
        net = self.network.build_model(**self.model_arguments())
        load_weights(net, build_state_dict(self.case, net), self.network)
        return net.set_train(training)

    @abc.abstractmethod
    def build_loss(self) -> nn.Cell:
        """The loss."""

    @abc.abstractmethod
    def build_optimizer(self, net: nn.Cell, lr: np.ndarray, recorded: dict) -> nn.Optimizer:
        """The optimizer with rates `lr` and the recorded settings, such as `weight_decay`."""

    def build_train_step(self, part: str) -> TrainStep:
        """The train step of the updates that case["train"][part] records."""
        net = self.build_model(training=True)
        recorded = self.case["train"][part]["optimizer"]
        lr = np.full(UPDATES, recorded["lr"])
        limits = (value for name, value in recorded.items() if name.startswith("clip_"))
        optimizer = self.build_optimizer(net, lr, recorded)
        return build_train_step(net, self.build_loss(), optimizer, next(limits, None) or 0.0)

    def build_target(self) -> np.ndarray:
        """The target of a training batch: labels int32 (N,)."""
        return np.array(self.case["labels"], np.int32)

    def cell_name(self, point: str) -> str:
        """The cell here whose output the original recorded as `point`; empty if there is none."""
        return point


def find_case(network: str, case: dict[str, Any]) -> GoldenCase:
    """Our side of a case: the class CASE of the tests of a network's folder.

    Raises ValueError if the network has no cases.
    """
    if not (ROOT / network / "tests" / "golden_case.py").is_file():
        raise ValueError(f"--case: {network} has no golden cases")
    module = __import__(f"{network}.tests.golden_case", fromlist=["CASE"])
    return module.CASE(case, "frames")  # depthwise_impl: the fastest on a CPU


def generate_weight(name: str, shape: tuple) -> np.ndarray:
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


def generate_input(seed: int, shape: tuple) -> np.ndarray:
    """A standard-normal network input, float32."""
    generator = np.random.Generator(np.random.PCG64(int(seed)))
    return generator.standard_normal(tuple(shape)).astype(np.float32)


def load_case(path: Path) -> dict:
    return json.loads(Path(path).read_text())


def build_state_dict(case: dict, net: nn.Cell) -> dict[str, np.ndarray]:
    """PyTorch's state dict of a case: generated weights, then the values that the case sets.

    A case without a manifest has the names and shapes of `net`.
    """
    if "manifest" in case:
        state = {name: generate_weight(name, tuple(shape)) for name, shape, _ in case["manifest"]}
    else:
        state = generate_state_dict(net)
    for name, value in case.get("overrides", {}).items():
        state[name] = np.asarray(value, state[name].dtype)
    for part, factor in case.get("scale", {}).items():
        state.update({k: v * np.float32(factor) for k, v in state.items() if part in k})
    return state


def generate_state_dict(net: nn.Cell) -> dict[str, np.ndarray]:
    """A PyTorch state dict with the names and shapes of a network."""
    shapes = get_shapes(net)
    return {
        theirs: generate_weight(theirs, shapes[name])
        for name, theirs in map_torch_names(net).items()
    }


def get_shapes(net: nn.Cell) -> dict[str, tuple]:
    """{name: shape} of all weights and statistics."""
    return {name: tuple(p.shape) for name, p in weights_of(net).items()}


def compute_scores(net: nn.Cell, clip: Tensor) -> np.ndarray:
    """The output of a network in evaluation; the outputs of several heads are concatenated."""
    result = net(clip)
    parts = result if isinstance(result, tuple) else (result,)
    return np.concatenate([part.asnumpy() for part in parts], axis=-1)


def read_expected_scores(case: dict) -> np.ndarray:
    """The recorded output of the original, as `compute_scores` returns it."""
    result = case["eval"].get("output", case["eval"]["logits"])
    parts = result.values() if isinstance(result, dict) else (result,)
    return np.concatenate([np.array(part) for part in parts], axis=-1)


def load_weights(net: nn.Cell, state: dict, network: Network) -> None:
    """Loads a PyTorch state dict into `net`, a model of `network`, through its converter."""
    set_weights(net, convert(state, get_shapes(net), network).arrays)


def build_train_step(
    net: nn.Cell, loss: nn.Cell, optimizer: nn.Cell, clip_norm: float = 0.0
) -> TrainStep:
    """The train step of a case's recorded updates: float32, one micro-batch per update."""
    settings = TrainSettings(clip_norm=clip_norm)
    step = TrainStep(
        net,
        loss=loss,
        optimizer=optimizer,
        run=Run(device="CPU"),
        train=settings,
        rt=Runtime(),
        steps_per_epoch=UPDATES,
    )
    return step.set_train()
