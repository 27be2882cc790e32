"""Settings of TSM: types, defaults, checks."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Optional, Union

from utils.config import (
    Run,
    check_fraction,
    check_not_negative,
    check_positive,
    check_swap_labels,
    check_warmup,
)


@dataclass(frozen=True)
class Data:
    """The data set. Annotation files, and the videos they name, are relative to `root`."""

    root: Path
    train_list: str
    test_list: str
    labels: str = ""  # class names: utils/labels/<labels>.txt
    packed: Optional[Path] = None  # folder of packed videos: scripts/data/pack_videos.py
    source: Literal["video", "frames"] = "video"
    image_tmpl: str = "img_{:05d}.jpg"  # if source is frames: the name of frame i, from 1
    modality: Literal["rgb", "flow"] = "rgb"
    reader: Literal["auto", "pyav", "decord", "opencv"] = "auto"
    max_pixels: int = 4096 * 4096  # of a frame; a video with larger frames is unreadable
    segments: int = 8
    frames_per_segment: int = 1
    sampling: Literal["uniform", "dense"] = "uniform"
    resize: int = 256  # short side of a frame in evaluation
    crop: int = 224
    # Of the multi-scale crop: its edges as fractions of the short side.
    scales: tuple[float, ...] = (1, 0.875, 0.75, 0.66)
    flip: bool = True
    swap_labels: tuple[tuple[int, int], ...] = ()  # pairs of labels that a flip swaps
    batch: int = 8  # clips per device
    workers: Union[int, Literal["auto"]] = "auto"  # auto: this device's share of the CPU cores
    processes: Union[bool, Literal["auto"]] = "auto"  # auto: true on a CPU with more than 8 workers
    prefetch: Union[int, Literal["auto"]] = "auto"  # batches prepared in advance; auto: 2 to 8
    max_unreadable: float = 0.01  # the run stops above this fraction of unreadable videos

    def __post_init__(self):
        numbers = ("segments", "frames_per_segment", "resize", "crop", "batch", "workers")
        check_positive(self, "data", *numbers, "prefetch", "max_pixels")
        if self.modality == "flow" and self.source == "video":
            raise ValueError(
                "data.modality flow needs data.source frames: flow is stored as images"
            )
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(
                f"data.scales: {list(self.scales)} must be fractions of the frame, above 0 up to 1"
            )
        check_fraction(self, "data", "max_unreadable")


@dataclass(frozen=True)
class Model:
    """The arguments of tsm.model.TSM that are not derived from `data`."""

    num_classes: int
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
    # How strided convolutions and pools pad: utils/nn/padding.py. Not for mobilenetv2.
    padding: Literal["symmetric", "same", "same_pool"] = "symmetric"

    def __post_init__(self):
        check_positive(self, "model", "num_classes", "first_width")
        check_not_negative(self, "model", "shift_div")


@dataclass(frozen=True)
class Train:
    """The recipe. `lr` is for `base_batch` clips per update; it scales with the batch size."""

    epochs: int = 50
    lr: float = 0.02
    base_batch: int = 128  # 0: use lr as it is
    schedule: Literal["step", "cosine"] = "step"
    milestones: tuple[int, ...] = (20, 40)
    warmup_epochs: float = 0
    warmup_lr: float = 0.0
    lr_changes: Literal["epoch", "update"] = "epoch"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    head_lr_mult: float = 5.0  # of the classifier's weight; its bias has twice this
    batch_norm: Literal["trained", "partial", "frozen"] = "trained"
    clip_norm: float = 20.0  # 0: off
    accumulation_steps: int = 1  # micro-batches per update
    ema_decay: float = 0.0  # decay of the exponential moving average of weights; 0: off
    pretrained: Optional[Path] = None  # a converted checkpoint
    new_head: bool = False  # the classifier starts fresh

    def __post_init__(self):
        check_positive(self, "train", "epochs", "lr", "accumulation_steps", "head_lr_mult")
        check_fraction(self, "train", "ema_decay")
        check_warmup(self)


@dataclass(frozen=True)
class Eval:
    """Evaluation views: `clips` in time times `crops` in space.

    Uniform sampling offers 1 or 2 clips, dense sampling any number.
    """

    sampling: Literal["as_data", "uniform", "dense"] = "as_data"
    clips: int = 1
    crops: Literal[1, 3, 5, 10] = 1
    crop: int = 0  # 0: data.crop; the full-resolution test uses data.resize
    batch: int = 4  # videos per device
    allow_unreadable: bool = False

    def __post_init__(self):
        check_positive(self, "eval", "clips", "batch")


@dataclass(frozen=True)
class Config:
    run: Run
    data: Data
    model: Model
    train: Train = Train()
    eval: Eval = Eval()

    def __post_init__(self):
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

    def model_arguments(self) -> dict:
        derived = ("segments", "modality", "frames_per_segment")
        return {**asdict(self.model), **{name: getattr(self.data, name) for name in derived}}
