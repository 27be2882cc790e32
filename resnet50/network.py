"""What the folder of ResNet provides; utils/networks.py documents the names."""

from functools import partial
from typing import Any

from resnet50 import dataset
from resnet50.config import Config
from resnet50.convert import ResNetNames
from resnet50.labels import ImageLabelSpace
from resnet50.readers import ImageRecord, read_records
from utils.networks import Network
from utils.video.reader import FrameReader, read_bytes


class ResNetNetwork(Network[Config]):
    """ResNet on images."""

    name = "resnet50"
    config = Config
    reads_images = True
    train_rows = dataset.TrainImages
    eval_rows = dataset.EvalImages
    create_dataset = staticmethod(dataset.create_dataset)
    label_space = ImageLabelSpace
    parameter_names = ResNetNames
    read_records = staticmethod(read_records)
    build_train_sampler = staticmethod(dataset.build_train_sampler)

    def open_frames(self, cfg: Config, path: str) -> FrameReader:
        return ImageRecord(path, 0, partial(read_bytes, path)).open(cfg.data)

    def build_model(self, **settings: Any):
        from resnet50.model import build_network

        return build_network(**settings)


NETWORK = ResNetNetwork()
