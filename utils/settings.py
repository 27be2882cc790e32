"""Settings: the frozen dataclasses that a config file becomes, and what they check.

The `Config` of a network has the sections `run`, `data`, `model`, `train`, `eval`, each a frozen
dataclass. Those of `data`, `train` and `eval` derive from `ImageData` or `VideoData`,
`TrainSettings` and `Evaluation`, which hold what the networks share.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union

Level = Literal["O0", "O1", "O2", "O3"]

Device = Literal["Ascend", "GPU", "CPU"]

LARGEST = 1e15  # of a number from outside that has no other bound: products with it stay finite
# Of settings that decide about memory: a checkpoint or config file may come from anybody. No recipe
# comes near them.
LARGEST_OF = {
    **dict.fromkeys(("crop", "resize", "short_side"), 4096),
    **dict.fromkeys(("workers", "first_width", "dim"), 1024),
    **dict.fromkeys(("segments", "frames"), 256),
    "clips": 64,
    **dict.fromkeys(("depth", "heads", "kv_stride", "frames_per_segment"), 128),
    **dict.fromkeys(("repeats", "repeated_aug"), 128),
    "depth_factor": 16,
    "batch": 65_536,
    "num_classes": 100_000,
    "epochs": 100_000,
    "max_pixels": 1 << 28,
}
# Bytes of pixels. A network needs some twenty times its clips' bytes.
LARGEST_CLIP = 1 << 26
LARGEST_BATCH = 1 << 31  # in an evaluation


@dataclass(frozen=True)
class Run:
    """Settings that all networks share: device, precision, AllReduce segments, output."""

    device: Device = "Ascend"
    device_memory: int = 32  # GB that a device needs for the recipe, by a dry run
    seed: int = 0
    amp: Level = "O0"
    # Instead of `amp` on a CPU, where float16 is slower. --run.amp on the command line sets both.
    cpu_amp: Level = "O0"
    # The 16 bits of levels O1 to O3. bfloat16 needs no loss scale, so the next two settings have no
    # effect. MindSpore has it on Ascend, but not on a 910A.
    amp_dtype: Literal["float16", "bfloat16"] = "float16"
    loss_scale: float = 1.0  # with dynamic_loss_scale: the first value
    dynamic_loss_scale: bool = False
    # How MindSpore compiles for Ascend and GPU: kernel by kernel (O0), with fused kernels (O1),
    # the whole graph by GE (O2, Ascend 910A only); auto is MindSpore's choice. No effect on CPU.
    jit_level: Literal["auto", "O0", "O1", "O2"] = "O0"
    # eager: MindSpore calls the network's Python code and compiles nothing: docs/debugging.md.
    mode: Literal["graph", "eager"] = "graph"
    # float32 convolutions and matrix products with a mantissa of 10 bits: HF32 on Ascend, TF32 on
    # GPU. Faster; false is IEEE float32, which comparisons with published numbers need.
    tf32: bool = True
    # What computes the network in an evaluation, a prediction and their benchmark: MindSpore, or on
    # a CPU OpenVINO or ONNX Runtime. auto: on a CPU OpenVINO on x86-64, else ONNX Runtime, if it is
    # installed and can; else MindSpore.
    engine: Literal["auto", "mindspore", "openvino", "onnxruntime"] = "auto"
    # Precision of OpenVINO: bf16 needs a processor that has it, and changes the scores.
    engine_precision: Literal["f32", "bf16"] = "f32"
    # Where AllReduce segments end: layer names, last indices, or none (one segment).
    # scripts/analysis/plan_allreduce.py finds the best split.
    all_reduce: Union[Literal["none"], tuple[Union[int, str], ...]] = "none"
    log_every: int = 20  # steps
    save_every: int = 1  # epochs
    save_steps: int = 0  # steps between more saves; 0: only at epoch ends
    keep_checkpoints: int = 3  # epoch checkpoints kept; 0: all
    eval_every: int = 0  # epochs between validations; 0: none
    # What decides which weights are best.ckpt; map: with model.labels multi.
    keep_best: Literal["none", "top1", "map", "loss"] = "none"
    # Validations without a better value of keep_best (none: of the loss) that end a run; 0: no end.
    patience: int = 0
    profile: Optional[Path] = None  # a folder for the trace of a few steps
    tensorboard: bool = False  # also write the log's values for TensorBoard, into `out`
    resume: bool = True  # continue the run in `out`
    out: Optional[Path] = None  # default: out/<name of the config file>

    @property
    def amp_level(self) -> Level:
        """The amp level in which this run computes."""
        return self.cpu_amp if self.device == "CPU" else self.amp

    def __post_init__(self):
        if not 0 <= self.seed < 2**32:  # NumPy takes no other
            raise ValueError(f"run.seed must lie in [0, 2^32), not {self.seed}")
        if self.amp_dtype != "float16" and self.amp == "O0":
            raise ValueError(f"run.amp_dtype {self.amp_dtype} needs run.amp O1, O2 or O3")
        check_positive(self, "run", "device_memory", "loss_scale")
        check_positive(self, "run", "log_every", "save_every")
        check_not_negative(self, "run", "save_steps", "keep_checkpoints", "eval_every", "patience")
        if self.mode == "eager" and self.engine in ("openvino", "onnxruntime"):
            raise ValueError(f"run.mode eager needs run.engine mindspore, not {self.engine}")
        if (self.keep_best != "none" or self.patience) and not self.eval_every:
            raise ValueError("run.keep_best and run.patience need validations: --run.eval_every=1")


def check_positive(section: Any, name: str, *fields: str) -> None:
    """Raises ValueError if a field is not above 0, or too large; `auto` passes."""
    for field in fields:
        value = getattr(section, field)
        if value != "auto" and value <= 0:
            raise ValueError(f"{name}.{field} must be above 0, not {value}")
        if value != "auto" and value > LARGEST_OF.get(field, math.inf):
            raise ValueError(f"{name}.{field} must be at most {LARGEST_OF[field]}, not {value}")


def check_not_negative(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        if getattr(section, field) < 0:
            raise ValueError(f"{name}.{field} must not be negative, not {getattr(section, field)}")


def check_fraction(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        if not 0 <= getattr(section, field) < 1:
            raise ValueError(f"{name}.{field} must lie in [0, 1), not {getattr(section, field)}")


@dataclass(frozen=True)
class ImageData:
    """What the section `data` of every network has."""

    root: Path
    crop: int = 224  # pixels, in training
    batch: int = 8  # samples per device
    workers: Union[int, Literal["auto"]] = "auto"  # auto: this device's share of the CPU cores
    processes: Union[bool, Literal["auto"]] = "auto"  # auto: true on a CPU with more than 8 workers
    prefetch: Union[int, Literal["auto"]] = "auto"  # batches prepared in advance; auto: 2 to 8
    max_unreadable: float = 0.01  # the run stops above this fraction of unreadable samples
    erase: float = 0.0  # probability of random erasing
    mixup: float = 0.0  # alpha of the Beta distribution of lambda; 0: off
    cutmix: float = 0.0  # likewise; if both are on, half of the batches have mixup

    def __post_init__(self):
        check_positive(self, "data", "crop", "batch", "workers", "prefetch")
        check_not_negative(self, "data", "mixup", "cutmix")
        check_fraction(self, "data", "max_unreadable")
        if not 0 <= self.erase <= 1:
            raise ValueError(f"data.erase must lie in [0, 1], not {self.erase}")
        if self.mixes and self.batch * self.clips_per_sample < 2:
            raise ValueError("data.mixup and data.cutmix need data.batch 2 or more")

    @property
    def clips_per_sample(self) -> int:
        """Clips of a video in a training batch."""
        return 1

    @property
    def mixes(self) -> bool:
        """Whether mixup or cutmix is on."""
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True)
class VideoData(ImageData):
    """What the section `data` of every network for videos has."""

    source: Literal["video", "frames"] = "video"
    image_tmpl: str = "img_{:05d}.jpg"  # if source is frames: the name of frame i, from 1
    folder_fps: float = 0.0  # frames per second of a folder of frames; 0: unknown, as `fps`
    reader: Literal["auto", "pyav", "portable", "decord"] = "auto"
    max_pixels: int = 4096 * 4096  # of a frame; a video with larger frames is unreadable
    rand_augment: str = ""  # a policy like rand-m7-n4-mstd0.5-inc1; empty: off

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "max_pixels")
        check_not_negative(self, "data", "folder_fps")
        if self.rand_augment:
            from utils.video.augment import parse_policy  # here: most recipes need it not

            parse_policy(self.rand_augment)
        if self.is_flow and (self.rand_augment or self.erase):
            raise ValueError("data.rand_augment and data.erase: data.modality flow has no colours")

    @property
    def is_flow(self) -> bool:
        """Whether the frames are optical flow, stored as images."""
        return False


@dataclass(frozen=True)
class Classes:
    """What the section `model` of every network for one data set has."""

    num_classes: int
    labels: Literal["single", "multi"] = "single"  # multi: a sample has any number of labels

    def __post_init__(self):
        check_positive(self, "model", "num_classes")


@dataclass(frozen=True)
class ClassSettings:
    """The names of the classes of a data set, and what a horizontal flip does to them."""

    labels: str = ""  # class names: utils/labels/<labels>.txt
    flip: bool = True
    swap_labels: tuple[tuple[int, int], ...] = ()  # pairs of labels that a flip swaps


@dataclass(frozen=True, kw_only=True)
class VideoSet(ClassSettings, VideoData):
    """The section `data` of a network for one data set of videos.

    Annotation files, and the videos they name, are relative to `root`.
    """

    train_list: str
    test_list: str
    val_list: str = ""  # for the validations of a training; empty: `test_list`

    @property
    def lists(self) -> dict[str, str]:
        """{split: annotation file}; the split val only if it has its own."""
        lists = {"train": self.train_list, "test": self.test_list}
        return {**lists, "val": self.val_list} if self.val_list else lists


@dataclass(frozen=True)
class TrainSettings:
    """What the section `train` of every network has; each network has its own defaults."""

    epochs: int = 50
    lr: float = 0.1  # for `base_batch` samples per update; it scales with the batch
    base_batch: int = 0  # 0: use the rates as they are
    warmup_epochs: float = 0
    warmup_lr: float = 0.0  # where the warm-up begins; the batch does not scale it
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    smoothing: float = 0.0  # of the labels in the cross entropy, over all classes
    clip_norm: float = 0.0  # 0: off
    accumulation_steps: int = 1  # micro-batches per update
    ema_decay: float = 0.0  # decay of the exponential moving average of weights; 0: off
    pretrained: Optional[Path] = None  # a converted checkpoint
    new_head: bool = False  # the classifier starts newly initialised
    head_lr_mult: float = 1.0  # the classifier's rate over the other weights'
    # Weights that stay as they are: `backbone` (all but the classifier), or a regular expression
    # for their names; empty: none.
    freeze: str = ""
    # With `freeze: backbone`, the classifier is trained on the features of so many random clips of
    # each sample, which are computed once; 0: on features of new clips in every epoch.
    feature_draws: int = 0
    sync_batch_norm: bool = False  # statistics of batch norms over all devices, not of each one
    # In the cross entropy: a number for each class, or `balanced`, 1 / videos; empty: all 1. With
    # model.labels multi the weights of positives; `balanced` is negatives / positives.
    class_weights: Union[Literal["", "balanced"], tuple[float, ...]] = ""

    def __post_init__(self):
        check_positive(self, "train", "epochs", "lr", "accumulation_steps", "head_lr_mult")
        try:
            re.compile(self.freeze)
        except re.error as error:
            raise ValueError(f"train.freeze is no regular expression: {error}") from None
        check_fraction(self, "train", "ema_decay", "smoothing", "momentum")
        check_not_negative(self, "train", "feature_draws", "clip_norm", "weight_decay")
        check_not_negative(self, "train", "warmup_epochs", "warmup_lr")


@dataclass(frozen=True)
class Evaluation:
    """What the section `eval` of every network has."""

    batch: int = 4  # samples per device
    allow_unreadable: bool = False

    def __post_init__(self):
        check_positive(self, "eval", "batch")


@dataclass(frozen=True)
class NetworkConfig:
    """What the `Config` of every network has; each has its own classes of the sections."""

    run: Run
    data: ImageData
    model: Any
    train: TrainSettings = TrainSettings()
    eval: Evaluation = Evaluation()

    def __post_init__(self):
        frames, side, views = self.clip_sizes
        clip = 3 * frames * side**2
        if clip > LARGEST_CLIP:
            raise ValueError(f"data: a clip of {frames} frames of {side} pixels is too large")
        if self.eval.batch * max(views, 4) * clip > LARGEST_BATCH:
            raise ValueError(f"eval.batch {self.eval.batch} is too large for {views} views")
        weights = self.train.class_weights
        is_list = not isinstance(weights, str)
        if is_list and ((len(weights),) != self.class_counts or min(weights) <= 0):
            counts = self.class_counts  # of a list, for one data set only
            raise ValueError(f"train.class_weights must have {counts} numbers above 0")
        if self.has_several_labels and (self.data.mixes or self.train.smoothing > 0):
            raise ValueError("model.labels multi: data.mixup, cutmix and train.smoothing must be 0")
        if self.run.keep_best == "map" and not self.has_several_labels:
            raise ValueError("run.keep_best map needs model.labels multi; top1 and loss do not")

    @property
    def clip_sizes(self) -> tuple[int, int, int]:
        """Of an evaluation: frames of a clip, side of a frame in pixels, views of a sample."""
        return 1, self.data.crop, 1

    @property
    def has_several_labels(self) -> bool:
        """Whether a sample has any number of labels, not one."""
        return isinstance(self.model, Classes) and self.model.labels == "multi"

    @property
    def example_label(self) -> Union[int, tuple[int, ...]]:
        """The label of a row that stands for no sample."""
        return () if self.has_several_labels else 0

    def get_clip_shape(self, side: int) -> tuple[int, ...]:
        """The shape of one clip of `side` pixels as the network reads it."""
        raise NotImplementedError

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of the network's `build_model`."""
        raise NotImplementedError

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The number of classes of each data set."""
        return (self.model.num_classes,)


ConfigT = TypeVar("ConfigT", bound=NetworkConfig)


def name_network(cls: type[NetworkConfig]) -> str:
    """The folder of the network whose `Config` this is."""
    return cls.__module__.split(".")[-2]


def check_swap_labels(data: ClassSettings, num_classes: int) -> None:
    """Raises ValueError if `data.swap_labels` has unknown or repeated labels."""
    labels = [label for pair in data.swap_labels for label in pair]
    if len({*labels} & {*range(num_classes)}) < len(labels):
        fault = f"a label is there twice, or is none of {num_classes} classes"
        raise ValueError(f"data.swap_labels: {fault}; --data.swap_labels=[] is for none")
