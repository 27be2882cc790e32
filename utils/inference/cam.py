"""Grad-CAM: a heat map of the parts of the frames that raise the score of a class.

The feature maps of a late layer are weighted by the gradient of the class's logit, summed over
the channels, and negative sums are set to zero (arXiv:1610.02391). A weight is the mean of the
gradient over height and width, one for each frame of the maps, as in PySlowFast and mmaction2.

MindSpore computes it eagerly and in float32, whatever `run.engine` is.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import cv2
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from utils.evaluate.label_space import LabelSpace
from utils.runtime import eager_mode
from utils.video.windows import Window

OPACITY = 0.5  # of the heat map over the frame
RATES = (1.0, 30.0)  # smallest and largest number of frames per second of a video


class GradCam:
    """Draws the heat maps of a network, which is for this object only: its hooks stay.

    MindSpore keeps a graph for every function that it differentiates, so there is one for all
    clips. It adds zero to the output of the layer, and the gradient is that with respect to this
    zero: then MindSpore needs no activations of the cells before it.
    """

    def __init__(self, net: nn.Cell, heads: Sequence[LabelSpace]):
        self.net = net
        self.heads = heads
        self.cells = net.find_cam_cells()
        self.outputs: dict[Any, Tensor] = {}  # of one clip
        self.cells.layer.register_forward_hook(self.watch)
        for head, scores in enumerate(self.cells.scores):
            scores.register_forward_hook(partial(self.save, head))
        with eager_mode():
            self.differentiate = ms.grad(self.score)

    def watch(self, cell: nn.Cell, inputs: tuple, output: Tensor) -> Tensor:
        watched = output + self.outputs["zero"]
        watched.register_hook(partial(self.save, "gradient"))
        self.outputs["maps"] = output
        return watched

    def save(self, key: Any, *values: Any) -> None:
        """Keeps a gradient, or the output of a Cell after the Cell and its inputs."""
        self.outputs[key] = values[-1]

    def score(self, zero: Tensor, clip: Tensor, head: int, label: int) -> Tensor:
        """The mean over frames or positions if the network has a logit for each."""
        self.outputs["zero"] = zero
        self.net(clip)
        scores = self.outputs[head]
        return scores.reshape(-1, scores.shape[-1])[:, label].mean()

    def compute(self, clip: np.ndarray, head: int, label: int) -> np.ndarray:
        """The heat maps float32 (T, H, W), of the layer's size, at least 0, of a clip (C, ...)."""
        with eager_mode():
            zero = Tensor(np.zeros(1, np.float32))
            self.differentiate(zero, Tensor(clip[None]), head, label)
            maps = self.cells.arrange(self.outputs["maps"].asnumpy())  # (T, C, H, W)
            gradient = self.cells.arrange(self.outputs["gradient"].asnumpy())
        self.outputs.clear()
        weights = gradient.mean(axis=(2, 3), keepdims=True)
        return np.maximum((maps * weights).sum(axis=1), 0)

    def overlay(
        self, views: np.ndarray, head: int, probabilities: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Frames uint8 (clips, T, H, W, 3) of one head under the heat maps of the best class.

        And its label. `views` (V, ...) belong to one window; a preview shows the frames.
        """
        label = int(np.argmax(probabilities))
        frames = self.heads[head].preview_frames(views)
        result = np.empty_like(frames)
        for k, clip in enumerate(self.heads[head].select_middle_crops(views)):
            maps = scale_maps(self.compute(clip, head, label), frames.shape[1:4])
            levels = np.round(255 * maps).astype(np.uint8)
            # The colours of PySlowFast and mmaction2: from violet to yellow
            colors = [cv2.applyColorMap(level, cv2.COLORMAP_VIRIDIS)[..., ::-1] for level in levels]
            mixed = OPACITY * np.stack(colors) + (1 - OPACITY) * frames[k]
            result[k] = np.round(mixed).astype(np.uint8)
        return result, label


def scale_maps(maps: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Maps (t, h, w), interpolated linearly to `shape` (T, H, W) and divided by the maximum."""
    count, height, width = shape
    frames, *size = maps.shape
    maps = cv2.resize(maps.reshape(frames, -1), (size[0] * size[1], count)).reshape(count, *size)
    maps = np.stack([cv2.resize(image, (width, height)) for image in maps])
    return maps / max(float(maps.max()), np.finfo(np.float32).tiny)


def find_rate(head: LabelSpace, window: Window, count: int) -> float:
    """Frames per second of clips of `count` frames: the video's speed, within `RATES`."""
    first = head.frame_indices(window).reshape(head.clips, count, -1)[0, :, 0]
    seconds = float(window.find_time(first[-1]) - window.find_time(first[0]))
    return float(np.clip((count - 1) / max(seconds, 1e-6), *RATES))
