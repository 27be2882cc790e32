"""Evaluation metrics: mean over the views of a video, top-k over videos, sums over ranks.

Multi-label: average precision, mAP, cross entropy.

Every video counts exactly once: padding and unreadable videos are not `valid` and not counted.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
from mindspore import Tensor

from utils.collectives import AllReduceSum, sum_count, sum_over_ranks
from utils.data.rows import EvalRows
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import Scorer, choose_clips_per_pass, video_scores
from utils.files import read_json, write_text
from utils.log import Progress, log
from utils.runtime import Runtime
from utils.signals import StopRequestError, received

LOSS_UNIT = 2.0**-20
LOSS_SHIFTS = range(0, 60, 12)  # of parts whose sums over ranks are exact
TOP5_CLASSES = 6  # of fewer classes there is no top-5: it is always 100 %
FEW_VIDEOS = 2000  # an accuracy of fewer videos is given with its 95 % interval
SEVERAL = 5  # videos of a class, of which a trained network usually hits one
BLOCK = 1024  # samples of one AllReduce
THRESHOLD = 0.5  # of a probability of one label of several: from it on it counts as predicted
QUANTILE = 1.959964  # of the normal distribution, for 95 %


def compute_interval(hits: int, videos: int) -> tuple[float, float]:
    """The 95 % interval (Wilson 1927) of the accuracy of `hits` in `videos`, at least one."""
    weight = QUANTILE**2 / videos
    fraction = hits / videos
    middle = (fraction + weight / 2) / (1 + weight)
    width = QUANTILE * (fraction * (1 - fraction) / videos + weight / (4 * videos)) ** 0.5
    half = width / (1 + weight)
    return round(max(middle - half, 0.0), 6), round(min(middle + half, 1.0), 6)


def list_bounds(name: str, hits: int, videos: int) -> dict[str, float]:
    """`<name>_low` and `<name>_high` of an accuracy of few videos; empty for many, or none."""
    if not 0 < videos < FEW_VIDEOS:
        return {}
    low, high = compute_interval(hits, videos)
    return {f"{name}_low": low, f"{name}_high": high}


class Counts:
    """Videos, top-1 hits and top-5 hits per class, and the sum of the videos' cross entropies.

    `raw_scores`: the scores are not probabilities.
    """

    def __init__(self, num_classes: int, raw_scores: bool = False):
        self.raw_scores = raw_scores
        self.loss = 0  # in units of LOSS_UNIT, so that sums do not depend on their order
        self.videos = np.zeros(num_classes, np.int64)
        self.top1 = np.zeros(num_classes, np.int64)
        self.top5 = np.zeros(num_classes, np.int64)

    def add(self, scores: np.ndarray, labels: np.ndarray, rows: Any = ()) -> None:
        """Scores (N, classes) averaged over views, labels (N,); any `rows`."""
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        hits = ranked == labels[:, None]
        np.add.at(self.videos, labels, 1)
        np.add.at(self.top1, labels, hits[:, 0])
        np.add.at(self.top5, labels, hits.any(axis=1))
        scores = scores.astype(np.float64)
        if self.raw_scores:
            scores = scores - scores.max(axis=1, keepdims=True)
            logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        else:
            logarithms = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
        losses = -logarithms[np.arange(len(labels)), labels]
        self.loss += int(np.rint(losses / LOSS_UNIT).sum())

    def accuracies(self, rt: Optional[Runtime] = None) -> dict[str, Any]:
        """Metrics of all ranks; with the 95 % intervals of top-1 and top-5 if the videos are few.

        `top5` is None if there are fewer than six classes. To be called once if there are several
        ranks.
        """
        if rt and rt.size > 1:
            own_counts = np.stack((self.videos, self.top1, self.top5))
            self.videos, self.top1, self.top5 = sum_over_ranks(own_counts)
            parts = np.array([self.loss >> shift & 0xFFF for shift in LOSS_SHIFTS])
            sums = sum_over_ranks(parts).tolist()
            self.loss = sum(part << shift for part, shift in zip(sums, LOSS_SHIFTS))
        videos = int(self.videos.sum())
        top1 = int(self.top1.sum())
        top5 = int(self.top5.sum())
        has_videos = self.videos > 0
        per_class = self.top1[has_videos] / self.videos[has_videos]
        has_top5 = len(self.videos) >= TOP5_CLASSES
        return {
            "top1": round(top1 / max(videos, 1), 6),
            "top5": round(top5 / max(videos, 1), 6) if has_top5 else None,
            "mean_class_accuracy": round(float(per_class.mean()) if has_videos.any() else 0.0, 6),
            "loss": round(self.loss * LOSS_UNIT / max(videos, 1), 5),
            "videos": videos,
            **list_bounds("top1", top1, videos),
            **(list_bounds("top5", top5, videos) if has_top5 else {}),
        }


class ScoreTable:
    """float32 rows (count, width) of all samples: scores, label or labels, 1 if it was read.

    `numbers` are the samples of this rank's rows.
    """

    def __init__(self, numbers: Sequence, count: int, width: int):
        self.numbers = numbers
        self.count = count
        self.chosen: list[int] = []
        self.rows = [np.zeros((0, width), np.float32)]

    def add(self, scores: np.ndarray, labels: np.ndarray, rows: Any) -> None:
        self.chosen += [self.numbers[row] for row in rows]
        new = np.column_stack([scores, labels, np.ones(len(rows))])
        self.rows.append(new.astype(np.float32))

    def gather(self, rt: Runtime) -> np.ndarray:
        """The rows of all ranks; zeros for samples that were not read.

        Every sample is on one rank only, so float32 sums are exact. All blocks have one shape.
        """
        rows = np.concatenate(self.rows)
        gathered = np.zeros((-(-self.count // BLOCK) * BLOCK, rows.shape[1]), np.float32)
        gathered[np.asarray(self.chosen, np.int64)] = rows
        if rt.size > 1:
            add = AllReduceSum()
            for start in range(0, len(gathered), BLOCK):
                block = slice(start, start + BLOCK)
                gathered[block] = add(Tensor(gathered[block])).asnumpy()
        return gathered[: self.count]


def compute_average_precisions(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(classes,) of scores and targets, 1 or 0, (N, classes); NaN for a class without a video.

    The average precision of a class is the mean, over its videos, of the precision at the score of
    each of them: sum over thresholds of (recall - recall before) * precision, as scikit-learn's
    `average_precision_score` has it. Videos with equal scores share a threshold. mAP is the mean
    over the classes with at least one video.
    """
    result = np.full(scores.shape[1], np.nan)
    for k in np.flatnonzero((targets > 0).any(0)):
        order = np.argsort(-scores[:, k], kind="stable")
        # The last video of each threshold
        ends = np.flatnonzero(np.diff(scores[order, k], append=np.nan))
        hits = np.cumsum(targets[order, k] > 0)[ends]
        precision = hits / (ends + 1)
        result[k] = (np.diff(hits, prepend=0) * precision).sum() / hits[-1]
    return result


