"""The exported ResNet: shape of an image, name of the output."""

from resnet50.config import Config
from resnet50.dataset import get_clip_shape
from utils.export.export import ExportSpec


def describe_export(cfg: Config) -> ExportSpec:
    return ExportSpec(get_clip_shape(cfg.data, cfg.test_crop), "scores")
