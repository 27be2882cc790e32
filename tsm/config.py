"""Settings of TSM: types, defaults, checks."""

from dataclasses import asdict, dataclass
from typing import Literal

from utils.settings import (
    Classes,
    Evaluation,
    NetworkConfig,
    TrainSettings,
    VideoSet,
    check_not_negative,
    check_positive,
    check_swap_labels,
)

CLASSIFIER = r"^(new_fc|base_model\.(fc|classifier))\."  # names of its parameters


@dataclass(frozen=True)
class Data(VideoSet):
    """The data set and its clips."""

    modality: Literal["rgb", "rgb_diff", "flow"] = "rgb"
    segments: int = 8
    frames_per_segment: int = 1  # of rgb_diff: differences of two frames that follow each other
    sampling: Literal["uniform", "dense"] = "uniform"
    resize: int = 256  # short side of a frame in evaluation
    # Of the multi-scale crop: its edges as fractions of the short side.
    scales: tuple[float, ...] = (1, 0.875, 0.75, 0.66)

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "segments", "frames_per_segment", "resize")
        if self.is_flow and self.source == "video":
            raise ValueError(
                "data.modality flow needs data.source frames: flow is stored as images"
            )
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(
                f"data.scales: {list(self.scales)} must be fractions of the frame, above 0 up to 1"
            )

    @property
    def is_flow(self) -> bool:
        return self.modality == "flow"

    @property
    def frames_read(self) -> int:
        """Frames of a segment that are read: a difference takes one more."""
        return self.frames_per_segment + (self.modality == "rgb_diff")


@dataclass(frozen=True)
class Model(Classes):
    """The arguments of tsm.model.TSM that are not derived from `data`; not `labels`."""

    arch: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenetv2"] = (
        "resnet50"
    )
    first_width: int = 64  # of the first stage of a ResNet; later stages scale with it
    shift_div: int = 8  # 0: plain TSN
    shift_place: Literal["blockres", "block"] = "blockres"
    online: bool = False  # shift channels from the past only, for streaming
    temporal_pool: bool = False
    non_local: bool = False
    dropout: float = 0.5
    consensus: Literal["avg", "identity"] = "avg"
    before_softmax: bool = True
    # How strided convolutions and pools pad: utils/nn/layers.py. Not for mobilenetv2.
    padding: Literal["symmetric", "same", "same_pool"] = "symmetric"

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "model", "first_width")
        check_not_negative(self, "model", "shift_div")
        if self.labels == "multi" and not (self.before_softmax and self.consensus == "avg"):
            raise ValueError(
                "model.labels multi needs model.before_softmax true and model.consensus avg"
            )


@dataclass(frozen=True)
class Train(TrainSettings):
    """What a training does; `base_batch` counts clips."""

    lr: float = 0.02
    base_batch: int = 128
    schedule: Literal["step", "cosine"] = "step"
    milestones: tuple[int, ...] = (20, 40)
    lr_changes: Literal["epoch", "update"] = "epoch"
    head_lr_mult: float = 5.0
    batch_norm: Literal["trained", "partial", "frozen"] = "trained"
    clip_norm: float = 20.0

    def __post_init__(self):
        super().__post_init__()
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"train.warmup_epochs must be below train.epochs {self.epochs}")


@dataclass(frozen=True)
class Eval(Evaluation):
    """Evaluation views: `clips` in time times `crops` in space.

    Uniform sampling offers 1 or 2 clips, dense sampling any number.
    """

    sampling: Literal["as_data", "uniform", "dense"] = "as_data"
    clips: int = 1
    crops: Literal[1, 3, 5, 10] = 1
    crop: int = 0  # 0: data.crop; for a full-resolution test set it to data.resize

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "eval", "clips")


@dataclass(frozen=True)
class Config(NetworkConfig):
    """The settings of a run."""

    data: Data
    model: Model
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
        super().__post_init__()
        if not self.dense_test and self.eval.clips > 2:
            raise ValueError(
                f"eval.clips: uniform sampling offers 1 or 2 clips, not {self.eval.clips}; "
                "eval.sampling=dense offers any number"
            )
        check_swap_labels(self.data, self.model.num_classes)
        if self.test_crop > self.data.resize:
            name = f"{'eval' if self.eval.crop else 'data'}.crop {self.test_crop}"
            raise ValueError(f"{name} is larger than data.resize {self.data.resize}")

    @property
    def dense_test(self) -> bool:
        sampling = self.eval.sampling
        return (self.data.sampling if sampling == "as_data" else sampling) == "dense"

    @property
    def test_crop(self) -> int:
        return self.eval.crop or self.data.crop

    @property
    def clip_sizes(self) -> tuple[int, int, int]:
        frames = self.data.segments * self.data.frames_read
        return frames, self.data.resize, self.eval.clips * self.eval.crops

    def get_clip_shape(self, side: int) -> tuple[int, ...]:
        """(T, C, side, side)."""
        channels = (2 if self.data.is_flow else 3) * self.data.frames_read
        return self.data.segments, channels, side, side

    def model_arguments(self) -> dict:
        arguments = asdict(self.model)
        del arguments["labels"]  # no argument of the network: multi-label needs its logits
        derived = ("segments", "modality", "frames_per_segment")
        return {**arguments, **{name: getattr(self.data, name) for name in derived}}
