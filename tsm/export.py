"""Exports a TSM checkpoint, reloads the file and compares it with the network.

    python tsm/export.py --config_path Y --checkpoint_path C --format mindir --target F

The exported network takes normalised float32 clips (N, T, C, crop, crop), N = eval.batch. The last
line of stdout is one JSON object: format, file, input, max_abs_difference; a difference above 1e-4
of the scores' spread is an error.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

from tsm.config import Config
from tsm.dataset import clip_shape
from tsm.lr_generator import HEAD
from tsm.model import TSM
from utils import command, export, inference, run_log, runtime
from utils.metrics import print_result


def main(cfg: Config, checkpoint_path: str, format: str, target: str) -> None:
    rt = runtime.start(cfg.run)
    run_log.start_log(rt)
    net = inference.load(TSM, cfg, checkpoint_path, HEAD)
    shape = (cfg.eval.batch, *clip_shape(cfg.data, cfg.test_crop))
    print_result(export.export(net, shape, format, Path(target)), rt)


if __name__ == "__main__":
    command.run(main, Config, __doc__, ["checkpoint_path", "format", "target"])
