#!/usr/bin/env python3
"""Converts a checkpoint of PyTorch or MindSpore to this zoo's, without PyTorch.

    python scripts/convert_checkpoint.py --config_path Y --source S --target T [--network N]
        [--new_head] [--key KEY] [--rename REGEX=REPLACEMENT ...] [--to mindspore|pytorch]
        [--overwrite] [--section.key=value ...]

S is a file of PyTorch, safetensors, numpy (.npz) or MindSpore; its content tells which, not its
name. If S has several sets of weights, as averaged ones, KEY chooses: their key in S, as
--key=state_dict_ema, or what their names begin with. --rename (repeatable) then replaces what
matches in the names, for those that the zoo does not know. Every weight of S and of the network
must match; with --new_head the classifier is not converted (its weights are then not in T). The
last line of stdout is one JSON object: the number of matched parameters, the number of dropped
arrays of each kind (as the optimizer's), the number of batch norms whose eps was changed to this
zoo's (`utils/weights/mindspore_checkpoint.py`), the number of weights that T has as newly
initialised ones (non-local blocks, from ImageNet), the missing parameters.

With `--to pytorch`, S is a checkpoint of this zoo, and T a file of PyTorch, .safetensors or .pth:
the original network loads it with `strict=True`. PyTorch is not needed, nor Y if S names its own.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Optional

import numpy as np
from mindspore import Parameter, Tensor

from utils import cli, log
from utils.evaluate.label_space import list_class_names
from utils.files import check_target, report_write_errors, write_beside
from utils.inference.checkpoint import build_network
from utils.messages import join_names
from utils.networks import Network
from utils.runtime import Runtime
from utils.settings import NetworkConfig
from utils.weights import checkpoint
from utils.weights.convert import convert, convert_back, list_shards, read_source
from utils.weights.description import describe
from utils.weights.mindspore_checkpoint import check_padding

# Of files of PyTorch
SUFFIXES = [".safetensors", ".pth", ".pyth", ".pt", ".tar"]
STORAGES = {"float32": "FloatStorage", "int64": "LongStorage"}
FOLDER = "archive"  # of the records in the zip


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    source: Path,
    target: Path,
    new_head: bool = False,
    key: str = "",
    rename: Optional[list[str]] = None,
    to: Literal["mindspore", "pytorch"] = "mindspore",
    overwrite: bool = False,
) -> None:
    if to == "pytorch":
        if new_head or key or rename:
            raise ValueError("--new_head, --key and --rename are not for --to=pytorch")
        write_for_pytorch(network, cfg, source, target, overwrite)
        return
    target = target if target.suffix == ".ckpt" else target.with_name(f"{target.name}.ckpt")
    check_target(target, [source, *list_shards(source)], overwrite=overwrite)
    log.start_log(Runtime())

    # Read the file; find the network and its parameters.
    loaded = read_source(source, key, rename or ())
    weights = checkpoint.weights_of(build_network(network, cfg))
    shapes = {name: tuple(p.shape) for name, p in weights.items()}

    # Put the arrays under our names, and check them.
    try:
        converted = convert(loaded.arrays, shapes=shapes, network=network, new_head=new_head)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    if weights.padding:
        check_padding(source, loaded.padding, weights.padding)

    # Write the checkpoint, with its description.
    arrays = {k: Parameter(Tensor(v), name=k) for k, v in converted.arrays.items()}
    arrays |= {name: weights[name].init_data() for name in converted.initial}
    classes = {} if new_head else list_class_names(network.list_label_spaces(cfg), target.parent)
    description = describe(network.name, cfg, classes=classes, source=source.name)
    arrays = checkpoint.Weights(arrays, weights.padding)
    checkpoint.save(target, arrays, "--target", description)

    # {kind: number}. The kind is the first part of a name, as in `moments`; the counters of
    # PyTorch's batch norms are one kind.
    counter = "num_batches_tracked"
    names = [*loaded.dropped, *converted.dropped]
    dropped = Counter(counter if n.endswith(counter) else n.partition(".")[0] for n in names)
    counts = {"matched": len(converted.arrays), "dropped": dropped}
    counts |= {"changed_eps": loaded.changed_eps, "initial": len(converted.initial)}
    counts["missing"] = converted.missing
    print(json.dumps({**counts, "target": str(target)}))


def write_for_pytorch(
    network: Network, cfg: NetworkConfig, source: Path, target: Path, overwrite: bool
) -> None:
    """Writes float32 and int64 arrays without PyTorch; the suffix decides the format.

    `torch.load(target, weights_only=True)` or `safetensors.torch.load_file` returns the state dict.
    If the file cannot be written, an old one stays.
    """
    if target.suffix not in SUFFIXES:
        raise ValueError(f"--target: {target} does not end in {join_names(SUFFIXES, 5)}")
    check_target(target, [source], overwrite=overwrite)
    log.start_log(Runtime())
    net = build_network(network, cfg)
    checkpoint.load(net, source)
    arrays = convert_back(net, network.parameter_names(), cfg.model_arguments())
    with report_write_errors(target, "--target"), write_beside(target) as temporary:
        if target.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file(arrays, temporary, metadata={"format": "pt"})
        else:
            write_zip(temporary, arrays)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    print(json.dumps({"written": len(arrays), "target": str(target)}))


def write_zip(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """A pickle of {name: tensor}, and a record with the numbers of every tensor.

    A tensor is a call of PyTorch's function that makes one over a record.
    """
    content = b"\x80\x02}("
    for key, (name, array) in enumerate(arrays.items()):
        strides = np.empty(array.shape, np.uint8).strides  # in elements, of rows one after another
        storage = encode("storage") + f"ctorch\n{STORAGES[array.dtype.name]}\n".encode()
        storage += b"".join(map(encode, (str(key), "cpu", array.size)))
        place = b"".join(map(encode, (0, array.shape, strides, False)))
        content += encode(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQ"
        content += place + b"ccollections\nOrderedDict\n)RtR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{FOLDER}/data.pkl", content + b"u.")
        archive.writestr(f"{FOLDER}/byteorder", b"little")
        for key, array in enumerate(arrays.values()):
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            archive.writestr(f"{FOLDER}/data/{key}", little.tobytes())
        archive.writestr(f"{FOLDER}/version", b"3\n")


def encode(value: Any) -> bytes:
    """A plain value as a pickle, without its first and last opcodes."""
    return pickle.dumps(value, 2)[2:-1]


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
