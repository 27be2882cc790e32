"""Inference-time views of one video for each head: the same frames and crops as in evaluation."""

from typing import TYPE_CHECKING

import numpy as np

from mvit_multi.config import Config
from mvit_multi.dataset import choose_test_frames, get_annotation_file
from utils.evaluate.label_space import LabelSpace
from utils.video.transforms import cut_crops

if TYPE_CHECKING:
    from utils.video.windows import Window


class DatasetLabelSpace(LabelSpace):
    """The classes of one data set, with the views of its settings."""

    raw_scores = False

    def __init__(self, cfg: Config, dataset_index: int):
        settings = cfg.data.sets[dataset_index]
        self.data = cfg.data
        self.dataset_index = dataset_index
        self.settings = settings
        self.name = settings.name
        self.builtin_names = settings.labels
        self.classes = settings.num_classes
        begin = sum(dataset.num_classes for dataset in cfg.data.sets[:dataset_index])
        self.columns = slice(begin, begin + settings.num_classes)
        self.test_list = get_annotation_file(cfg, dataset_index, "test")
        self.names_file = self.test_list.labels_path
        self.clips = settings.clips
        self.crops = settings.crops
        self.crop_settings = (settings.short_side, settings.crops)

    def frame_indices(self, window: "Window") -> np.ndarray:
        return choose_test_frames(window, data=self.data, settings=self.settings, clips=self.clips)

    def crop_frames(self, frames: np.ndarray) -> np.ndarray:
        side = self.settings.short_side
        return cut_crops(frames, side=side, crop=self.data.crop, crops=self.crops)


def list_label_spaces(cfg: Config) -> list[DatasetLabelSpace]:
    return [DatasetLabelSpace(cfg, index) for index in range(len(cfg.data.sets))]
