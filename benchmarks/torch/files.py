"""The views of videos as users of PyTorch read them: decord, OpenCV and a DataLoader."""

from collections.abc import Sequence

import cv2
import decord
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

cv2.setNumThreads(0)  # a process of the DataLoader has one core


class Views(Dataset):
    """uint8 views (V, ...) of each of `videos`, pairs of a path and frame indices (clips, T).

    The short side is resized to `side`. One crop is in the centre; three are along the long side.
    """

    def __init__(
        self, videos: Sequence[tuple], side: int, crop: int, crops: int, channels_first: bool
    ):
        self.videos = videos
        self.side = side
        self.crop = crop
        self.places = (0.0, 0.5, 1.0) if crops == 3 else (0.5,)
        self.channels_first = channels_first

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, index: int) -> Tensor:
        path, clips = self.videos[index]
        numbers, order = np.unique(clips, return_inverse=True)
        frames = decord.VideoReader(path, num_threads=1).get_batch(numbers).asnumpy()
        scale = self.side / min(frames.shape[1:3])
        height, width = (round(scale * edge) for edge in frames.shape[1:3])
        frames = np.stack([cv2.resize(frame, (width, height)) for frame in frames])
        crops = []
        for place in self.places:
            y, x = (
                round((edge - self.crop) * (place if edge == max(height, width) else 0.5))
                for edge in (height, width)
            )
            crops.append(frames[:, y : y + self.crop, x : x + self.crop])
        views = np.stack(crops)[:, order.reshape(np.shape(clips))]  # (crops, clips, T, H, W, C)
        axes = (0, 1, 5, 2, 3, 4) if self.channels_first else (0, 1, 2, 5, 3, 4)
        views = np.ascontiguousarray(views.transpose(axes))
        return torch.from_numpy(views.reshape(-1, *views.shape[2:]))


def load_views(videos: Sequence[tuple], workers: int, **settings: int) -> DataLoader:
    """The views of one video after the other; `settings` are the arguments of Views."""
    views = Views(videos, **settings)
    options = {"num_workers": workers, "multiprocessing_context": "spawn"}
    return DataLoader(views, batch_size=None, **options)
