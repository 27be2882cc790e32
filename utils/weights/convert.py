"""Converts weights of other code bases to this zoo's; every name on both sides must match.

scripts/convert_checkpoint.py does this in order: `read_source` reads the file and drops the state
of its training; `convert` finds prefix and code base by the names, maps these by the rules of
the network's `convert.py`, and checks; `checkpoint.save` writes. The rules for all networks are
here: norms change their leaf names, counters of batches are dropped, arrays keep their layout.
`mindspore_checkpoint.py` has those for files of MindSpore: state of the training, padding, eps.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mindspore import nn
from safetensors import safe_open

from utils.files import read_json
from utils.messages import escape_control, join_names
from utils.nn.layers import SYMMETRIC
from utils.weights import checkpoint_file
from utils.weights.checkpoint import check_weights, fit_array, name_nearest, weights_of
from utils.weights.checkpoint_file import FOREIGN_KINDS, HEAD, find_kind, read_bytes
from utils.weights.mindspore_checkpoint import drop_training_state, find_padding, unify_eps
from utils.weights.parameter_names import ParameterNames
from utils.weights.torch_reader import load_state, select_names

if TYPE_CHECKING:
    from utils.networks import Network

NORM = {"weight": "gamma", "bias": "beta"}
NORM |= {"running_mean": "moving_mean", "running_var": "moving_variance"}
# What training code keeps beside the network: weights of classes in a loss, counts of a metric.
BESIDE = re.compile(r"[^.]*(criterion|loss|metric|acc)[^.]*\.")
MAX_LISTED = 3  # names in a message
RENAME = (
    "; --key PREFIX takes only the names with a prefix, --rename REGEX=REPLACEMENT changes names"
)
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
    changed_eps: int  # batch norms whose eps was not this zoo's


def read_source(path: Path, key: str = "", renames: Sequence[str] = ()) -> Source:
    """The weights in a PyTorch, safetensors, npz or MindSpore file; its content tells which.

    `key` chooses those under a key of the file, or with names that begin with it
    (`torch_reader.load_state`). `renames` then change the names (`rename`).
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    kind = find_kind(read_bytes(path, HEAD))
    texts: Mapping[str, str] = {}
    if shards := list_shards(path):
        arrays = select_names(read_shards(path, shards), key)
    elif kind in FOREIGN_KINDS or (not kind and path.suffix != ".ckpt"):
        arrays = load_state(path, key)
        if kind == "safetensors":  # this zoo's say how the network pads
            with safe_open(str(path), "numpy") as opened:
                texts = opened.metadata() or {}
            texts |= checkpoint_file.pop_texts(arrays)  # saved by a program from a checkpoint
    else:
        file = checkpoint_file.read_checkpoint(path)
        arrays = select_names(file.arrays, key)
        texts = file.texts
    if not arrays:
        raise ValueError(f"{path}: no name in it begins with {key}.")
    arrays, dropped = drop_training_state(arrays)
    for text in renames:
        arrays = rename(arrays, text)
    padding = find_padding(path, arrays, texts)
    return Source(arrays, dropped=dropped, padding=padding, changed_eps=unify_eps(arrays))


def list_shards(path: Path) -> dict[Path, set[str]]:
    """The names in each file of an index, {"weight_map": {name: file beside it}}; {} for others.

    Raises ValueError for an index that names no files, or files elsewhere.
    """
    if ".index." not in path.name or path.suffix != ".json":
        return {}
    files = read_json(path, str(path)).get("weight_map")
    files = files if isinstance(files, dict) else {}
    if not files or not all(isinstance(f, str) and f == Path(f).name for f in files.values()):
        raise ValueError(f"{path}: is no index: its weight_map must name files beside it")
    shards: dict[Path, set[str]] = {}
    for name, file in files.items():
        shards.setdefault(path.with_name(file), set()).add(name)
    return shards


def read_shards(path: Path, shards: dict[Path, set[str]]) -> dict[str, np.ndarray]:
    """The arrays of the shards of an index.

    Raises ValueError if one is missing, or has other names than the index says.
    """
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(shards):
        part = load_state(file)
        if part.keys() != shards[file]:
            raise ValueError(f"{file}: has other names than its index {path}")
        arrays |= part
    return arrays


