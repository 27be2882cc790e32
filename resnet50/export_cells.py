"""The exported ResNet: shape of an image, name of the output."""

from resnet50.config import Config
from utils.inference.export import ExportSpec


def describe_export(cfg: Config) -> ExportSpec:
    return ExportSpec(cfg.get_clip_shape(cfg.test_crop), "scores")
