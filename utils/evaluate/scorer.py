"""`Scorer`: a network for inference, whatever computes it; and a Cell's scorer.

`Steps`: a network that reads a stream. Scores of videos: forward passes over all views of a batch,
and the mean over the views.
"""

import abc
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Callable, NamedTuple

import numpy as np

from utils.log import log

if TYPE_CHECKING:
    from mindspore import nn

# Most clips in one forward pass of an evaluation on an accelerator, unless a batch has more videos.
# The host launches the 400 to 1,500 operators of a pass one by one; with few clips the device waits
# for the host. The limit keeps memory small: in simulated runs for Ascend 910B, 30 clips of X3D-L
# need 7.4 GB, 20 clips of MViTv2-B 13.2 GB.
CLIPS_PER_PASS = 32
# Most numbers of the input of a pass on a CPU, or one clip: two clips of X3D-S or TSM. With more of
# them X3D and MViT are slower, because the maps leave the caches (docs/measured/benchmarks.md).
NUMBERS_PER_PASS = 2_600_000


class Scorer(abc.ABC):
    """Maps clips to scores, or to features: the input of the classifier.

    `device` computes it: CPU, GPU or Ascend. `batch` is the number of clips of one call; 0: any.
    `engine` is a value of run.engine, and `name` the file of the network; both are for messages.
    """

    device = "CPU"
    batch = 0
    engine = "mindspore"
    name = "the network"
    has_classifier = True  # else it gives features only

    @abc.abstractmethod
    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """uint8 clips (N, ...) to scores (N, ..., classes); several heads are concatenated."""

    @abc.abstractmethod
    def features(self, clips: np.ndarray) -> np.ndarray:
        """uint8 clips (N, ...) to features float32 (N, C). ValueError if a file has none."""

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """The scores of the clips of all passes, one after the other."""
        return np.concatenate([*map(self, passes)])


class Steps(NamedTuple):
    """A network that keeps buffers from one call to the next, and so reads a stream.

    `run(frame, *buffers)` returns the scores and the new buffers. `buffers` are the first ones.
    """

    run: Callable[..., list[np.ndarray]]
    buffers: Sequence[np.ndarray] = ()

    def run_all(self, batches: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Each output for all batches, one after the other. Without buffers, `run` takes clips."""
        buffers = [*self.buffers]
        results = []
        for batch in batches:
            outputs = self.run(batch, *buffers)
            buffers = outputs[len(outputs) - len(buffers) :]
            results.append(outputs)
        return [np.concatenate(parts) for parts in zip(*results)]


class CellScorer(Scorer):
    """A Cell, in evaluation mode; with the argument True, it returns its features last."""

    def __init__(self, net: "nn.Cell", name: str = "the network"):
        import mindspore as ms

        self.net = net
        self.name = name
        self.device = ms.get_context("device_target")
        self.has_run = False

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run_passes([clips])

    def features(self, clips: np.ndarray) -> np.ndarray:
        """By a second graph, which is compiled when features are asked for."""
        from mindspore import Tensor

        self.prepare()
        return self.net(Tensor(clips), True)[-1].asnumpy()

    def prepare(self) -> None:
        import mindspore as ms

        if not self.has_run and ms.get_context("mode") == ms.GRAPH_MODE:
            log.info("MindSpore compiles the graph of the network for the first clips ...")
        self.has_run = True
        if self.net.training:  # between the epochs of a training
            self.net.set_train(False)

    def run_passes(self, passes: Iterable[np.ndarray]) -> np.ndarray:
        """MindSpore launches all passes before the scores are read, once for each head."""
        from mindspore import Tensor, ops

        self.prepare()
        outputs = [self.net(Tensor(clips)) for clips in passes]
        heads = zip(*outputs) if isinstance(outputs[0], tuple) else [outputs]
        scores = [ops.cat(head) if len(head) > 1 else head[0] for head in heads]
        return np.concatenate([head.asnumpy() for head in scores], axis=-1)


def video_scores(
    scorer: Scorer, clips: np.ndarray, clips_per_pass: int = 0, columns: slice = slice(None)
) -> np.ndarray:
    """Clips (N, V, T, C, H, W) to scores (N, classes), the mean over views (and frames, if any).

    `columns` are the classes of one data set among those of all heads.

    One forward pass takes `scorer.batch` of the N * V clips if that is fixed, else
    `clips_per_pass`; 0 chooses by the device. The last pass is padded, so that all have one shape.
    Returns float32, in which ranks exchange scores.

    Raises ValueError, with the file of the network, for scores that are NaN or infinite, or if the
    file has no classifier.
    """
    if not scorer.has_classifier:
        raise ValueError(f"{scorer.name} has no classifier; train one with train.new_head=true")
    n, views = clips.shape[:2]
    size = clips_per_pass or choose_clips_per_pass(
        n, views, device=scorer.device, clip=clips.shape[2:]
    )
    flat = clips.reshape(n * views, *clips.shape[2:])
    scores = scorer.run_passes(cut_passes(scorer, flat, size))[: len(flat), ..., columns]
    scores = scores.astype(np.float64)
    scores = scores.reshape(n, -1, scores.shape[-1])  # (N, V, classes) or (N, V * T, classes)
    means = scores.mean(axis=1).astype(np.float32)
    check_finite(scorer, means, "scores")
    return means


def view_features(scorer: Scorer, views: np.ndarray, clips_per_pass: int = 0) -> np.ndarray:
    """The views (V, ...) of one video to features float32 (V, C).

    `clips_per_pass` is as in `video_scores`. Raises ValueError for features that are NaN or
    infinite, or if the network is in a file without features.
    """
    size = clips_per_pass or choose_clips_per_pass(1, len(views), device=scorer.device)
    features = [scorer.features(clips) for clips in cut_passes(scorer, views, size)]
    values = np.concatenate(features)[: len(views)]
    check_finite(scorer, values.reshape(1, -1), "features")
    return values


def cut_passes(scorer: Scorer, clips: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The clips of each pass: `scorer.batch` if that is fixed, else `size`; the last is padded."""
    size = scorer.batch or size
    for start in range(0, len(clips), size):
        part = clips[start : start + size]
        if len(part) < size:
            part = np.resize(part, (size, *part.shape[1:]))  # repeats its clips
        yield np.ascontiguousarray(part)


def check_finite(scorer: Scorer, values: np.ndarray, what: str) -> None:
    """Raises ValueError, with the file of the network, for videos (N, ...) with bad numbers."""
    if not np.isfinite(values).all():
        raise ValueError(
            f"{scorer.name} gives {what} that are NaN or infinite; its weights are damaged, or its "
            "training has diverged"
        )


def choose_clips_per_pass(videos: int, *views: int, device: str, clip: tuple[int, ...] = ()) -> int:
    """Clips in one forward pass over a batch of `videos`, with `views` of each data set.

    A CPU takes as many clips as videos, but not more than NUMBERS_PER_PASS allows for the shape
    `clip`: it computes no faster with more, and needs more memory. An accelerator takes all views
    of the batch, in the fewest equal passes of at most CLIPS_PER_PASS clips (or `videos` clips if
    that is more). Of several data sets, the smallest number of views decides for all, so that one
    graph is compiled. `device` is the scorer's.
    """
    if device == "CPU":
        return max(1, min(videos, NUMBERS_PER_PASS // math.prod(clip)))
    clips = videos * min(views)
    return math.ceil(clips / math.ceil(clips / max(videos, CLIPS_PER_PASS)))
