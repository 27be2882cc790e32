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
from utils.networks import find_network
from utils.weights import checkpoint
from utils.weights.convert import convert, read_source


def main(room: str, cfg, source: str, target: str, new_head: bool) -> None:
    network = find_network(room)
    net = network.model.build_network(**cfg.model_arguments())
    wanted = {name: tuple(p.shape) for name, p in checkpoint.weights_of(net).items()}
    try:
        arrays = read_source(Path(source))
        done = convert(arrays, wanted, network, new_head)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if source in text else f"{source}: {text}") from None
    target = Path(target if target.endswith(".ckpt") else target + ".ckpt")
    with files.explained(target, "--target"):
        target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {k: Parameter(Tensor(v), name=k) for k, v in done.arrays.items()}
    checkpoint.save(target, arrays, "--target")
    report = {"matched": len(done.arrays), "dropped": done.dropped, "missing": done.missing}
    print(json.dumps({**report, "target": str(target)}))


if __name__ == "__main__":
    cli.run_room(main, __doc__, ["source", "target"], flags=["new_head"])
