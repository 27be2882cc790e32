"""The steps that eval.py and export.py of several networks share."""

from functools import partial
from typing import Any

from utils import log, runtime
from utils.data.video_dataset import EvalVideos
from utils.evaluate.metrics import evaluate, sum_count, write_result_file
from utils.evaluate.report import Report, report_videos
from utils.export import export, inference
from utils.log import print_result
from utils.networks import Network
from utils.runtime import Runtime


def start(cfg: Any) -> Runtime:
    """Prepares MindSpore and the log."""
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    return rt


def evaluate_videos(
    network: Network, cfg: Any, rt: Runtime, videos: EvalVideos, checkpoint_path: str, report: str
) -> int:
    """Evaluates a checkpoint on all views of the test videos; returns the exit status.

    `report` is a folder for tables and plots, or empty.
    """
    annotations = network.list_annotation_files(cfg)[1]
    head = network.build_heads(cfg)[0]
    pages = report_videos(report, videos, annotations, head, rt)
    return evaluate_samples(network, cfg, videos, checkpoint_path, pages)


def evaluate_samples(
    network: Network, cfg: Any, samples: Any, checkpoint_path: str, pages: Report
) -> int:
    """Evaluates a checkpoint on the rows `samples`; returns the exit status.

    Prints and writes the metrics. The status is 1 if samples were unreadable, unless
    eval.allow_unreadable.
    """
    rt = pages.rt
    head = network.build_heads(cfg)[0]
    data = samples.dataset()
    clips = data.get_dataset_size() * cfg.eval.batch * head.clips * head.crops
    net = inference.load_network(network, cfg, checkpoint_path, clips=clips)
    metrics = evaluate(net, data, cfg.model.num_classes, rt, pages.add)
    unreadable = sum_count(samples.unreadable.count, rt)
    result = {**metrics, "unreadable": unreadable, "views": f"{head.clips}x{head.crops}"}
    result["checkpoint"] = str(checkpoint_path)
    write_result_file(checkpoint_path, result, rt)
    print_result(result, rt)
    pages.write(result)
    return 1 if unreadable and not cfg.eval.allow_unreadable else 0


def export_network(
    network: Network, cfg: Any, checkpoint_path: str, options: dict[str, Any]
) -> None:
    """Exports a checkpoint and prints the result; `options` are those of `check_options`."""
    rt = start(cfg)
    checked = export.check_options(cfg.eval.batch, **options)
    load = partial(inference.load_checkpoint, network, cfg, checkpoint_path)
    spec = network.describe_export(cfg)
    print_result(export.export(load, spec, checked, network.name), rt)
