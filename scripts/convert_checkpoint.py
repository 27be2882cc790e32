"""Converts a PyTorch checkpoint to this zoo's, without PyTorch.

    python scripts/convert_checkpoint.py --network tsm --config_path Y --source S --target T
        [--new_head] [--section.key=value ...]

S is a .pth, .pt, .pth.tar, .pyth, .safetensors or .ckpt file. Every name must find its place on
both sides; --new_head leaves the classifier fresh (its weights are then not in T). The last line
of stdout is one JSON object: matched, dropped, missing.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from mindspore import Parameter, Tensor

from utils import cli, files
from utils.networks import Network
from utils.weights import checkpoint
from utils.weights.convert import convert, read_source


def main(network: Network, cfg, *, source: Path, target: Path, new_head: bool = False) -> None:
    net = network.model.build_network(**cfg.model_arguments())
    wanted = {name: tuple(p.shape) for name, p in checkpoint.weights_of(net).items()}
    try:
        done = convert(read_source(source), wanted, network, new_head)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(source) in text else f"{source}: {text}") from None
    target = target if target.suffix == ".ckpt" else target.with_name(f"{target.name}.ckpt")
    with files.explained(target, "--target"):
        target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {k: Parameter(Tensor(v), name=k) for k, v in done.arrays.items()}
    checkpoint.save(target, arrays, "--target")
    report = {"matched": len(done.arrays), "dropped": done.dropped, "missing": done.missing}
    print(json.dumps({**report, "target": str(target)}))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
