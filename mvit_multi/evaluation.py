"""Every data set with its own head and views, and their average."""

from typing import Any, Callable, Optional

import numpy as np
from mindspore import Tensor, nn

from mvit_multi.dataset import EvalVideos
from utils.evaluate.metrics import choose_clips_per_pass, evaluate, sum_unreadable
from utils.runtime import Runtime


class OneHead:
    """The network as one data set sees it; the graph is compiled once for all."""

    def __init__(self, net: nn.Cell, which: int):
        self.net, self.which = net, which

    @property
    def fixed_batch(self) -> int:
        """As that of `utils.export.exported.Exported`; 0 for a network that takes any batch."""
        return getattr(self.net, "fixed_batch", 0)

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

    `collect` {number of the data set: function that gets its scores}, as in `evaluate`. All data
    sets have the same number of clips in a forward pass, so the graph is compiled once.
    """
    found, sources = {}, list(videos.values())
    views = [source.clips * source.crops for source in sources]
    size = choose_clips_per_pass(sources[0].cfg.eval.batch, *views)
    for k, source in videos.items():
        head, classes = OneHead(net, k), source.set.num_classes
        metrics = evaluate(head, source.dataset(), classes, rt, collect and collect[k], size)
        metrics["unreadable"] = sum_unreadable(source.unreadable, rt)
        metrics["views"] = f"{source.clips}x{source.crops}"
        found[source.set.name] = metrics
    means = {
        key: round(float(np.mean([metrics[key] for metrics in found.values()])), 6)
        for key in ("top1", "top5", "mean_class_accuracy")
    }
    sums = {key: sum(metrics[key] for metrics in found.values()) for key in ("videos", "seconds")}
    return {**means, **sums, "sets": found}
