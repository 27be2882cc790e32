"""A MINDIR in place of a checkpoint: called like the network it was made from."""

from pathlib import Path
from typing import Any, Union

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils.export import mindir
from utils.files import escape_control
from utils.log import log
from utils.weights.model_checksum import check_checksum


class Exported:
    """The network in a file, as evaluation and prediction call it.

    Takes uint8 clips (N, ...); a file that wants normalised ones gets them from `normalize`. Gives
    scores (N, ..., classes), or, where `counts` is a tuple, a tuple of every head's.
    """

    def __init__(self, path: Path, graph: mindir.Graph, normalize: nn.Cell, counts: Any):
        self.path, self.taken, self.counts = path, graph.inputs[0], counts
        self.normalize = normalize if mindir.DTYPES.get(self.taken.dtype) == "float32" else None
        try:
            self.net = nn.GraphCell(ms.load(str(path)))
        except Exception as error:  # noqa: BLE001 the framework raises its own of several kinds
            raise ValueError(f"{path}: not a readable MINDIR: {mindir.reason_of(error)}") from None

    @property
    def fixed_batch(self) -> int:
        """Clips that the file takes at once; 0 if it takes any number."""
        return max(self.taken.shape[0], 0)

    def set_train(self, mode: bool) -> None:
        """A file is for evaluation only."""

    def __call__(self, clips: Tensor) -> Union[Tensor, tuple]:
        batch, *wanted = self.taken.shape
        count, *given = clips.shape
        if given != wanted or 0 < batch < count:
            raise ValueError(
                f"{self.path} takes clips {list(self.taken.shape)}, and the yaml's are "
                f"{list(clips.shape)}; export it again with this yaml"
            )
        if batch > count:  # one video's view, in a file for several
            clips = Tensor(np.resize(clips.asnumpy(), (batch, *given)))
        scores = self.run(clips if self.normalize is None else self.normalize(clips))[:count]
        if not isinstance(self.counts, tuple):
            return scores
        ends = np.cumsum(self.counts).tolist()
        return tuple(scores[:, end - size : end] for size, end in zip(self.counts, ends))

    def run(self, clips: Tensor) -> Tensor:
        """The graph's scores; ValueError where its operators or its scores do not fit."""
        try:
            scores = self.net(clips)
            result = scores.asnumpy().shape  # waits for the kernels, which may fail
        except Exception as error:  # noqa: BLE001 of several kinds, as above
            raise ValueError(f"{self.path}: cannot run: {mindir.reason_of(error)}") from None
        if len(result) < 2 or (result[0], result[-1]) != (len(clips), np.sum(self.counts)):
            raise ValueError(f"{self.path} gives scores {list(result)}; export it again")
        return scores


def load(net: nn.Cell, cfg: Any, path: Path) -> Exported:
    """The network of a MINDIR; `net` is the yaml's, which says how pixels are normalised.

    Raises ValueError for a damaged file, one of another network, number of classes or batch. One
    without a checksum costs a warning.
    """
    has_checksum, graph = check_checksum(path), mindir.read(path)
    if not has_checksum:
        log.warning("%s has no checksum, so damage to its numbers would not be noticed", path)
    network, made = type(cfg).__module__.partition(".")[0], graph.info.get("network")
    if made and made != network:
        raise ValueError(f"{path} holds a network of {escape_control(made)[:80]}, not of {network}")
    counts = cfg.model_arguments()["num_classes"]
    classes = int(np.sum(counts))
    result = graph.info.get("classes", str(graph.outputs[0].shape[-1]))
    if result != str(classes):
        result = escape_control(result)[:20]
        raise ValueError(f"{path} knows {result} classes, and the yaml has {classes}")
    batch = graph.inputs[0].shape[0]
    if batch > 0 and batch != cfg.eval.batch:
        raise ValueError(
            f"{path} takes {batch} clips at once and eval.batch is {cfg.eval.batch}: "
            f"set --eval.batch={batch} or export with --batch free"
        )
    return Exported(path, graph, net.normalize, counts)
