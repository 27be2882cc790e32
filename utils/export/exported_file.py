"""The network in an exported file, MINDIR or ONNX, and the checks of such files."""

from pathlib import Path
from typing import Any, Callable, Optional

import numpy as np

from utils.log import log
from utils.messages import escape_control, format_error
from utils.weights.model_checksum import check_checksum


class ExportedNetwork:
    """The network in a file, called by evaluation and prediction like one from a checkpoint.

    It takes uint8 clips (N, ...); for a file that expects normalised ones, `normalize` computes
    them. It returns scores (N, ..., classes) or, if `counts` is a tuple, a tuple with the scores of
    each head. `shape` is that of the clips in the file; its N is below 1 if it takes any number.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], counts: Any, normalize: Optional[Callable]
    ):
        self.path = path
        self.shape = shape
        self.counts = counts
        self.normalize = normalize

    @property
    def fixed_batch(self) -> int:
        """Clips of one call; 0 if the file takes any number."""
        return max(self.shape[0], 0)

    def set_train(self, mode: bool) -> None:
        """A file is for evaluation only."""

    def __call__(self, clips: Any) -> Any:
        (batch, *expected), (count, *shape) = self.shape, clips.shape
        if shape != expected or 0 < batch < count:
            raise ValueError(
                f"{self.path} takes clips {list(self.shape)}, and the yaml's are "
                f"{list(clips.shape)}; export it again with this yaml"
            )
        if batch > count:  # one video's view, in a file for several
            clips = self.repeat(clips, batch)
        scores = self.run(clips if self.normalize is None else self.normalize(clips))[:count]
        if not isinstance(self.counts, tuple):
            return scores
        ends = np.cumsum(self.counts).tolist()
        return tuple(scores[:, end - size : end] for size, end in zip(self.counts, ends))

    def run(self, clips: Any) -> Any:
        """The graph's scores; ValueError if it fails or the scores have another shape."""
        try:
            scores = self.compute(clips)
        except Exception as error:  # noqa: BLE001 the libraries raise several kinds
            raise ValueError(f"{self.path}: cannot run: {shorten_error(error)}") from None
        shape = scores.shape
        if len(shape) < 2 or (shape[0], shape[-1]) != (len(clips), np.sum(self.counts)):
            raise ValueError(f"{self.path} gives scores {list(shape)}; export it again")
        return scores

    def repeat(self, clips: Any, count: int) -> Any:
        """The clips, repeated to `count`."""
        return np.resize(clips, (count, *clips.shape[1:]))

    def compute(self, clips: Any) -> Any:
        """The scores of as many clips as the file takes; any error of the library."""
        raise NotImplementedError


def warn_without_checksum(path: Path) -> None:
    """Raises ValueError if the checksum of a file differs; a file without one costs a warning."""
    if path.is_file() and not check_checksum(path):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)


def check_contents(path: Path, cfg: Any, info: dict[str, str], classes: int, batch: int) -> None:
    """Raises ValueError if a file does not fit the yaml.

    `info` is the file's metadata. `classes` is the last size of its output, used if the metadata do
    not name it. `batch` is 0 if the file takes any number of clips.
    """
    network = type(cfg).__module__.partition(".")[0]
    exported = info.get("network")
    if exported and exported != network:
        name = escape_control(exported)[:80]
        raise ValueError(f"{path} holds a network of {name}, not of {network}")
    expected = str(np.sum(cfg.model_arguments()["num_classes"]))
    in_file = info.get("classes", str(classes))
    if in_file != expected:
        in_file = escape_control(in_file)[:20]
        raise ValueError(f"{path} has {in_file} classes, and the yaml has {expected}")
    if batch > 0 and batch != cfg.eval.batch:
        raise ValueError(
            f"{path} takes {batch} clips at once and eval.batch is {cfg.eval.batch}: "
            f"set --eval.batch={batch} or export with --batch free"
        )


def shorten_error(error: Exception) -> str:
    """The first 120 characters of a library's error about an untrusted file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + format_error(error))[:120]
