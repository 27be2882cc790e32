"""Exports a checkpoint, reloads the file and compares it with the network.

    python mvit_multi/export.py --config_path Y --checkpoint_path C --format mindir --target F

The exported network takes normalised float32 clips (N, 3, T, crop, crop), N = eval.batch, and gives
the probabilities of all heads side by side. The last line of stdout is one JSON object: format,
file, input, max_abs_difference; a difference above 1e-4 of their spread is an error.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from mvit_multi.config import Config
from mvit_multi.dataset import one_clip
from mvit_multi.lr_generator import HEAD
from mvit_multi.model import MViT, SideBySide
from utils import command, export, inference, run_log, runtime
from utils.metrics import print_result


def main(cfg: Config, checkpoint_path: str, format: str, target: str) -> None:
    rt = runtime.start(cfg.run)
    run_log.start_log(rt)
    net = SideBySide(inference.load(MViT, cfg, checkpoint_path, HEAD))
    shape = (cfg.eval.batch, *one_clip(cfg.data))
    print_result(export.export(net, shape, format, Path(target)), rt)


if __name__ == "__main__":
    command.run(main, Config, __doc__, ["checkpoint_path", "format", "target"])
