"""What a network folder provides, and how to find it.

Each network folder has a `network.py` with one record `NETWORK`. Scripts, benchmarks and tests
use a network through this record only. docs/adding_a_network.md explains how to add one.

The parts of a network are modules of its folder. A part is imported when it is first used, so a
process that needs only settings or videos does not import MindSpore.
"""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional, Protocol

import numpy as np

from utils.config import ROOT, load_config, read_yaml

if TYPE_CHECKING:
    from mindspore import nn

    from utils.data.annotation_file import AnnotationFile
    from utils.data.sampler import TrainSampler
    from utils.evaluate.predict import Head
    from utils.export.export import ExportSpec
    from utils.runtime import Runtime
    from utils.train.train_step import TrainStep
    from utils.train.trainer import TrainSetup
    from utils.video.reader import FrameSource


class ModelPart(Protocol):
    """`model.py`."""

    def build_network(self, **settings: Any) -> "nn.Cell":
        """The network; `settings` is `cfg.model_arguments()`. An unknown one is a TypeError."""


class TrainPart(Protocol):
    """`train.py`."""

    def build(self, cfg: Any, rt: "Runtime", sampler: "TrainSampler") -> "TrainSetup":
        """Model, optimizer and train step."""


class DatasetPart(Protocol):
    """`dataset.py`. `records` is the result of `read_records`; it has a length."""

    TrainSource: Callable[..., Any]  # (records, cfg, sampler, epochs, first step)

    def read_records(self, cfg: Any, split: str) -> Any:
        """The checked samples of a split. Raises ValueError for bad lines."""

    def list_annotation_files(self, cfg: Any) -> "list[AnnotationFile]":
        """The annotation files, training first; empty if the network reads images."""

    def build_train_sampler(self, cfg: Any, records: Any, rt: "Runtime") -> "TrainSampler":
        """The sampler: the sample of every position of the training run."""

    def build_eval_dataset(self, cfg: Any, rt: "Runtime") -> Any:
        """The batches of an evaluation: (clips, labels, valid)."""

    def get_clip_shape(self, data: Any, size: int) -> tuple[int, ...]:
        """The shape of one sample of a training batch, with crops of `size` pixels."""

    def get_input_shape(self, data: Any) -> tuple[int, ...]:
        """The shape of one clip as the network reads it."""

    def build_targets(self, cfg: Any, labels: np.ndarray) -> np.ndarray:
        """The targets of a training batch with `labels` (N,)."""


class ConvertPart(Protocol):
    """`convert.py`: parameter names of other code bases. Two names of one weight have the same
    canonical name.
    """

    def detect_format(self, names: Iterable[str]) -> str:
        """The code base that wrote the file. Raises ValueError if it is unknown."""

    def canonical_name(self, name: str, source_format: str = ...) -> Optional[str]:
        """The canonical name; None for a weight that is dropped on purpose."""

    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
        """How an array of another shape can be used; None: it cannot."""

    def default_value(self, name: str, source_format: str) -> Optional[float]:
        """The value of a weight that the file leaves out; None: the file must contain it."""


class ExportPart(Protocol):
    """`export.py`."""

    def describe_export(self, cfg: Any) -> "ExportSpec":
        """How the network is exported."""


class PredictPart(Protocol):
    """`predict.py`: views of one video at inference."""

    def build_heads(self, cfg: Any) -> "Sequence[Head]":
        """One for each label space of the network."""

    def open_source(self, path: str, cfg: Any) -> "FrameSource":
        """Opens a video (or image) as frames. Raises VideoError."""


class GoldenPart(Protocol):
    """`golden_case.py`: recomputes the results of the original code (tests/golden/*.json)."""

    RECIPE: dict[str, Any]  # settings that `compare_step.py --recipe` may change

    def build_network(self, case: dict, training: bool = False) -> "nn.Cell":
        """The network of a case with its weights."""

    def build_loss(self, case: dict) -> "nn.Cell":
        """The loss of a case."""

    def build_train_step(self, case: dict, part: str) -> "TrainStep":
        """The train step of a case."""

    def build_target(self, case: dict) -> np.ndarray:
        """The target of a training batch."""

    def cell_name(self, point: str) -> str:
        """The name of the cell here whose output the original recorded as `point`."""


@dataclass(frozen=True)
class Network:
    """The record of a network folder.

    `config` is the dataclass of its yaml files. `classifier` is a regular expression: parameters
    whose names match stay fresh with `new_head`, and get the learning rate of `head_lr_mult` if the
    network has that setting. `streams`: the folder has `streaming.py`, which labels a live video.
    """

    name: str
    config: type
    classifier: str
    streams: bool = False

    @property
    def model(self) -> ModelPart:
        return self.load_part("model")

    @property
    def train(self) -> TrainPart:
        return self.load_part("train")

    @property
    def dataset(self) -> DatasetPart:
        return self.load_part("dataset")

    @property
    def convert(self) -> ConvertPart:
        return self.load_part("convert")

    @property
    def export(self) -> ExportPart:
        return self.load_part("export")

    @property
    def predict(self) -> PredictPart:
        return self.load_part("predict")

    @property
    def golden_case(self) -> GoldenPart:
        return self.load_part("golden_case")

    @property
    def streaming(self) -> Any:
        """`streaming.py`: `run_stream(cfg, checkpoint_path, video, head, top, fps, folder)`."""
        return self.load_part("streaming")

    def load_part(self, part: str) -> Any:
        return importlib.import_module(f"{self.name}.{part}")


def list_networks() -> list[str]:
    """The names of the network folders."""
    return sorted(path.parent.name for path in ROOT.glob("*/network.py"))


def find_network(name: str) -> Network:
    """The record of a network folder; the name must be one of `list_networks()`."""
    return importlib.import_module(f"{name}.network").NETWORK


def find_network_of_yaml(path: Path) -> Network:
    """The network of a yaml file `<network>/configs/<name>.yaml`."""
    read_yaml(path)
    name = path.resolve().parent.parent.name
    if name not in list_networks():
        raise ValueError(
            f"--network is missing: {path} is in no network's folder; add --network="
            + "|".join(list_networks())
        )
    return find_network(name)


def load_for_script(config_class: type, path: Path, overrides: list[str], remedy: str) -> Any:
    """`load_config` for a script that takes the yaml files of one network.

    If that fails and the yaml is in another network's folder, the ValueError names `remedy`, the
    script or option for the yaml, with {} for that network.
    """
    try:
        return load_config(config_class, path, overrides)
    except ValueError as error:
        name = path.resolve().parent.parent.name
        if name not in list_networks() or name == config_class.__module__.partition(".")[0]:
            raise
        owner = f"The yaml is in the folder of {name}"
        raise ValueError(f"{error}. {owner}: use {remedy.format(name)}") from None