def compute_binary_losses(scores: np.ndarray, targets: np.ndarray, raw_scores: bool) -> np.ndarray:
    """The sigmoid cross entropies float64 (N, classes)."""
    scores = scores.astype(np.float64)
    if raw_scores:
        return np.logaddexp(0.0, scores) - targets * scores
    smallest = float(np.finfo(np.float32).tiny)
    inverse = np.maximum(1 - scores, smallest)
    return -np.where(targets > 0, np.log(np.maximum(scores, smallest)), np.log(inverse))


def compute_metrics(scores: np.ndarray, targets: np.ndarray, raw_scores: bool) -> dict[str, Any]:
    """The metrics of videos: scores and targets (N, classes).

    `top1` is the fraction of the videos with a label whose highest score belongs to one of their
    labels; `unlabelled` counts the others.
    """
    videos = len(scores)
    if not videos:
        return {"map": 0.0, "classes": 0, "top1": 0.0, "loss": 0.0, "videos": 0, "unlabelled": 0}
    precisions = compute_average_precisions(scores, targets)
    classes = int(np.isfinite(precisions).sum())
    hits = np.take_along_axis(targets, scores.argmax(1)[:, None], 1)
    labelled = int((targets.max(1) > 0).sum())
    return {
        "map": round(float(np.nanmean(precisions)), 6) if classes else 0.0,
        "classes": classes,
        "top1": round(float(hits.sum()) / max(labelled, 1), 6),
        "loss": round(float(compute_binary_losses(scores, targets, raw_scores).mean()), 5),
        "videos": videos,
        "unlabelled": videos - labelled,
    }


class EvalSet(NamedTuple):
    """The test rows of one data set on this rank, and its classes.

    `create_dataset` is that of the network. `collect(scores, labels, rows)` receives those of every
    batch; `rows` count the videos of this rank. `doubt` is logged if many classes have no hit.
    """

    rows: EvalRows
    space: LabelSpace
    create_dataset: Callable
    collect: Optional[Callable] = None
    doubt: str = ""