def rename(arrays: dict[str, np.ndarray], text: str) -> dict[str, np.ndarray]:
    """The arrays with what matches REGEX in their names replaced; `text` is REGEX=REPLACEMENT.

    The last `=` separates them. Raises ValueError if REGEX is none, if no name changes, or if two
    become the same.
    """
    pattern, separator, replacement = text.rpartition("=")
    if not separator:
        raise ValueError(f"--rename {text}: must be REGEX=REPLACEMENT")
    try:
        renamed = {re.sub(pattern, replacement, name): value for name, value in arrays.items()}
    except (re.error, IndexError) as error:
        raise ValueError(f"--rename {text}: not a regular expression: {error}") from None
    if renamed.keys() == arrays.keys() or len(renamed) < len(arrays):
        names = join_names([*arrays], MAX_LISTED)
        raise ValueError(f"--rename {text}: changes none, or makes two the same, of {names}")
    return renamed


def convert(
    source: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
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
    ours = {naming.canonical_name(name): name for name in shapes}
    prefix, source_format = detect_prefix_and_format(source, naming, ours)
    bare = {name: name.removeprefix(prefix) for name in source}
    dropped = [name for name in source if not name.startswith(prefix) and BESIDE.match(name)]

    # The names become canonical ones. Batch norms of the source have running statistics.
    norms = {key.rpartition(".")[0] for key in ours if key.endswith(".gamma")}
    batch_norms = {n.rpartition(".")[0] for n in bare.values() if n.endswith(".running_mean")}
    dropped_head = network.classifier if new_head else "$^"  # matches no name
    arrays: dict[str, np.ndarray] = {}
    for name in [name for name in source if name not in dropped]:
        module, _, leaf = bare[name].rpartition(".")
        key = naming.canonical_name(bare[name], source_format)
        if key is None or leaf == "num_batches_tracked" or re.search(dropped_head, key):
            dropped.append(name)
            continue
        our_module = key.rpartition(".")[0]
        if module in batch_norms or our_module in norms:
            key = f"{our_module}.{NORM.get(leaf, leaf)}"
        if key in arrays:
            raise ValueError(f"the file has {bare[name]} twice, under two spellings{RENAME}")
        arrays[key] = source[name]

    # Each weight of the network gets its array, its default, or stays newly initialised.
    head = [name for name in shapes if new_head and re.search(network.classifier, name)]
    converted = {}
    initial = []
    for key, name in ours.items():
        default = naming.default_value(key, source_format)
        if name in head:
            continue
        if key in arrays:
            converted[name] = fit_array(key, arrays.pop(key), tuple(shapes[name]), naming)
        elif default is not None:
            converted[name] = np.full(shapes[name], default, np.float32)
        elif naming.is_new(key, source_format):
            initial.append(name)
    expected = {n: tuple(s) for n, s in shapes.items() if n not in (*head, *initial)}
    check_weights(
        "the file",
        converted,
        expected,
        network.classifier,
        option="--new_head",
        unknown=sorted(arrays),
        advice=RENAME if arrays else "",
    )
    return Converted(converted, dropped=dropped, missing=head, initial=initial)


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
        examples = [name_nearest(escape_control(name), names) for name in strange[:MAX_LISTED]]
        raise ValueError(f"{reason}; the first are {', '.join(examples)}{RENAME}")
    if len(best) > 1:
        several = escape_control(join_names([prefix for prefix, _ in best], MAX_LISTED))
        raise ValueError(f"the file has several networks, {several}: --key chooses one")
    return best[0]


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
        raise ValueError(f"model.padding={weights.padding}: no network in PyTorch pads so")
    arrays = {}
    for name, torch_name in map_torch_names(net).items():
        theirs = naming.original_name(torch_name, settings)
        arrays[theirs] = weights[name].asnumpy()
        if theirs.endswith(".running_var"):
            counter = theirs.removesuffix("running_var") + "num_batches_tracked"
            arrays[counter] = np.zeros((), np.int64)
    return arrays
