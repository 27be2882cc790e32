"""The network in an exported file, MINDIR or ONNX, and the checks of such files."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

import numpy as np

from utils.evaluate.scorer import Scorer, Steps
from utils.inference.checkpoint import build_network
from utils.load_config import to_dict
from utils.log import log
from utils.messages import escape_control, format_error
from utils.settings import NetworkConfig, name_network
from utils.weights.checkpoint_file import DESCRIPTION
from utils.weights.description import check_checksum, parse

if TYPE_CHECKING:
    from utils.networks import Network


@dataclass(eq=False)
class FileScorer(Scorer):
    """The network in a file.

    It takes uint8 clips (N, ...); for a file that expects normalised ones, `normalize` computes
    them. `shape` is that of the clips in the file; its N is below 1 if it takes any number.
    `classes` are those of all heads. A file of one step of an online network has the shapes of its
    `buffers`, and takes a frame (1, C, H, W) instead of clips.
    """

    path: Path
    shape: tuple[int, ...]
    classes: int
    normalize: Optional[Callable[[np.ndarray], np.ndarray]] = None
    buffers: Optional[Sequence[tuple[int, ...]]] = None

    def __post_init__(self) -> None:
        self.name = str(self.path)
        self.batch = max(self.shape[0], 0)

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        return self.run(clips)[0]

    def features(self, clips: np.ndarray) -> np.ndarray:
        """ValueError if the file was exported without features."""
        _, *features = self.run(clips)
        if not features:
            raise ValueError(
                f"{self.path} has no features; export it again with --outputs scores,features"
            )
        return features[0]

    def run(self, clips: np.ndarray) -> list[np.ndarray]:
        """The scores, and the features if the file has them.

        Raises ValueError if the clips do not fit, if the graph fails, or for outputs of another
        shape.
        """
        if self.buffers is not None:
            raise ValueError(
                f"{self.path} takes one frame at a time, for stream.py without --window and --step;"
                " for clips, export the checkpoint without --online"
            )
        (batch, *expected), (count, *shape) = self.shape, clips.shape
        if shape != expected or 0 < batch < count:
            raise ValueError(
                f"{self.path} takes clips {list(self.shape)}, and the config file's are "
                f"{list(clips.shape)}; export it again with this config file"
            )
        if batch > count:  # one video's view, in a file for several
            clips = np.resize(clips, (batch, *shape))
        outputs = self.call(clips if self.normalize is None else self.normalize(clips))
        scores, *features = (output.shape for output in outputs)
        if len(scores) < 2 or (scores[0], scores[-1]) != (len(clips), self.classes):
            raise ValueError(f"{self.path} gives scores {list(scores)}; export it again")
        if [len(shape) for shape in features] not in ([], [2]):
            raise ValueError(f"{self.path} gives features {features}; export it again")
        return [output[:count] for output in outputs]

    def open_steps(self) -> Steps:
        """ValueError if the file takes clips."""
        if self.buffers is None:
            raise ValueError(
                f"{self.path} takes clips: frame by frame, this network needs a checkpoint, or a "
                "file exported with --online; give --window and --step for clips"
            )
        return Steps(self.run_step, [np.zeros(shape, np.float32) for shape in self.buffers])

    def run_step(self, frame: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The scores after a uint8 frame (1, C, H, W), and the new buffers; errors as in `run`."""
        assert self.buffers is not None
        if frame.shape != tuple(self.shape):
            raise ValueError(
                f"{self.path} takes frames {list(self.shape)}, and the config file's are "
                f"{list(frame.shape)}; export it again with this config file"
            )
        if self.normalize is not None:
            frame = self.normalize(frame[None])[0]
        outputs = self.call(frame, *buffers)
        shapes = [output.shape for output in outputs]
        if shapes != [(1, self.classes), *map(tuple, self.buffers)]:
            raise ValueError(f"{self.path} gives outputs {shapes}; export it again")
        return outputs

    def call(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """`compute`; ValueError if it fails."""
        try:
            return self.compute(*inputs)
        except Exception as error:  # noqa: BLE001 the libraries raise several kinds
            raise ValueError(f"{self.path}: cannot run: {shorten_error(error)}") from None

    @abc.abstractmethod
    def compute(self, clips: np.ndarray, *buffers: np.ndarray) -> list[np.ndarray]:
        """The outputs for as many clips as the file takes; any error of the library."""


def count_classes(cfg: NetworkConfig) -> int:
    """The classes of all heads."""
    return int(np.sum(cfg.model_arguments()["num_classes"]))


def build_normalization(
    network: "Network", cfg: NetworkConfig
) -> Callable[[np.ndarray], np.ndarray]:
    """The function from uint8 clips to those that the network's first layer takes."""
    from mindspore import Tensor

    normalize = build_network(network, cfg).normalize
    return lambda clips: normalize(Tensor(clips)).asnumpy()


def warn_without_checksum(path: Path) -> None:
    """Logs a warning for a file without a checksum; raises ValueError if its checksum differs."""
    if path.is_file() and not check_checksum(path):
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)


def check_contents(
    path: Path, cfg: NetworkConfig, info: dict[str, str], classes: int, batch: int
) -> None:
    """Raises ValueError if a file does not fit the config file.

    `info` is the file's metadata. `classes` is the last size of its output, used if the metadata do
    not name it. `batch` is 0 if the file takes any number of clips.
    """
    network = name_network(type(cfg))
    exported = info.get("network")
    if exported and exported != network:
        name = escape_control(exported)[:80]
        raise ValueError(f"{path} holds a network of {name}, not of {network}")
    expected = str(count_classes(cfg))
    in_file = info.get("classes", str(classes))
    if in_file != expected:
        in_file = escape_control(in_file)[:20]
        raise ValueError(f"{path} has {in_file} classes, and the config file has {expected}")
    settings = parse(info[DESCRIPTION], path).settings if DESCRIPTION in info else {}
    padding = settings.get("model", {}).get("padding")
    own_padding = to_dict(cfg)["model"].get("padding")
    if padding not in (None, own_padding):
        from utils.weights.mindspore_checkpoint import check_padding

        check_padding(path, escape_control(str(padding))[:20], own_padding)
    labels = "multi" if cfg.has_several_labels else "single"
    if info.get("labels", labels) != labels:
        raise ValueError(
            f"{path} was not exported with model.labels {labels}; export it with this config file"
        )
    if batch > 0 and batch != cfg.eval.batch:
        raise ValueError(
            f"{path} takes {batch} clips at once and eval.batch is {cfg.eval.batch}: "
            f"set --eval.batch={batch} or export with --batch free"
        )


def shorten_error(error: Exception) -> str:
    """The first 120 characters of a library's error about an untrusted file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + format_error(error))[:120]
