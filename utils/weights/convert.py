"""Converts weights of other code bases to this zoo's; every name on both sides must match.

A network's `convert.py` maps the names. The rules for all networks are here: norms change their
leaf names, counters of batches are dropped, arrays keep their layout. `mindspore_checkpoint.py` has
the rules for files of MindSpore: state of the training, padding, eps.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from utils.nn.layers import resize_table
from utils.nn.padding import SYMMETRIC
from utils.weights import checkpoint_file, torch_reader
from utils.weights.checkpoint import join_reports
from utils.weights.mindspore_checkpoint import drop_training_state, find_padding, unify_eps
from utils.weights.parameter_names import ParameterNames

if TYPE_CHECKING:
    from utils.networks import Network

NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
PREFIXES = ("module.", "model.", "backbone.", "_orig_mod.")  # that wrappers put before names


class Converted(NamedTuple):
    """The result of a conversion: arrays under our names."""

    arrays: dict[str, np.ndarray]
    dropped: list[str]  # names of the source that are dropped on purpose
    missing: list[str]  # our names of the classifier, which is left out
    initial: list[str]  # our names that stay newly initialised, in the new file


class Source(NamedTuple):
    """The weights of a file, under its own names."""

    arrays: dict[str, np.ndarray]
    dropped: list[str]  # names in the file that are no weights
    padding: str  # of the network, if it is a ResNet
    changed_eps: int  # batch norms whose eps was not that of this zoo


def read_source(path: Path) -> Source:
    """The weights in a PyTorch, safetensors or MindSpore file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.suffix != ".ckpt":
        return Source(torch_reader.load_state(path), dropped=[], padding=SYMMETRIC, changed_eps=0)
    content = checkpoint_file.read_all(path)
    arrays, dropped = drop_training_state(content.arrays)
    padding = find_padding(path, arrays, content.texts)
    return Source(arrays, dropped=dropped, padding=padding, changed_eps=unify_eps(arrays))


def convert(
    source: dict[str, np.ndarray],
    shapes: dict[str, tuple[int, ...]],
    network: "Network",
    new_head: bool = False,
) -> Converted:
    """Puts the arrays of `source` under our names; `shapes` is {our name: shape}.

    With `new_head` the classifier of `network` is dropped on both sides. Raises ValueError if
    another name is missing on either side, twice in `source`, or has another shape.
    """
    naming = network.get_parameter_names()
    classifier = network.classifier
    prefix, source_format = detect_prefix_and_format(source, naming)
    bare = {name[len(prefix) :]: array for name, array in source.items()}
    names = {naming.canonical_name(name): name for name in shapes}
    norms = {key[: -len(".gamma")] for key in names if key.endswith(".gamma")}
    dropped_head = classifier if new_head else "$^"
    arrays, dropped = rename_arrays(
        bare, naming=naming, source_format=source_format, dropped_head=dropped_head, norms=norms
    )
    head = [name for name in shapes if new_head and re.search(classifier, name)]
    converted = {}
    missing = []
    initial = []
    differing = []
    for key, name in names.items():
        if name in head:
            continue
        shape = tuple(shapes[name])
        default = naming.default_value(key, source_format)
        if key in arrays:
            array = fit_array(key, array=arrays.pop(key), shape=shape, naming=naming)
            converted[name] = array
            if array.shape != shape:
                differing.append(f"{name} is {list(array.shape)} instead of {list(shape)}")
        elif default is not None:
            converted[name] = np.full(shape, default, np.float32)
        elif naming.is_new(key, source_format):
            initial.append(name)
        else:
            missing.append(name)
    report = join_reports(missing=missing, unknown=sorted(arrays), shape=differing)
    if report:
        advice = "; is it of another network, or of other settings under model?"
        if any(name in report for name in shapes if re.search(classifier, name)):
            advice = "; model.num_classes must be its own"
            advice += ", or --new_head leaves the classifier newly initialised"
        raise ValueError(f"the file does not fit this network: {report}{advice}")
    dropped = [prefix + name for name in dropped]
    return Converted(converted, dropped=dropped, missing=head, initial=initial)


def detect_prefix_and_format(source: Iterable[str], naming: ParameterNames) -> tuple[str, str]:
    """(prefix of all names, format of the rest of the names).

    A wrapper's prefix may be part of a format, so the shortest names of a known format are used.
    Raises ValueError if there is none.
    """
    prefixes = [""]
    while source:
        longer = [prefixes[0] + prefix for prefix in PREFIXES]
        longer = [p for p in longer if all(name.startswith(p) for name in source)]
        if not longer:
            break
        prefixes.insert(0, longer[0])
    for prefix in prefixes:
        try:
            return prefix, naming.detect_format([name[len(prefix) :] for name in source])
        except ValueError as error:
            reason = error
    raise reason


def rename_arrays(
    source: dict, naming: ParameterNames, source_format: str, dropped_head: str, norms: set
) -> tuple:
    """The arrays of a source under canonical names, and the source's names that are dropped.

    `norms` are the batch and layer norms of the network. The batch norms of the source are those
    with running statistics.
    """
    batch_norms = {name.rpartition(".")[0] for name in source if name.endswith(".running_mean")}
    arrays = {}
    dropped = []
    for name, array in source.items():
        module, _, leaf = name.rpartition(".")
        key = naming.canonical_name(name, source_format)
        if key is None or leaf == "num_batches_tracked" or re.search(dropped_head, key):
            dropped.append(name)
            continue
        our_module = key.rpartition(".")[0]
        if module in batch_norms or our_module in norms:
            key = f"{our_module}.{NORM.get(leaf, leaf)}"
        if key in arrays:
            raise ValueError(f"the file has {name} twice, under two spellings")
        arrays[key] = array
    return arrays, dropped


def fit_array(key: str, array: np.ndarray, shape: tuple, naming: ParameterNames) -> np.ndarray:
    """The array as float32 of `shape`; unchanged if the network has no rule for its shape."""
    rule = naming.fit_shape(key, array.shape, shape) if array.shape != shape else None
    if rule == "mean_channels":
        array = np.repeat(array.mean(axis=1, keepdims=True), shape[1], axis=1)
    elif rule == "diagonal":  # one kernel per channel, in a dense kernel that is 0 elsewhere
        dense = np.zeros(shape, array.dtype)
        dense[np.arange(len(array)), np.arange(len(array))] = array[:, 0]
        array = dense
    elif rule == "resize_rows":
        array = resize_table(array, shape[0])
    elif rule == "reshape":
        array = array.reshape(shape)
    return array.astype(np.float32) if array.shape == shape else array
