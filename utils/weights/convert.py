"""From a PyTorch state dict to this zoo's parameters, strict on both sides.

A network's `convert.py` says how names are spelled; the rules for all networks are here:
norms change their leaf names, counters are dropped, everything else keeps its layout.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Optional, Protocol

import numpy as np

from utils.nn.layers import resize_table
from utils.weights import checkpoint, torch_reader
from utils.weights.checkpoint import listing

NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


PREFIXES = ("module.", "model.", "backbone.", "_orig_mod.")  # which wrappers put before names


class Naming(Protocol):
    """A network's convert.py; `utils.networks.ConvertPart` documents it."""

    def detect_format(self, names: Iterable[str]) -> str: ...
    def canonical_name(self, name: str, source_format: str = ...) -> Optional[str]: ...
    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]: ...
    def default_value(self, name: str, source_format: str) -> Optional[float]: ...


class NamedWeights(Protocol):
    """What is read of a network's record, `utils.networks.Network`."""

    convert: Naming
    classifier: str


class Converted(NamedTuple):
    """Arrays under our names, and what happened on the way."""

    arrays: dict[str, np.ndarray]
    dropped: list[str]  # of the source, on purpose
    missing: list[str]  # of ours: they stay fresh


def read_source(path: Path) -> dict[str, np.ndarray]:
    """The state dict in a PyTorch, safetensors or MindSpore file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.suffix == ".ckpt":
        return checkpoint.read_weights(path)
    return torch_reader.load_state(path)


def convert(
    source: dict[str, np.ndarray],
    wanted: dict[str, tuple[int, ...]],
    network: NamedWeights,
    new_head: bool = False,
) -> Converted:
    """Puts the arrays of `source` under the names of `wanted`, {our name: shape}.

    With `new_head` the classifier of `network` is dropped on both sides. Raises ValueError where
    anything else is left over on either side, twice there, or of another shape.
    """
    naming, classifier = network.convert, network.classifier
    prefix, source_format = read_naming(source, naming)
    bare = {name[len(prefix) :]: array for name, array in source.items()}
    targets = {naming.canonical_name(name): name for name in wanted}
    norms = {key[: -len(".gamma")] for key in targets if key.endswith(".gamma")}
    arrays, dropped = spell(bare, naming, source_format, classifier if new_head else "$^", norms)
    head = [name for name in wanted if new_head and re.search(classifier, name)]
    result, missing, shapes = {}, [], []
    for key, name in targets.items():
        if name in head:
            continue
        if key in arrays:
            array = fit(key, arrays.pop(key), wanted[name], naming)
            if array.shape == tuple(wanted[name]):
                result[name] = array.astype(np.float32)
            else:
                shapes.append(f"{name} is {list(array.shape)} instead of {list(wanted[name])}")
        elif naming.default_value(key, source_format) is not None:
            result[name] = np.full(
                wanted[name], naming.default_value(key, source_format), np.float32
            )
        else:
            missing.append(name)
    parts = [listing("missing", missing), listing("unknown", sorted(arrays))]
    report = "; ".join(part for part in [*parts, listing("shape", shapes)] if part)
    if report:
        wrong = [name for name in wanted if re.search(classifier, name)]
        advice = "; is it of another network, or of other settings under model?"
        if any(name in report for name in wrong):
            advice = (
                "; model.num_classes must be its own, or --new_head leaves the classifier fresh"
            )
        raise ValueError(f"the file does not fit this network: {report}{advice}")
    return Converted(result, [prefix + name for name in dropped], head)


def read_naming(source: Iterable[str], naming: Naming) -> tuple[str, str]:
    """(prefix of all names, naming of what follows it).

    A wrapper's word may belong to a naming, so that of the shortest names that are known counts.
    Raises ValueError where none is.
    """
    prefixes = [""]
    while result := [p for p in PREFIXES if all(n.startswith(prefixes[0] + p) for n in source)]:
        if not source:
            break
        prefixes.insert(0, prefixes[0] + result[0])
    for prefix in prefixes:
        try:
            return prefix, naming.detect_format([name[len(prefix) :] for name in source])
        except ValueError as error:
            reason = error
    raise reason


def spell(source: dict, naming: Naming, source_format: str, dropped_head: str, norms: set) -> tuple:
    """The arrays of a source under canonical names, and the source's names that are dropped.

    `norms` are the batch and layer norms of the network; the source's own batch norms are seen.
    """
    batch_norms = {name.rpartition(".")[0] for name in source if name.endswith(".running_mean")}
    arrays, dropped = {}, []
    for name, array in source.items():
        module, _, leaf = name.rpartition(".")
        key = naming.canonical_name(name, source_format)
        if key is None or leaf == "num_batches_tracked" or re.search(dropped_head, key):
            dropped.append(name)
            continue
        inside = key.rpartition(".")[0]
        if module in batch_norms or inside in norms:
            key = f"{inside}.{NORM.get(leaf, leaf)}"
        if key in arrays:
            raise ValueError(f"the file has {name} twice, under two spellings")
        arrays[key] = array
    return arrays, dropped


def fit(key: str, array: np.ndarray, wanted: tuple, naming: Naming) -> np.ndarray:
    """The array, made to fit if the network's `fit_shape` knows how."""
    if array.shape == tuple(wanted):
        return array
    way = naming.fit_shape(key, array.shape, tuple(wanted))
    if way == "mean_channels":
        return np.repeat(array.mean(axis=1, keepdims=True), wanted[1], axis=1)
    if way == "diagonal":  # one kernel a channel, in a dense one that is 0 elsewhere
        dense = np.zeros(wanted, array.dtype)
        dense[np.arange(len(array)), np.arange(len(array))] = array[:, 0]
        return dense
    if way == "resize_rows":
        return resize_table(array, wanted[0])
    return array
