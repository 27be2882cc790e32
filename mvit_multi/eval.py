"""Evaluates a checkpoint on every data set of the config file, each with its own head and views.

    python mvit_multi/eval.py --config_path Y --checkpoint_path C [--report DIR]
        [--eval.sets=[kinetics] ...]

Prints a table. The last line of stdout is one JSON object: top1, top5, mean_class_accuracy, loss
(means over the data sets), videos, unreadable, sets (metrics and views of each data set),
checkpoint, seconds; it is also written next to the checkpoint. Exit status 1 if videos could not be
read, unless eval.allow_unreadable is true. `--report` writes tables and plots of every video, class
and probability into DIR, one folder for each data set, and a page of all: docs/evaluation.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils.entry import prepare_process

prepare_process(__name__)

from mvit_multi.config import Config
from mvit_multi.dataset import build_eval_videos, get_annotation_file
from mvit_multi.evaluation import evaluate_datasets
from mvit_multi.network import NETWORK
from utils import cli
from utils.evaluate.metrics import write_result_file
from utils.evaluate.report import report_videos
from utils.evaluate.report_page import write_index
from utils.log import print_result
from utils.scoring import evaluation
from utils.scoring.load import load_scorer


def main(cfg: Config, *, checkpoint_path: str, report: str = "") -> int:
    rt = evaluation.start(cfg)
    videos = build_eval_videos(cfg, rt)
    heads = NETWORK.list_label_spaces(cfg)
    pages = {}
    for k, source in videos.items():
        folder = report and f"{report}/{source.settings.name}"
        annotations = get_annotation_file(cfg, k, "test")
        pages[k] = report_videos(folder, videos=source, file=annotations, head=heads[k], rt=rt)
    scorer = load_scorer(NETWORK, cfg, checkpoint_path)
    result = evaluate_datasets(
        scorer,
        videos=videos,
        rt=rt,
        collect={k: page.add for k, page in pages.items()},
        reference=evaluation.load_reference(NETWORK, cfg, checkpoint_path),
    )
    unreadable = sum(metrics["unreadable"] for metrics in result["sets"].values())
    result.update(unreadable=unreadable, checkpoint=str(checkpoint_path))
    write_result_file(checkpoint_path, result, rt)
    if rt.is_main_process:
        print(format_table(result))
    print_result(result, rt)
    parts = {}
    for k, page in pages.items():
        name = videos[k].settings.name
        parts[name] = page.write({**result["sets"][name], "checkpoint": result["checkpoint"]})
    if report and rt.is_main_process:
        write_index(Path(report), sets=parts, average=result)
    return 1 if unreadable and not cfg.eval.allow_unreadable else 0


def format_table(result: dict) -> str:
    """One line for every data set, and one for the average."""
    rows = [f"{'data set':16s} {'views':>6s} {'videos':>8s} {'top-1':>7s} {'top-5':>7s}  95 %"]
    parts = {**result["sets"], "average": {**result, "views": ""}}
    for name, metrics in parts.items():
        top5 = "–" if metrics["top5"] is None else f"{100 * metrics['top5']:.2f}"
        accuracies = f"{100 * metrics['top1']:7.2f} {top5:>7s}"
        if "top1_low" in metrics:
            accuracies += f"  {100 * metrics['top1_low']:.1f} to {100 * metrics['top1_high']:.1f}"
        rows.append(f"{name:16s} {metrics['views']:>6s} {metrics['videos']:8d} {accuracies}")
    return "\n".join(rows)


if __name__ == "__main__":
    cli.run(main, Config, __doc__)
