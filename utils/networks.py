"""What a network folder provides, and how to find it.

Each network folder has a `network.py`: a subclass of `Network`, and its instance `NETWORK`.
Scripts, benchmarks and tests use a network through these methods only. docs/adding_a_network.md
explains how to add one.

The methods import what they need in their bodies, so a process that needs only settings or videos
does not import MindSpore.

Words: records are the checked lines of an annotation file. Rows are the samples that one rank
reads, in the order of the run or of the evaluation. A position counts the samples of a run, over
its epochs. A head, here, is a data set's classes and the views of its evaluation.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple

import numpy as np

from utils.files import ROOT
from utils.load_config import load_config, read_yaml
from utils.settings import ConfigT, VideoData, name_network

if TYPE_CHECKING:
    from mindspore import nn

    from utils.data.annotation_file import AnnotationFile
    from utils.data.rows import EvalRows, TrainRows
    from utils.data.sampler import TrainSampler
    from utils.evaluate.label_space import LabelSpace
    from utils.export.export import ExportSpec
    from utils.predict.stream import LiveScorer, Timing
    from utils.runtime import Runtime
    from utils.scoring.scorer import Scorer
    from utils.testing.golden import GoldenCase
    from utils.train.trainer import TrainSetup
    from utils.video.reader import FrameReader
    from utils.weights.parameter_names import ParameterNames


class CamCells(NamedTuple):
    """The Cells of a network that its heat maps (Grad-CAM) are computed from.

    `layer` returns the features of which `arrange` makes feature maps (T, C, H, W), if the network
    has read one clip. `scores` are the Cells, one for each head, that return the raw scores
    (..., classes).
    """

    layer: nn.Cell
    scores: Sequence[nn.Cell]
    arrange: Callable[[np.ndarray], np.ndarray]


class Network(abc.ABC, Generic[ConfigT]):
    """A network folder: how to build its model, data, training and export.

    `cfg` is a config of the class `config`. `classifier` is a regular expression for the names of
    the classifier's parameters: with the setting `train.new_head` they stay newly initialised, and
    with `train.head_lr_mult` they get a separate learning rate.
    """

    name: str  # of the folder
    config: type[ConfigT]
    classifier: str

    @abc.abstractmethod
    def build_model(self, **settings: Any) -> nn.Cell:
        """The model; `settings` is `cfg.model_arguments()`. An unknown one is a TypeError."""

    @abc.abstractmethod
    def build_train_setup(self, cfg: ConfigT, rt: Runtime, sampler: TrainSampler) -> TrainSetup:
        """Model, optimizer and train step; `sampler` gives the number of steps in an epoch."""

    def list_annotation_files(self, cfg: ConfigT) -> list[AnnotationFile]:
        """The annotation files, training first; empty if the network reads images."""
        return []

    @abc.abstractmethod
    def read_records(self, cfg: ConfigT, split: str) -> Any:
        """The checked samples of `split`: train or test. Raises ValueError for bad lines."""

    def build_train_sampler(self, cfg: ConfigT, records: Any, rt: Runtime) -> TrainSampler:
        """The sampler, which maps each position of the training run to a record."""
        from utils.data.videos import build_train_sampler

        return build_train_sampler(cfg, records, rt)

    @abc.abstractmethod
    def build_train_rows(
        self, cfg: ConfigT, records: Any, sampler: TrainSampler, epochs: int, skip: int
    ) -> TrainRows:
        """The training rows of this rank, for a run of `epochs` in all.

        The first `skip` batches of the rank are done: the rows begin after them.
        """

    @abc.abstractmethod
    def build_eval_rows(self, cfg: ConfigT, rt: Runtime) -> Mapping[int, EvalRows]:
        """{index of a head in `list_label_spaces`: its test rows on this rank}.

        A row is a video with all its views. Heads that `cfg.eval` does not evaluate are missing.

        Raises ValueError for bad lines of an annotation file.
        """

    @abc.abstractmethod
    def get_input_shape(self, cfg: ConfigT) -> tuple[int, ...]:
        """The shape of one training clip as the network reads it, without the batch: (C, T, H, W).

        TSM: (T, C, H, W); images: (C, H, W).
        """

    def get_sample_shape(self, cfg: ConfigT) -> tuple[int, ...]:
        """The shape of one sample of a training batch: of one clip, or of several (S, ...)."""
        return self.get_input_shape(cfg)

    def build_targets(self, cfg: ConfigT, labels: np.ndarray) -> np.ndarray:
        """The targets of a training batch with `labels` int32 (N,), before mixup or cutmix."""
        from utils.data.annotation_file import encode_label

        if not cfg.has_several_labels:
            return labels.astype(np.int32)
        return np.stack([encode_label((int(k),), cfg.class_counts[0]) for k in labels])

    @abc.abstractmethod
    def list_label_spaces(self, cfg: ConfigT) -> Sequence[LabelSpace]:
        """The classes of each data set of the network, with the views of its evaluation."""

    def open_frames(self, cfg: ConfigT, path: str) -> FrameReader:
        """Opens a video, a folder of frames or an image as frames. Raises VideoError."""
        from utils.video.decoders import open_path

        assert isinstance(cfg.data, VideoData)  # a network for images overrides this method
        return open_path(path, cfg.data)

    def open_record(self, cfg: ConfigT, record: Any) -> FrameReader:
        """Opens a record of `read_records` as frames, or its segment. Raises VideoError."""
        from utils.data.records import open_record

        assert isinstance(cfg.data, VideoData)  # a network for images overrides this method
        return open_record(record, cfg.data)

    def build_live_scorer(
        self,
        cfg: ConfigT,
        scorer: Scorer,
        heads: Sequence[LabelSpace],
        timing: Timing,
        load: Callable[[], nn.Cell],
    ) -> LiveScorer:
        """How the network labels a stream: sliding windows with the views of its evaluation.

        A network that reads frame by frame overrides this. `scorer` is ready to compute; `load`
        loads the same weights as a Cell in float32. Raises ValueError for a `timing` that does not
        fit.
        """
        from utils.predict.stream import WindowScorer

        return WindowScorer(scorer, heads, timing)

    @abc.abstractmethod
    def describe_export(self, cfg: ConfigT) -> ExportSpec:
        """How the network is exported: shape of a clip, output, Cells to replace for ONNX."""

    @abc.abstractmethod
    def get_parameter_names(self) -> ParameterNames:
        """The rules that map the parameter names of published checkpoints to ours."""

    def find_cam_cells(self, net: nn.Cell) -> CamCells:
        """The Cells of the model `net` that explain a prediction: the last ones with a place.

        Raises ValueError if the network names none.
        """
        raise ValueError(f"--cam: {self.name} does not name the layer of its heat maps")

    def build_golden_case(self, case: dict[str, Any], depthwise_impl: str = "frames") -> GoldenCase:
        """Our side of a case of tests/golden/*.json: network, loss, inputs and train step.

        The case holds the numbers of the published code. `depthwise_impl` replaces the model's own
        setting; `frames` is the fastest on a CPU. Raises ValueError if the network has no cases.
        """
        raise ValueError(f"--case: {self.name} has no golden cases")


def list_networks() -> list[str]:
    """The names of the network folders."""
    return sorted(path.parent.name for path in ROOT.glob("*/network.py"))


