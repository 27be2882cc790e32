"""Settings of the multi-dataset MViTv2: types, defaults, checks."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

from utils.messages import format_value
from utils.settings import (
    LARGEST_OF,
    ClassSettings,
    Evaluation,
    NetworkConfig,
    TrainSettings,
    VideoData,
    check_not_negative,
    check_positive,
    check_swap_labels,
)

MAX_SETS = 32
MAX_STAGES = 8  # each doubles the channels


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(ClassSettings):
    """One data set: its classes, its folders, and how its videos are sampled and tested.

    `videos` is a folder in `data.root`. `lists` is a folder in `data.lists` with the annotation
    files `train.csv`, `val.csv` and `test.csv`. `sampling`: `time` samples frames at a fixed rate,
    `segments` one frame of each of equal segments.
    """

    name: str
    num_classes: int
    videos: str = "."
    lists: str = "."
    sampling: Literal["time", "segments"] = "time"
    clips: int = 1  # clips of a video in evaluation
    crops: Literal[1, 3] = 1
    short_side: int = 256  # of a frame in evaluation

    def __post_init__(self):
        check_positive(self, "data.sets", "num_classes", "clips", "short_side")
        if not re.fullmatch("[A-Za-z0-9-]+", self.name):
            raise ValueError(
                f"data.sets: the name {self.name!r} may have letters, digits and hyphens only: it "
                "becomes a part of the names of weights"
            )
        check_swap_labels(self, self.num_classes)


@dataclass(frozen=True, kw_only=True)
class Data(VideoData):
    """All data sets, and the settings that they have in common."""

    sets: tuple[DatasetSettings, ...]
    lists: Optional[Path] = None  # default: root
    frames: int = 32
    stride: int = 3  # distance of two frames of a clip, in frames of a video with rate `fps`
    fps: float = 30.0
    repeated_aug: int = 2  # repeated augmentation: clips of one decoded video
    rand_augment: str = "rand-m7-n4-mstd0.5-inc1"  # empty: off
    area: tuple[float, float] = (0.08, 1.0)  # of a random crop, as a fraction of the frame
    # Range of a random short side, from which square crops are cut; null: crops by `area`.
    scales: Optional[tuple[int, int]] = None
    erase: float = 0.25  # probability of random erasing
    mixup: float = 0.8  # alpha; 0: off
    cutmix: float = 1.0  # alpha; 0: off
    batch: int = 4  # videos per device

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "frames", "stride", "fps", "repeated_aug")
        names = [dataset.name for dataset in self.sets]
        if not 0 < len(names) <= MAX_SETS or len(set(names)) < len(names):
            rule = f"1 to {MAX_SETS}, each with a name of its own"
            raise ValueError(f"data.sets: {rule}, not {format_value(names)}")
        for dataset in self.sets:
            if dataset.short_side < self.crop:
                raise ValueError(f"data.sets: {dataset.name}: short_side is below crop {self.crop}")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"data.area: {list(self.area)} must ascend within (0, 1]")
        scales = self.scales
        if scales and not self.crop <= scales[0] <= scales[1] <= LARGEST_OF["crop"]:
            raise ValueError(
                f"data.scales: {list(self.scales)} must ascend from data.crop {self.crop} or more"
            )

    @property
    def clips_per_sample(self) -> int:
        return self.repeated_aug


@dataclass(frozen=True)
class Model:
    """The arguments of mvit_multi.model.MViT that are not derived from `data`."""

    depth: int = 24
    dim: int = 96  # channels of the first block
    heads: int = 1  # of the first block
    stage_starts: tuple[int, ...] = (2, 5, 21)  # these double channels and heads, halve the grid
    kv_stride: int = 8  # stride of keys and values in the first block
    drop_path: float = 0.1
    dropout: float = 0.5
    # pyslowfast: plain MViTv2, with a class token and relative positions
    variant: Literal["multitrain", "pyslowfast"] = "multitrain"
    relative: bool = False  # relative positions instead of absolute ones
    single_head: bool = False  # one linear head, for one data set
    cross_projections: bool = True  # projections between the heads' classes
    expander: bool = True  # the MLP of the embedding for the informative loss
    depthwise_impl: Literal["auto", "taps", "grouped", "frames"] = "auto"  # utils/nn/conv3d.py
    recompute: bool = False  # recompute activations: less memory, more time in training

    def __post_init__(self):
        check_positive(self, "model", "depth", "dim", "heads", "kv_stride")
        starts = list(self.stage_starts)
        if len(starts) > MAX_STAGES or not all(0 <= start < self.depth for start in starts):
            rule = f"up to {MAX_STAGES} blocks of {self.depth}"
            raise ValueError(f"model.stage_starts: {format_value(starts)} are not {rule}")


@dataclass(frozen=True)
class Train(TrainSettings):
    """What a training does; `base_batch` counts videos, `momentum`, `nesterov` are for sgd."""

    lr: float = 2e-4
    warmup_epochs: float = 10
    warmup_lr: float = 2e-6
    end_lr: float = 2e-6
    optimizer: Literal["adamw", "sgd"] = "adamw"
    nesterov: bool = True
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    smoothing: float = 0.1
    smoothing_classes: int = 0  # classes that smoothing spreads over; 0: the classes of each set
    set_weights: tuple[float, ...] = ()  # weights of the losses of the data sets; empty: all 1
    projection_weight: float = 1.0
    add_to_scores: bool = False  # add projections to scores instead of a loss for each
    informative_weight: float = 0.1  # 0: off
    gradient: Literal["true", "original"] = "true"  # original: the gradient divided by the devices
    # Block i of D, from 0, learns at layer_decay^(D - i) times the rate; 1: all at the same.
    layer_decay: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_not_negative(self, "train", "end_lr", "projection_weight", "informative_weight")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"train.layer_decay must lie in (0, 1], not {self.layer_decay}")


@dataclass(frozen=True)
class Eval(Evaluation):
    """Which data sets are evaluated; the views are settings of each data set."""

    sets: tuple[str, ...] = ()  # names; empty: all
    val_skip: int = 5  # validation in training uses every `val_skip`-th line of val.csv

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "eval", "val_skip")


@dataclass(frozen=True)
class Config(NetworkConfig):
    """The settings of a run."""

    data: Data
    model: Model = Model()
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
        super().__post_init__()
        names = [dataset.name for dataset in self.data.sets]
        model = self.model
        train = self.train
        if model.single_head and len(names) > 1:
            raise ValueError("model.single_head: one linear head serves one data set; give one")
        if train.informative_weight and not model.expander:
            raise ValueError("train.informative_weight needs model.expander")
        if train.set_weights and len(train.set_weights) != len(names):
            raise ValueError(f"train.set_weights must have {len(names)} entries, one a data set")
        for name in self.eval.sets:
            if name not in names:
                raise ValueError(f"eval.sets: {name} is none of {', '.join(names)}")

    @property
    def class_counts(self) -> tuple[int, ...]:
        return tuple(dataset.num_classes for dataset in self.data.sets)

    @property
    def crosses(self) -> bool:
        """Whether the network has projections between the classes of data sets."""
        return self.model.cross_projections and len(self.data.sets) > 1

    @property
    def clip_sizes(self) -> tuple[int, int, int]:
        views = max(dataset.clips * dataset.crops for dataset in self.data.sets)
        side = max(dataset.short_side for dataset in self.data.sets)
        return self.data.frames, side, views

    def get_clip_shape(self, side: int) -> tuple[int, ...]:
        """(3, T, side, side)."""
        return 3, self.data.frames, side, side

    def model_arguments(self) -> dict:
        """The arguments of mvit_multi.model.MViT; `model.depthwise_impl` auto chooses by device."""
        model = self.model
        sets = self.data.sets
        auto = {"Ascend": "taps", "GPU": "grouped", "CPU": "frames"}[self.run.device]
        return {
            **vars(model),
            "datasets": tuple(dataset.name for dataset in sets),
            "num_classes": tuple(dataset.num_classes for dataset in sets),
            "frames": self.data.frames,
            "crop": self.data.crop,
            "cross_projections": self.crosses,
            "depthwise_impl": auto if model.depthwise_impl == "auto" else model.depthwise_impl,
        }
