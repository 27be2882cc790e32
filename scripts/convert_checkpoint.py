"""Converts a PyTorch checkpoint to this zoo's, without PyTorch.

    python scripts/convert_checkpoint.py --network tsm --config_path Y --source S --target T
        [--new_head] [--section.key=value ...]

S is a .pth, .pt, .pth.tar, .pyth, .safetensors or .ckpt file. Every weight of S and of the network
must match; with --new_head the classifier is not converted (its weights are then not in T). The
last line of stdout is one JSON object: matched, dropped, missing.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils import cli  # isort: split

from mindspore import Parameter, Tensor

from utils import files
from utils.networks import Network
from utils.weights import checkpoint
from utils.weights.convert import convert, read_source


def main(network: Network, cfg, *, source: Path, target: Path, new_head: bool = False) -> None:
    net = network.model.build_network(**cfg.model_arguments())
    shapes = {name: tuple(p.shape) for name, p in checkpoint.weights_of(net).items()}
    try:
        converted = convert(read_source(source), shapes, network, new_head)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(source) in text else f"{source}: {text}") from None
    target = target if target.suffix == ".ckpt" else target.with_name(f"{target.name}.ckpt")
    with files.report_write_errors(target, "--target"):
        target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {k: Parameter(Tensor(v), name=k) for k, v in converted.arrays.items()}
    checkpoint.save(target, arrays, "--target")
    report = {"matched": len(converted.arrays), "dropped": converted.dropped}
    print(json.dumps({**report, "missing": converted.missing, "target": str(target)}))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
