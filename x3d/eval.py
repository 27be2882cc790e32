"""Evaluates an X3D checkpoint.

    python x3d/eval.py --config_path Y --checkpoint_path C [--report DIR] [--eval.crops=3 ...]

The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, videos, unreadable,
views, checkpoint, seconds; it is also written next to the checkpoint. Exit status 1 if videos could
not be read, unless eval.allow_unreadable is true. `--report` writes tables and plots of every
video, class and probability into a folder: docs/evaluation.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils import cli, log, runtime
from utils.evaluate.metrics import evaluate, print_result, sum_count, write_result_file
from utils.evaluate.report import report_videos
from utils.export import inference
from x3d.config import Config
from x3d.dataset import EvalVideos, list_annotation_files, read_records
from x3d.model import X3D
from x3d.network import NETWORK
from x3d.predict import build_heads


def main(cfg: Config, *, checkpoint_path: str, report: str = "") -> int:
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    videos = EvalVideos(read_records(cfg, "test"), cfg, rt)
    pages = report_videos(report, videos, list_annotation_files(cfg)[1], build_heads(cfg)[0], rt)
    net = inference.load_network(X3D, cfg, checkpoint_path, NETWORK.classifier)
    result = evaluate(net, videos.dataset(), cfg.model.num_classes, rt, pages.add)
    unreadable = sum_count(videos.unreadable.count, rt)
    views = f"{cfg.eval.clips}x{cfg.eval.crops}"
    result.update(unreadable=unreadable, views=views, checkpoint=str(checkpoint_path))
    write_result_file(checkpoint_path, result, rt)
    print_result(result, rt)
    pages.write(result)
    return 1 if unreadable and not cfg.eval.allow_unreadable else 0


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
