"""What the folder of ResNet provides; utils/networks.py documents the names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnet50 import class_folders, dataset
from resnet50.config import Config
from resnet50.convert import ResNetNames
from resnet50.labels import ImageFile, ImageLabelSpace
from resnet50.readers import ImageRecord, Images, find_classes
from utils.data.class_names import describe_numbered
from utils.evaluate.label_space import LabelSpace, list_own_names
from utils.log import log
from utils.networks import Network
from utils.runtime import Runtime
from utils.video.array_frames import ArrayFrames


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
    build_train_sampler = staticmethod(dataset.build_train_sampler)
    copy_classes = staticmethod(class_folders.copy_run_classes)

    def read_records(self, cfg: Config, split: str, spaces: Sequence[LabelSpace] = ()) -> Images:
        run = spaces[0].run_folder if spaces else None
        return dataset.read_records(cfg, split, run, list_own_names(spaces, 1)[0])

    def name_samples(self, cfg: Config, rows: Any) -> list[str]:
        return rows.records.list_names()

    def write_classes(self, cfg: Config, run: Path, rt: Runtime) -> None:
        classes = find_classes(cfg.data, cfg.model.num_classes, split="train")
        class_folders.write_run_classes(run, classes, rt)
        if line := describe_numbered(classes):
            log.info(line)

    def get_input_shape(self, cfg: Config) -> tuple[int, ...]:
        return dataset.get_clip_shape(cfg.data, cfg.data.crop)

    def open_frames(self, cfg: Config, path: str) -> ImageFile:
        return ImageFile(path)

    def open_record(self, cfg: Config, record: ImageRecord) -> ArrayFrames:
        return ArrayFrames(record.read(), 0.0, is_image=True)

    def build_model(self, **settings: Any):
        from resnet50.model import build_network

        return build_network(**settings)


NETWORK = ResNetNetwork()
