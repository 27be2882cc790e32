"""The steps that eval.py and export.py of several networks share."""

from typing import Any, Callable, Optional

from mindspore import nn

from utils import log, runtime
from utils.data.video_dataset import EvalVideos
from utils.evaluate.metrics import evaluate, print_result, sum_count, write_result_file
from utils.evaluate.report import Report, report_videos
from utils.export import export, inference
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
    annotations = network.dataset.list_annotation_files(cfg)[1]
    head = network.predict.build_heads(cfg)[0]
    pages = report_videos(report, videos, annotations, head, rt)
    views = f"{cfg.eval.clips}x{cfg.eval.crops}"
    return evaluate_samples(
        network, cfg, rt, videos, videos.dataset(), checkpoint_path, pages, views
    )


def evaluate_samples(
    network: Network,
    cfg: Any,
    rt: Runtime,
    source: Any,
    data: Any,
    checkpoint_path: str,
    pages: Report,
    views: str,
) -> int:
    """Evaluates a checkpoint on the batches `data` of `source`; returns the exit status.

    Prints and writes the metrics. The status is 1 if samples were unreadable, unless
    eval.allow_unreadable.
    """
    build = network.model.build_network
    net = inference.load_network(build, cfg, checkpoint_path, network.classifier)
    metrics = evaluate(net, data, cfg.model.num_classes, rt, pages.add)
    unreadable = sum_count(source.unreadable.count, rt)
    result = {
        **metrics,
        "unreadable": unreadable,
        "views": views,
        "checkpoint": str(checkpoint_path),
    }
    write_result_file(checkpoint_path, result, rt)
    print_result(result, rt)
    pages.write(result)
    return 1 if unreadable and not cfg.eval.allow_unreadable else 0


def export_network(
    network: Network,
    cfg: Any,
    checkpoint_path: str,
    clip: tuple[int, ...],
    output: str,
    options: dict[str, Any],
    info: Optional[dict[str, str]] = None,
    wrap: Callable[[nn.Cell], nn.Cell] = lambda net: net,
    **onnx_arguments: str,
) -> None:
    """Exports a checkpoint for clips of shape `clip` and prints the result.

    `options` are those of the command (`export.check_options`). `output` is the name of the file's
    output, `info` metadata besides the network's name. `wrap` returns the Cell to export.
    `onnx_arguments` replace arguments of the network for ONNX.
    """
    rt = start(cfg)
    checked = export.check_options(cfg.eval.batch, **options)

    def load(level: str, **changes: str) -> nn.Cell:
        build = network.model.build_network
        net = inference.load_checkpoint(
            build, cfg, checkpoint_path, network.classifier, level, **changes
        )
        return wrap(net)

    metadata = {"network": network.name, **(info or {})}
    print_result(export.export(load, clip, output, checked, metadata, **onnx_arguments), rt)
