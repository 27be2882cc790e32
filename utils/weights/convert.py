"""Converts weights of other code bases to this zoo's; every name on both sides must match.

A network's `convert.py` maps the names. The rules for all networks are here: norms change their
leaf names, counters of batches are dropped, arrays keep their layout. `mindspore_checkpoint.py` has
the rules for files of MindSpore: state of the training, padding, eps.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mindspore import nn
from safetensors import safe_open

from utils.messages import escape_control, find_nearest, join_names
from utils.nn.layers import SYMMETRIC
from utils.weights import checkpoint_file, torch_reader
from utils.weights.checkpoint import (
    advise_positions,
    fit_array,
    join_reports,
    list_damaged,
    weights_of,
)
from utils.weights.checkpoint_file import FOREIGN_KINDS, HEAD, find_kind, read_bytes
from utils.weights.mindspore_checkpoint import (
    drop_training_state,
    find_padding,
    unify_eps,
)
from utils.weights.parameter_names import ParameterNames

if TYPE_CHECKING:
    from utils.networks import Network

NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
# What training code keeps beside the network: weights of classes in a loss, counts of a metric.
BESIDE = re.compile(r"[^.]*(criterion|loss|metric|acc)[^.]*\.")
MAX_LISTED = 3  # names in a message
RENAME = "; --rename REGEX=REPLACEMENT changes the file's names"
MAX_PREFIX = 200  # characters


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


def read_source(path: Path, key: str = "", renames: Sequence[str] = ()) -> Source:
    """The weights in a PyTorch, safetensors, npz or MindSpore file; its content tells which.

    `key` chooses those under a key of the file, or with names that begin with it
    (`torch_reader.load_state`). `renames` then change the names (`rename`).
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    texts: dict[str, str] = {}
    kind = find_kind(read_bytes(path, HEAD))
    if ".index." in path.name and path.suffix == ".json":
        arrays = read_shards(path)
        arrays = torch_reader.select_names(arrays, key) if key else arrays
    elif kind in FOREIGN_KINDS or (not kind and path.suffix != ".ckpt"):
        arrays = torch_reader.load_state(path, key)
        if kind == "safetensors":  # those of this zoo say how the network pads
            with safe_open(str(path), "numpy") as opened:
                texts = opened.metadata() or {}
            texts |= checkpoint_file.pop_texts(arrays)  # saved by a program from a checkpoint
    else:
        file = checkpoint_file.read_checkpoint(path)
        file.warn_without_checksum()
        arrays, texts = file.arrays, file.texts
        arrays = torch_reader.select_names(arrays, key) if key else arrays
    if not arrays:
        raise ValueError(f"{path}: no name in it begins with {key}.")
    arrays, dropped = drop_training_state(arrays)
    for text in renames:
        arrays = rename(arrays, text)
    padding = find_padding(path, arrays, texts)
    return Source(arrays, dropped=dropped, padding=padding, changed_eps=unify_eps(arrays))


