"""Evaluation of every data set with its own head and views, and their average."""

from typing import Any, Callable, Optional

import numpy as np

from mvit_multi.dataset import EvalVideos
from mvit_multi.labels import LabelSpaceScorer
from utils.distributed.collectives import sum_count
from utils.evaluate.metrics import Counts, evaluate
from utils.evaluate.scores import choose_clips_per_pass
from utils.runtime import Runtime
from utils.scoring.scorer import Scorer


def evaluate_datasets(
    scorer: Scorer,
    videos: dict[int, EvalVideos],
    rt: Runtime,
    collect: Optional[dict[int, Callable]] = None,
    reference: Optional[Scorer] = None,
) -> dict[str, Any]:
    """Metrics averaged over the data sets, and in `sets` the metrics of each data set.

    Data sets with fewer than six classes have no top-5, and its mean is over the others.

    `collect`: {data set index: function that receives its scores}, as in `evaluate`, whose
    `reference` is the network with all heads. A forward pass
    has the same number of clips for all data sets, so the graph is compiled once.
    """
    by_name = {}
    sources = list(videos.values())
    views = [source.clips * source.crops for source in sources]
    cfg = sources[0].cfg
    size = choose_clips_per_pass(cfg.eval.batch, *views, device=scorer.device)
    for k, source in videos.items():
        head = LabelSpaceScorer(scorer, cfg.data.sets, k)
        add = collect[k] if collect else None
        metrics: dict[str, Any] = evaluate(
            head,
            data=source.dataset(),
            collector=Counts(source.settings.num_classes),
            rt=rt,
            collect=add,
            clips_per_pass=size,
            reference=LabelSpaceScorer(reference, cfg.data.sets, k) if reference else None,
        )
        metrics["unreadable"] = sum_count(source.unreadable.count, rt)
        metrics["views"] = source.views
        by_name[source.settings.name] = metrics
    means: dict[str, Optional[float]] = {}
    keys = ["top1", "top5", "mean_class_accuracy", "loss"]
    for key in keys + (["f32_top1", "top1_change"] if reference else []):
        values = [metrics[key] for metrics in by_name.values() if metrics[key] is not None]
        means[key] = round(float(np.mean(values)), 6) if values else None
    if reference:
        means["max_score_difference"] = max(m["max_score_difference"] for m in by_name.values())
    sums = {key: sum(metrics[key] for metrics in by_name.values()) for key in ("videos", "seconds")}
    return {**means, **sums, "sets": by_name}
