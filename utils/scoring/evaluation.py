"""The steps that eval.py of several networks share."""

from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from utils import log, runtime
from utils.data.rows import EvalRows
from utils.data.videos import EvalVideos
from utils.evaluate.metrics import evaluate_rows, write_result_file
from utils.evaluate.report import Report, report_videos
from utils.log import print_result
from utils.runtime import Runtime
from utils.scoring.load import load_scorer
from utils.scoring.scorer import Scorer
from utils.settings import NetworkConfig

if TYPE_CHECKING:
    from utils.networks import Network


def start(cfg: NetworkConfig) -> Runtime:
    """Prepares MindSpore and the log."""
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    return rt


def evaluate_videos(
    network: "Network",
    cfg: NetworkConfig,
    rt: Runtime,
    videos: EvalVideos,
    checkpoint_path: str,
    report: str,
) -> int:
    """Evaluates a checkpoint on all views of the test videos; returns the exit status.

    `report` is a folder for tables and plots, or empty.
    """
    annotations = network.list_annotation_files(cfg)[1]
    head = network.list_label_spaces(cfg)[0]
    pages = report_videos(report, videos=videos, file=annotations, head=head, rt=rt)
    return evaluate_samples(
        network, cfg=cfg, samples=videos, checkpoint_path=checkpoint_path, pages=pages
    )


def evaluate_samples(
    network: "Network", cfg: NetworkConfig, samples: EvalRows, checkpoint_path: str, pages: Report
) -> int:
    """Evaluates a checkpoint on the rows `samples`; returns the exit status.

    Prints and writes the metrics. The status is 1 if samples were unreadable, unless
    eval.allow_unreadable.
    """
    rt = pages.rt
    head = network.list_label_spaces(cfg)[0]
    scorer = load_scorer(network, cfg, checkpoint_path)
    reference = load_reference(network, cfg, checkpoint_path)
    result = evaluate_rows(
        scorer, rows=samples, head=head, rt=rt, collect=pages.add, reference=reference
    )
    unreadable = result["unreadable"]
    result["checkpoint"] = str(checkpoint_path)
    write_result_file(checkpoint_path, result, rt)
    print_result(result, rt)
    pages.write(result)
    return 1 if unreadable and not cfg.eval.allow_unreadable else 0


def load_reference(network: "Network", cfg: NetworkConfig, path: str) -> Optional[Scorer]:
    """The same network in f32, with which another `run.engine_precision` is compared; else None."""
    if cfg.run.engine_precision == "f32":
        return None
    return load_scorer(network, replace(cfg, run=replace(cfg.run, engine_precision="f32")), path)
