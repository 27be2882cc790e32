"""What a network folder provides, and how to find it.

Each network folder has a `network.py`: a subclass of `Network`, and its instance `NETWORK`.
Scripts, benchmarks and tests use a network through it only. docs/adding_a_network.md explains how
to add one.

A `network.py` imports the modules of its folder at its head, but those with Cells in the bodies of
its methods: a process that needs only settings or videos does not import MindSpore.

Words: records are the checked lines of an annotation file. Rows are the samples that one rank
reads, in the order of the run or of the evaluation. A label space is a data set's classes and the
views of its evaluation.
"""

from __future__ import annotations

import abc
import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, Optional

import numpy as np

from utils.data.annotation_file import AnnotationFile, describe_list, encode_label, read_list
from utils.data.rows import EvalRows, TrainRows
from utils.data.sampler import TrainSampler, build_sampler
from utils.evaluate.label_space import LabelSpace, list_own_names
from utils.files import ROOT, compute_sha256
from utils.load_config import read_yaml
from utils.runtime import Runtime
from utils.settings import ConfigT, VideoData, VideoSet
from utils.video.decoders import open_path
from utils.video.reader import FrameReader
from utils.weights.checkpoint_file import check_kind, open_weights
from utils.weights.description import read_description
from utils.weights.parameter_names import ParameterNames

if TYPE_CHECKING:
    import mindspore.dataset as ds
    from mindspore import nn

# The code of every exported network; a change of it changes the file.
CODE = ("utils/nn/**/*.py", "utils/inference/export.py", "utils/inference/onnx_graph.py")
PACKAGE = __name__.removesuffix("utils.networks")  # in a wheel "mindspore_video_zoo.", else empty


class Network(abc.ABC, Generic[ConfigT]):
    """A network folder: its settings, data, classes, model and export.

    `cfg` is a config of the class `config`. `train_rows(records, cfg=, sampler=, epochs=, skip=)`
    are the training rows of a rank, in a run of `epochs` in all whose first `skip` batches are
    done. `eval_rows(records, cfg, rt, split)` are the rows of a rank in a test or a validation: a
    row is a video with all its views. `create_dataset(cfg, rows, workers)` is the MindData pipeline
    of their batches. `label_space(cfg)` has the classes, `parameter_names()` the rules that map the
    parameter names of published checkpoints to ours.
    """

    name: str  # of the folder
    config: type[ConfigT]
    train_rows: Callable[..., TrainRows]
    eval_rows: Callable[..., EvalRows]
    create_dataset: Callable[..., ds.Dataset]
    label_space: Callable[..., LabelSpace]
    parameter_names: Callable[[], ParameterNames]
    reads_images = False

    @abc.abstractmethod
    def build_model(self, **settings: Any) -> nn.Cell:
        """The model; `settings` is `cfg.model_arguments()`. An unknown one is a TypeError."""

    @property
    def classifier(self) -> str:
        """A regular expression for the names of the classifier's parameters."""
        return self.parameter_names().classifier

    def list_annotation_files(self, cfg: ConfigT) -> list[AnnotationFile]:
        """The annotation files, training first; empty if the network reads images."""
        if not isinstance(cfg.data, VideoSet):
            return []
        return [describe_list(cfg, split) for split in cfg.data.lists]

    def read_records(self, cfg: ConfigT, split: str, spaces: Sequence[LabelSpace] = ()) -> Any:
        """The checked samples of `split`: train, val or test. Raises ValueError for bad lines.

        They have the labels of `spaces`, which are `list_label_spaces` with the names of a trained
        network; without them, those of the list.
        """
        file = describe_list(cfg, split)
        return read_list(file._replace(class_names=list_own_names(spaces, 1)[0]))

    def build_train_sampler(self, cfg: ConfigT, records: Any, rt: Runtime) -> TrainSampler:
        """The sampler, which maps each position of the training run to a record."""
        labels = ((record.dataset_index, record.label) for record in records)
        return build_sampler(cfg, rt, len(records), labels)

    def build_eval_rows(
        self, cfg: ConfigT, rt: Runtime, spaces: Sequence[LabelSpace] = (), split: str = "test"
    ) -> Mapping[int, EvalRows]:
        """{index in `list_label_spaces`: its rows on this rank}, of a test or of a validation.

        `spaces` are as in `read_records`, `split` test or val. Label spaces that `cfg.eval` does
        not test are missing. Raises ValueError for bad lines of an annotation file.
        """
        return {0: self.eval_rows(self.read_records(cfg, split, spaces), cfg, rt, split)}

    def get_input_shape(self, cfg: ConfigT) -> tuple[int, ...]:
        """The shape of one training clip as the network reads it, without the batch: (C, T, H, W).

        TSM: (T, C, H, W); images: (C, H, W).
        """
        return cfg.get_clip_shape(cfg.data.crop)

    def get_sample_shape(self, cfg: ConfigT) -> tuple[int, ...]:
        """The shape of one sample of a training batch: of one clip, or of several (S, ...)."""
        return self.get_input_shape(cfg)

    def build_targets(self, cfg: ConfigT, labels: np.ndarray) -> np.ndarray:
        """The targets of a training batch with `labels` int32 (N,)."""
        if cfg.has_several_labels:
            return np.stack([encode_label((int(k),), cfg.class_counts[0]) for k in labels])
        if not cfg.data.mixes:
            return labels.astype(np.int32)
        from utils.data.mixing import draw_partners  # here, as in `TrainRows.write_mix`

        partners = draw_partners(cfg.data, len(labels), (0,))
        return np.column_stack([labels, partners]).astype(np.float32)

    def list_label_spaces(self, cfg: ConfigT) -> Sequence[LabelSpace]:
        """The classes of each data set of the network, with the views of its evaluation."""
        return [self.label_space(cfg)]

    def open_frames(self, cfg: ConfigT, path: str) -> FrameReader:
        """Opens a video, a folder of frames or an image as frames. Raises VideoError."""
        assert isinstance(cfg.data, VideoData)  # a network for images overrides this method
        return open_path(path, cfg.data)

    def find_online_predictor(self, cfg: ConfigT) -> Optional[type]:
        """The StreamPredictor of a network that reads a stream frame by frame; None for windows.

        Its arguments are the config, the `Timing`, and a function from the shape of a frame to
        the network's `Steps`.
        """
        return None

    def describe_export(self, cfg: ConfigT, online: bool = False) -> Any:
        """How the network is exported, an ExportSpec: shape of a clip, output, Cells to replace.

        It is that of the folder's `export_cells.py`. `online`: one step of a network that reads
        frame by frame. Raises ValueError for another network.
        """
        if online and not self.find_online_predictor(cfg):
            raise ValueError("--online needs a network of tsm that has model.online: true")
        module = importlib.import_module(f"{PACKAGE}{self.name}.export_cells")
        return module.describe_online_export(cfg) if online else module.describe_export(cfg)


