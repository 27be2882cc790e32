"""Writes the scores of a checkpoint for random clips, to compare them with its original's.

    python scripts/analysis/write_scores.py --config_path Y --checkpoint_path C --target F.npz
        [--count 2] [--section.key=value ...]

F.npz has two arrays: `clips`, normalised float32 with the axes of the network, and `scores`
(count, classes), computed in float32 on the CPU. docs/convert.md shows how to compare them. The
last line of stdout is one JSON object with the shapes.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json

import numpy as np

from utils import cli, files, runtime
from utils.config import NetworkConfig, Run
from utils.networks import Network


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    checkpoint_path: Path,
    target: Path,
    count: cli.PositiveInt = 2,
) -> None:
    target = target if target.suffix == ".npz" else target.with_name(f"{target.name}.npz")
    files.check_outputs([target], inputs=[checkpoint_path], option="--target")
    runtime.start(Run(device="CPU"))
    from mindspore import Tensor

    from utils.inference.load import load_checkpoint
    from utils.testing.golden import compute_scores, generate_input

    net = load_checkpoint(network, cfg=cfg, path=str(checkpoint_path), level="O0")
    clips = generate_input(0, (count, *network.get_input_shape(cfg)))
    scores = compute_scores(net, Tensor(clips))
    guard = files.guard_outputs([target], option="--target")
    with files.report_write_errors(target, "--target"), guard:
        np.savez(target, clips=clips, scores=scores)
    shapes = {"clips": clips.shape, "scores": scores.shape}
    print(json.dumps({**shapes, "target": str(target)}))


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