def read_shards(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the files that an index names: {"weight_map": {name: file beside the index}}.

    Raises ValueError if a file is missing, elsewhere, or has other names than the index says.
    """
    shards: dict[str, set[str]] = {}
    try:
        for name, file in json.loads(path.read_bytes())["weight_map"].items():
            shards.setdefault(file, set()).add(name)
        is_valid = bool(shards) and all(file == Path(file).name for file in shards)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"{path}: is no index: its weight_map must name files beside it")
    arrays: dict[str, np.ndarray] = {}
    for file, names in shards.items():
        part = torch_reader.load_state(path.with_name(file))
        if different := sorted(names ^ part.keys()):
            text = escape_control(join_names(different, MAX_LISTED))
            raise ValueError(f"{path.with_name(file)}: differs from its index in {text}")
        arrays |= part
    return arrays


def rename(arrays: dict[str, np.ndarray], text: str) -> dict[str, np.ndarray]:
    """The arrays with what matches REGEX in their names replaced; `text` is REGEX=REPLACEMENT.

    The last `=` separates them. Raises ValueError if REGEX is none or matches no name, or if two
    names become the same.
    """
    pattern, separator, replacement = text.rpartition("=")
    if not separator:
        raise ValueError(f"--rename {text}: must be REGEX=REPLACEMENT")
    origins: dict[str, str] = {}
    matches = 0
    for name in arrays:
        try:
            renamed, count = re.subn(pattern, replacement, name)
        except (re.error, IndexError) as error:
            raise ValueError(f"--rename {text}: not a regular expression: {error}") from None
        if renamed in origins:
            both = f"{origins[renamed]} and {name}"
            raise ValueError(f"--rename {text}: {both} would both be {renamed!r}")
        origins[renamed] = name
        matches += count
    if not matches:
        first = join_names([*arrays], MAX_LISTED)
        raise ValueError(f"--rename {text}: no name of the file matches; they are {first}")
    return {renamed: arrays[name] for renamed, name in origins.items()}


def convert(
    source: dict[str, np.ndarray],
    shapes: dict[str, tuple[int, ...]],
    network: "Network",
    new_head: bool = False,
) -> Converted:
    """Puts the arrays of `source` under our names; `shapes` is {our name: shape}.

    With `new_head` the classifier of `network` is dropped on both sides. If the names of the
    network have a prefix, those of BESIDE without it are dropped. Raises ValueError if another name
    is missing on either side, twice in `source`, or has another shape, or if a weight has integers
    or numbers that are not finite.
    """
    naming = network.parameter_names()
    classifier = network.classifier
    names = {naming.canonical_name(name): name for name in shapes}
    prefix, source_format = detect_prefix_and_format(source, naming, names)
    norms = {key[: -len(".gamma")] for key in names if key.endswith(".gamma")}
    rules: dict[str, Any] = {"naming": naming, "source_format": source_format, "norms": norms}
    rules["dropped_head"] = classifier if new_head else "$^"
    bare = {name[len(prefix) :]: value for name, value in source.items() if name.startswith(prefix)}
    arrays, dropped = rename_arrays(bare, **rules)
    dropped = [prefix + name for name in dropped]
    beside = [name for name in source if not name.startswith(prefix)]
    dropped += [name for name in beside if BESIDE.match(name)]
    kept = {name: source[name] for name in beside if not BESIDE.match(name)}
    others, dropped_others = rename_arrays(kept, **rules)
    dropped += dropped_others
    twice = sorted({*others} & {*arrays})
    arrays = {**others, **arrays}
    head = [name for name in shapes if new_head and re.search(classifier, name)]
    converted = {}
    missing = []
    initial = []
    differing = {}
    quantized = []  # their scales are unknown names, or in no array
    for key, name in names.items():
        if name in head:
            continue
        shape = tuple(shapes[name])
        default = naming.default_value(key, source_format)
        if key in arrays:
            array = arrays.pop(key)
            if array.dtype.kind != "f":
                quantized.append(f"{name} is {array.dtype}")
            array = fit_array(key, array=array, shape=shape, naming=naming)
            converted[name] = array
            if array.shape != shape:
                differing[name] = (array.shape, shape)
        elif default is not None:
            converted[name] = np.full(shape, default, np.float32)
        elif naming.is_new(key, source_format):
            initial.append(name)
        else:
            missing.append(name)
    unknown = [describe_unknown(name, names) for name in sorted(arrays)]
    wrong = [f"{name} is {[*its]} instead of {[*ours]}" for name, (its, ours) in differing.items()]
    if quantized:
        what = join_names(quantized, MAX_LISTED)
        raise ValueError(f"its weights are quantized, {what}: convert the float32 checkpoint")
    report = join_reports(missing=missing, unknown=unknown, shape=wrong, twice=twice)
    if report:
        advice = "; is it of another network, or of other settings under model?"
        if not twice and any(name in report for name in shapes if re.search(classifier, name)):
            advice = "; model.num_classes must be its own"
            advice += ", or --new_head leaves the classifier newly initialised"
        elif others and prefix:
            advice = f"; --key {prefix[:-1]} takes only the weights whose names begin with {prefix}"
        advice = advise_positions(differing) or advice
        advice += RENAME if missing and unknown else ""
        raise ValueError(f"the file does not fit this network: {report}{advice}")
    damaged = list_damaged(converted)
    if damaged:
        raise ValueError(
            f"the file has weights that are NaN or infinite, {join_names(damaged, MAX_LISTED)}: "
            "its training has diverged, or its numbers are beyond float32; take another file"
        )
    return Converted(converted, dropped=dropped, missing=head, initial=initial)


def describe_unknown(name: str, names: Iterable[str]) -> str:
    """A name of the source with the nearest of ours."""
    near = find_nearest(name, names)
    return f"{name} (nearest: {near})" if near else name


def detect_prefix_and_format(
    source: Iterable[str], naming: ParameterNames, names: Collection[str] = ()
) -> tuple[str, str]:
    """(prefix of the names of the network, format of the rest of these names).

    `names` are the canonical names of the network. The prefix is that with which most of its
    modules are there; without `names`, all names have it. A wrapper's prefix may be part of a
    format, so the longest one of several that are as good is taken. Raises ValueError if there is
    none, or if two networks in the source are as good.
    """
    source = list(source)
    modules = {name.rpartition(".")[0] for name in names}
    best: list[tuple[str, str]] = []
    most = 0
    reason = "it has no names"
    # What many of the names begin with, up to a dot: the longest first, and last the empty prefix.
    least = len(modules) // 2 if modules else len(source)
    counts = Counter(
        name[: dot.end()] for name in source for dot in re.finditer(r"\.", name[:MAX_PREFIX])
    )
    prefixes = [prefix for prefix, count in counts.items() if count >= least]
    for prefix in [*sorted(prefixes, key=len, reverse=True), ""] if source else []:
        bare = [name[len(prefix) :] for name in source if name.startswith(prefix)]
        try:
            source_format = naming.detect_format(bare)
        except ValueError as error:
            reason = str(error)
            continue
        renamed = {naming.canonical_name(name, source_format) or "" for name in bare}
        count = len(modules & {name.rpartition(".")[0] for name in renamed}) if modules else 1
        if count > most:
            best = []
            most = count
        if count == most and not any(longer.startswith(prefix) for longer, _ in best):
            best.append((prefix, source_format))
    if not best:
        strange = [name for name in source if name.rpartition(".")[0] not in modules] or source
        examples = [describe_unknown(escape_control(name), names) for name in strange[:MAX_LISTED]]
        ours = f"; ours are {join_names(list(names), MAX_LISTED)}" if names else ""
        raise ValueError(f"{reason}; the first are {', '.join(examples)}{ours}{RENAME}")
    if len(best) > 1:
        several = escape_control(join_names([prefix for prefix, _ in best], MAX_LISTED))
        raise ValueError(f"the file has several networks, {several}: --key chooses one")
    return best[0]


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


def map_torch_names(net: nn.Cell) -> dict[str, str]:
    """{name here: name in PyTorch} of every weight and buffer. Those of norms differ."""
    norms = {p.name.rpartition(".")[0] for p in net.get_parameters() if p.name.endswith(".gamma")}
    torch_leaves = {ours: theirs for theirs, ours in NORM.items()}
    names = {}
    for name in weights_of(net):
        module, _, leaf = name.rpartition(".")
        names[name] = f"{module}.{torch_leaves[leaf]}" if module in norms else name
    return names


def convert_back(
    net: nn.Cell, naming: ParameterNames, settings: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The weights of a network under the names of its original in PyTorch, for `strict=True`.

    `settings` are the arguments with which it was built. PyTorch's batch norms also count their
    batches: 0 here. Raises ValueError for a network that pads as only MindSpore does.
    """
    weights = weights_of(net)
    if weights.padding not in ("", SYMMETRIC):
        setting = f"{checkpoint_file.PADDING}={weights.padding}"
        raise ValueError(f"{setting}: no network in PyTorch pads so")
    arrays = {}
    for name, torch_name in map_torch_names(net).items():
        theirs = naming.original_name(torch_name, settings)
        arrays[theirs] = weights[name].asnumpy()
        if theirs.endswith(".running_var"):
            counter = theirs.removesuffix("running_var") + "num_batches_tracked"
            arrays[counter] = np.zeros((), np.int64)
    return arrays
