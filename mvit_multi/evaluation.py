"""Every data set with its own head and views, and their average."""

from typing import Any, Optional

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


def evaluate_sets(
    net: Optional[nn.Cell], cfg: Any, rt: Runtime, split: str = "test"
) -> dict[str, Any]:
    """Top-1 and top-5, means over the data sets, and `sets`, each one's metrics.

    Without a network only the lists are read. Raises ValueError for bad ones.
    """
    names = cfg.eval.sets if split == "test" and cfg.eval.sets else None
    chosen = [
        (k, each) for k, each in enumerate(cfg.data.sets) if names is None or each.name in names
    ]
    sources = [(each, k, EvalVideos(cfg, rt, k, split)) for k, each in chosen]
    if net is None:
        return {}
    found = {}
    for each, k, videos in sources:
        metrics = evaluate(OneHead(net, k), videos.dataset(), each.num_classes, rt)
        metrics["unreadable"] = sum_unreadable(videos.bad, rt)
        metrics["views"] = f"{videos.clips}x{videos.crops}"
        found[each.name] = metrics
    means = {
        key: round(float(np.mean([metrics[key] for metrics in found.values()])), 6)
        for key in ("top1", "top5", "mean_class_accuracy")
    }
    sums = {key: sum(metrics[key] for metrics in found.values()) for key in ("videos", "seconds")}
    return {**means, **sums, "sets": found}
