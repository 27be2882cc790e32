"""Evaluation: mean over the views of a video, top-k over videos, sums over ranks.

Every video counts exactly once: what is padded or unreadable is not `valid` and not counted.
"""

import json
import math
import time
from pathlib import Path
from typing import Callable, Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.data.unreadable_videos import UnreadableVideos
from utils.files import write_text
from utils.log import log, progress
from utils.runtime import Runtime
from utils.signals import Stopped, received

# Most clips in one forward pass of an evaluation on an accelerator, if a batch has no more videos.
# The host launches the 400 to 1,500 operators of a pass one by one, and with a few clips the device
# waits for it. The limit keeps memory small: in simulated runs for Ascend 910B, 30 clips of X3D-L
# need 7.4 GB, 20 clips of MViTv2-B 13.2 GB.
CLIPS_PER_PASS = 32


class Counts:
    """Correct videos, in all and per class; one vector, so that ranks can be added."""

    def __init__(self, num_classes: int):
        self.videos = np.zeros(num_classes, np.int64)
        self.top1 = np.zeros(num_classes, np.int64)
        self.top5 = np.zeros(num_classes, np.int64)

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Scores (N, classes) averaged over views, labels (N,)."""
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        hits = ranked == labels[:, None]
        np.add.at(self.videos, labels, 1)
        np.add.at(self.top1, labels, hits[:, 0])
        np.add.at(self.top5, labels, hits.any(axis=1))

    def over_ranks(self, rt: Runtime) -> "Counts":
        if rt.size > 1:
            mine = np.stack((self.videos, self.top1, self.top5))
            self.videos, self.top1, self.top5 = sum_over_ranks(mine)
        return self

    def accuracies(self) -> dict[str, float]:
        videos, seen = max(self.videos.sum(), 1), self.videos > 0
        per_class = self.top1[seen] / self.videos[seen]
        return {
            "top1": round(float(self.top1.sum() / videos), 6),
            "top5": round(float(self.top5.sum() / videos), 6),
            "mean_class_accuracy": round(float(per_class.mean()) if seen.any() else 0.0, 6),
            "videos": int(self.videos.sum()),
        }


class SumRanks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x)


def share_statistics(net: nn.Cell, rt: Runtime) -> None:
    """Gives all ranks the running statistics of rank 0, which saves: each has gathered its own.

    So all parts of an evaluation are of one network, that of the checkpoint.
    """
    result = [p for p in net.get_parameters() if not p.requires_grad and "moving_" in p.name]
    if rt.size == 1 or not result:
        return
    mine = np.concatenate([p.asnumpy().ravel() for p in result]) * np.float32(rt.is_main_process)
    shared = SumRanks()(Tensor(mine, mstype.float32)).asnumpy()
    for parameter, part in zip(result, np.split(shared, np.cumsum([p.size for p in result])[:-1])):
        parameter.set_data(Tensor(part.reshape(parameter.shape), parameter.dtype))


def check_same_step(step: int, rt: Runtime, folder: Path) -> None:
    """Raises ValueError where ranks would go on from different steps: they read different files."""
    if rt.size == 1:
        return
    mine = step % 4096  # sums stay exact
    if int(sum_over_ranks(np.array([mine]))[0]) != mine * rt.size:
        raise ValueError(
            f"run.out: this rank goes on from step {step} of {folder}, others from another one; "
            "all ranks must see the same folder"
        )


def sum_over_ranks(values: np.ndarray) -> np.ndarray:
    """Counts added over all ranks; every rank gets the sums.

    They travel as float32, the one type every back end adds, and stay exact below 2^24.
    """
    return SumRanks()(Tensor(values, mstype.float32)).asnumpy().astype(np.int64)


def evaluate(
    net: nn.Cell,
    data,
    num_classes: int,
    rt: Runtime,
    collect: Optional[Callable] = None,
    clips_per_pass: int = 0,
) -> dict[str, float]:
    """Top-1, top-5 and their seconds over a data set of (clips (N, V, T, ...), label, valid).

    Raw scores are averaged over the V views of a video. `collect(rows, scores, labels)` gets those
    of every batch, the rows counted over this rank's. `clips_per_pass`: as in `video_scores`.

    Raises Stopped, on all ranks, where a signal came to one of them; that one leaves after the
    batch it is at.
    """
    net.set_train(False)
    counts, began = Counts(num_classes), time.monotonic()
    log.info("evaluating; the first batch compiles the graph ...")
    bar = progress(data.get_dataset_size(), "batch", rt)
    batches = data.create_tuple_iterator(num_epochs=1, output_numpy=True)
    stopped = 0
    for k, (clips, label, valid) in enumerate(batches):
        if received:
            stopped = 1
            break
        if valid.any():
            scores = video_scores(net, clips, clips_per_pass)[valid]
            counts.add(scores, label[valid])
            if collect:
                collect(k * len(valid) + np.flatnonzero(valid), scores, label[valid])
        bar.update()
    bar.close()
    if sum_count(stopped, rt):
        raise Stopped("a signal came before the evaluation was done")
    counts.over_ranks(rt)
    return {**counts.accuracies(), "seconds": round(time.monotonic() - began, 2)}


def video_scores(net: nn.Cell, clips: np.ndarray, clips_per_pass: int = 0) -> np.ndarray:
    """Clips (N, V, T, C, H, W) to scores (N, classes), the mean over views (and frames, if any).

    One forward pass takes `clips_per_pass` of the N * V clips; 0 chooses by the device. An exported
    network of a fixed batch takes that many. The last pass is padded, so that all have one shape.
    All passes are launched before the scores are read, once. Returns float32, in which ranks
    exchange scores.
    """
    n, views = clips.shape[:2]
    size = getattr(net, "fixed_batch", 0) or clips_per_pass or choose_clips_per_pass(n, views)
    flat = clips.reshape(n * views, *clips.shape[2:])
    parts = (flat[start : start + size] for start in range(0, len(flat), size))
    outputs = [net(Tensor(pad_clips(part, size))) for part in parts]
    scores = outputs[0] if len(outputs) == 1 else ops.cat(outputs)
    scores = scores.asnumpy()[: len(flat)].astype(np.float64)
    scores = scores.reshape(n, -1, scores.shape[-1])  # (N, V, classes) or (N, V * T, classes)
    return scores.mean(axis=1).astype(np.float32)


def choose_clips_per_pass(videos: int, *views: int, device: str = "") -> int:
    """Clips in one forward pass over a batch of `videos` with so many views each.

    A CPU takes as many clips as videos: it computes no faster with more, and needs more memory. An
    accelerator takes all views of the batch, in as few equal passes of at most CLIPS_PER_PASS
    clips, or of `videos` clips if that is more, as they need. Of several data sets, each with its
    own number of views, the smallest decides for all, so that one graph is compiled. `device` is a
    device target of MindSpore, by default the current one.
    """
    if (device or ms.get_context("device_target")) == "CPU":
        return videos
    clips = videos * min(views)
    return math.ceil(clips / math.ceil(clips / max(videos, CLIPS_PER_PASS)))


def pad_clips(clips: np.ndarray, size: int) -> np.ndarray:
    """Clips (K, ...), K <= size, repeated to (size, ...); contiguous."""
    if len(clips) < size:
        return np.resize(clips, (size, *clips.shape[1:]))
    return np.ascontiguousarray(clips)


def sum_unreadable(bad: UnreadableVideos, rt: Runtime) -> int:
    """Unreadable videos on all ranks."""
    return sum_count(bad.count, rt)


def sum_count(count: int, rt: Runtime) -> int:
    """The sum of all ranks' counts."""
    return count if rt.size == 1 else int(sum_over_ranks(np.array([count]))[0])


def write_beside(checkpoint: str, values: dict, rt: Runtime) -> None:
    """`<checkpoint>.json`; a folder that cannot be written costs a warning, not the result."""
    if not rt.is_main_process:
        return
    target = Path(checkpoint).with_suffix(".json")
    try:
        write_text(target, json.dumps(values) + "\n")
    except OSError as error:
        log.warning("the result is not written beside the checkpoint: %s", error)


def print_result(values: dict, rt: Runtime) -> None:
    """The last line of stdout: one JSON object, from rank 0."""
    if rt.is_main_process:
        print(json.dumps(values), flush=True)