def find_network(name: str) -> Network:
    """The network of a folder; the name must be one of `list_networks()`."""
    # Not importlib, which would not find the module of the package `mindspore_video_zoo`.
    return __import__(f"{name}.network", fromlist=["NETWORK"]).NETWORK


def find_network_of_yaml(path: Path) -> Network:
    """The network of a config file `<network>/configs/<name>.yaml`."""
    read_yaml(path)  # a file that cannot be read is the first error
    name = path.resolve().parent.parent.name
    if name not in list_networks():
        raise ValueError(
            f"--network is missing: {path} is in no network's folder; add --network="
            + "|".join(list_networks())
        )
    return find_network(name)


def load_for_script(
    config_class: type[ConfigT], path: Path, overrides: list[str], remedy: str
) -> ConfigT:
    """`load_config` for a script that takes the config files of one network.

    If that fails and the file is in another network's folder, the error ends in `remedy`, what to
    use instead. Its {} is replaced by the name of that network, as in `--network={}`.
    """
    try:
        return load_config(config_class, path, overrides)
    except ValueError as error:
        name = path.resolve().parent.parent.name
        if name not in list_networks() or name == name_network(config_class):
            raise
        owner = f"The config file is in the folder of {name}"
        raise ValueError(f"{error}. {owner}: use {remedy.format(name)}") from None