def evaluate(scorer: Scorer, eval_sets: Sequence[EvalSet], rt: Runtime) -> dict[str, Any]:
    """Metrics, `unreadable`, `views` and `seconds` of a data set; of named ones see `average_sets`.

    Scores are averaged over the views of a video. A forward pass has the same number of clips for
    all data sets, so the graph is compiled once.

    Raises StopRequestError on all ranks if one of them received a signal; that one stops after its
    batch.
    """
    views = [rows.shape[0] for rows, *_ in eval_sets]
    batch = eval_sets[0].rows.cfg.eval.batch
    clip = eval_sets[0].rows.shape[1:]
    size = choose_clips_per_pass(batch, *views, device=scorer.device, clip=clip)
    results = {}
    for rows, space, create_dataset, collect, doubt in eval_sets:
        collector: Union[Counts, ScoreTable] = Counts(space.classes, space.raw_scores)
        if space.multi_label:
            collector = ScoreTable(rows.samples_of_rank, len(rows.records), 2 * space.classes + 1)
        start = time.monotonic()
        data = create_dataset(rows.cfg, rows, rows.cfg.data.workers)
        count = data.get_dataset_size()
        bar = Progress(None, "evaluating", count, unit="batches", hidden=not rt.is_main_process)
        batches = data.create_tuple_iterator(num_epochs=1, output_numpy=True)
        stopped = 0
        for k, (clips, label, valid) in enumerate(batches):
            if received:
                stopped = 1
                break
            if valid.any():
                scores = video_scores(scorer, clips, size, space.columns)[valid]
                numbers = k * len(valid) + np.flatnonzero(valid)
                collector.add(scores, label[valid], numbers)
                if collect:
                    collect(scores, label[valid], numbers)
            bar.update()
        bar.close()
        if sum_count(stopped, rt):
            raise StopRequestError("a signal came before the evaluation was done")
        if isinstance(collector, ScoreTable):
            table = collector.gather(rt)
            scores, targets = np.split(table[table[:, -1] > 0, :-1], 2, axis=1)
            result = compute_metrics(scores, targets, space.raw_scores)
        else:
            result = collector.accuracies(rt)
            shown = collector.videos >= SEVERAL
            missed = int((shown & (collector.top1 == 0)).sum())
            if doubt and 4 * missed >= max(int(shown.sum()), 1):
                log.warning("a quarter of the classes have no hit: %s", doubt)
        result["seconds"] = round(time.monotonic() - start, 2)
        result["unreadable"] = sum_count(rows.unreadable.count, rt)
        result["views"] = rows.views
        results[space.name] = result
    return results.get("") or average_sets(results)


def average_sets(results: Mapping[str, dict]) -> dict[str, Any]:
    """Means over data sets, sums of videos, seconds and unreadable, and the results as `sets`.

    Data sets with fewer than six classes have no top-5, and its mean is over the others.
    """
    parts = list(results.values())
    means: dict[str, Any] = {}
    for key in ("top1", "top5", "mean_class_accuracy", "loss"):
        values = [metrics[key] for metrics in parts if metrics[key] is not None]
        means[key] = round(float(np.mean(values)), 6) if values else None
    sums = {key: sum(m[key] for m in parts) for key in ("videos", "seconds", "unreadable")}
    return {**means, **sums, "sets": dict(results)}


def write_result_file(checkpoint: str, values: dict, rt: Runtime) -> None:
    """Writes `<checkpoint>.json` on rank 0; logs a warning if the folder cannot be written.

    `other_lists` there are the last results of lists other than `values["list"]`.
    """
    if not rt.is_main_process:
        return
    target = Path(checkpoint).with_suffix(".json")
    kept: dict[str, Any] = {}
    try:
        if target.exists():
            earlier = read_json(target, f"{target}")
            if not ({"videos", "seconds"} <= set(earlier) or "keep_best" in earlier):
                raise ValueError(f"{target} exists and is not the result of an evaluation")
            # `utils.train.validation` wrote the first two.
            names = ("keep_best", "validation", "other_lists")
            kept = {name: earlier.pop(name) for name in names if name in earlier}
            others = kept.pop("other_lists", {})
            if "videos" in earlier:
                others[earlier.get("list", "unnamed")] = earlier
            others.pop(values["list"], None)
            kept |= {"other_lists": others} if others else {}
        write_text(target, json.dumps({**kept, **values}) + "\n")
    except (OSError, ValueError) as error:
        log.warning("the result is not written beside the checkpoint: %s", error)
