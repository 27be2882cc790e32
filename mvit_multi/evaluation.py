"""Every data set with its own head and views, and their average."""

from typing import Any, Callable, Optional

import numpy as np
from mindspore import Tensor, nn

from mvit_multi.dataset import EvalVideos
from utils.metrics import evaluate, sum_unreadable
from utils.runtime import Runtime


class OneHead:
    """The network as one data set sees it; the graph is compiled once for all."""

    def __init__(self, net: nn.Cell, which: int):
        self.net, self.which = net, which

    def set_train(self, mode: bool) -> None:
        self.net.set_train(mode)

    def __call__(self, clip: Tensor) -> Tensor:
        return self.net(clip)[self.which]


def eval_videos(cfg: Any, rt: Runtime, split: str = "test") -> dict[int, EvalVideos]:
    """{number of the data set: its videos}: those of `eval.sets` in a test, all in validation.

    Reads the lists; raises ValueError for bad ones.
    """
    names = (split == "test" and cfg.eval.sets) or [each.name for each in cfg.data.sets]
    chosen = [k for k, each in enumerate(cfg.data.sets) if each.name in names]
    return {k: EvalVideos(cfg, rt, k, split) for k in chosen}


def evaluate_sets(
    net: nn.Cell,
    videos: dict[int, EvalVideos],
    rt: Runtime,
    collect: Optional[dict[int, Callable]] = None,
) -> dict[str, Any]:
    """Top-1 and top-5, means over the data sets, and `sets`, each one's metrics.

    `collect` {number of the data set: what gets its scores}, as in `evaluate`.
    """
    found = {}
    for k, source in videos.items():
        each = collect and collect[k]
        metrics = evaluate(OneHead(net, k), source.dataset(), source.set.num_classes, rt, each)
        metrics["unreadable"] = sum_unreadable(source.bad, rt)
        metrics["views"] = f"{source.clips}x{source.crops}"
        found[source.set.name] = metrics
    means = {
        key: round(float(np.mean([metrics[key] for metrics in found.values()])), 6)
        for key in ("top1", "top5", "mean_class_accuracy")
    }
    sums = {key: sum(metrics[key] for metrics in found.values()) for key in ("videos", "seconds")}
    return {**means, **sums, "sets": found}
