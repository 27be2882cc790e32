"""What the folder of the multi-dataset MViTv2 provides; utils/networks.py documents the names."""

from typing import Any

import numpy as np

from mvit_multi import dataset
from mvit_multi.config import Config
from mvit_multi.convert import MViTNames
from mvit_multi.labels import DatasetLabelSpace, list_label_spaces
from utils.networks import Network


class MViTNetwork(Network[Config]):
    """MViTv2 on several data sets of videos at once."""

    name = "mvit_multi"
    config = Config
    train_rows = dataset.TrainVideos
    eval_rows = dataset.EvalVideos
    create_dataset = staticmethod(dataset.create_dataset)
    label_space = DatasetLabelSpace
    parameter_names = MViTNames
    list_annotation_files = staticmethod(dataset.list_annotation_files)
    read_records = staticmethod(dataset.read_records)
    build_eval_rows = staticmethod(dataset.build_eval_rows)
    list_label_spaces = staticmethod(list_label_spaces)

    def get_sample_shape(self, cfg: Config) -> tuple[int, ...]:
        return cfg.data.repeated_aug, *self.get_input_shape(cfg)

    def build_targets(self, cfg: Config, labels: np.ndarray) -> np.ndarray:
        """Targets float32 (N, S, 7) of clips of the first data set."""
        rows = [[dataset.build_target_row(0, int(k), 1.0)] * cfg.data.repeated_aug for k in labels]
        return np.array(rows, np.float32)

    def build_model(self, **settings: Any):
        from mvit_multi.model import MViT

        return MViT(**settings)


NETWORK = MViTNetwork()