@dataclass(frozen=True)
class Job(Generic[ConfigT]):
    """What a command works on: a network, its settings, and the process in its group."""

    network: Network[ConfigT]
    cfg: ConfigT
    rt: Runtime


def list_networks() -> list[str]:
    """The names of the network folders."""
    return sorted(path.parent.name for path in ROOT.glob("*/network.py"))


def find_network(name: str) -> Network:
    """The network of a folder; the name must be one of `list_networks()`."""
    return importlib.import_module(f"{PACKAGE}{name}.network").NETWORK


def find_build(name: str) -> Callable:
    """`build(cfg, plan)` of a network's train.py."""
    return importlib.import_module(f"{PACKAGE}{name}.train").build


def find_network_of_yaml(path: Path) -> Network:
    """The network of a config file `<network>/configs/<name>.yaml`."""
    read_yaml(path)  # a file that cannot be read is the first error
    name = path.resolve().parent.parent.name
    if name not in list_networks():
        choices = "|".join(list_networks())
        raise ValueError(f"{path} is in no network's folder; add --network={choices}")
    return find_network(name)


def load_own_config(checkpoint: Path, overrides: Sequence[str] = ()) -> tuple[Network, Any]:
    """(network, config) as a checkpoint describes itself; `overrides` are `section.key=value`.

    Raises ValueError if the file does not describe itself, or is of an unknown network.
    """
    description = read_description(open_weights(checkpoint))
    if description is None:
        check_kind(checkpoint)
        raise ValueError(f"{checkpoint} names no recipe: give the --config_path of its training")
    if description.network not in list_networks():
        raise ValueError(f"{checkpoint} is of the unknown network {description.network}")
    network = find_network(description.network)
    return network, description.build_config(network.config, checkpoint, overrides)


def compute_key(network: str, cfg: Any, weights: str) -> str:
    """A checksum of all that decides the exported network, except the shape of its clips.

    `weights` is the checksum of the checkpoint.
    """
    settings = sorted(cfg.model_arguments().items())
    files = (path for name in (f"{network}/**/*.py", *CODE) for path in sorted(ROOT.glob(name)))
    code = [compute_sha256(path) for path in files if "tests" not in path.relative_to(ROOT).parts]
    content = repr((code, network, weights, settings))
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
