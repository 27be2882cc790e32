"""Settings: a config file and command-line overrides become one checked, frozen dataclass.

The `Config` of a network has the sections `run`, `data`, `model`, `train`, `eval`, each a frozen
dataclass. Those of `data`, `train` and `eval` derive from `ImageData` or `VideoData`, `Recipe` and
`Evaluation`, which hold what the networks share. An unknown key, a missing key or a value of the
wrong type is a ValueError that names the setting and, for an unknown one, the nearest real one.

Paths in a config file are relative to the checkout, those on the command line to the current
folder. Installed as a package there is no checkout, and both start at the current folder.
"""

import dataclasses
import difflib
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from utils.messages import check_choice, format_error, format_value, shorten_errors
from utils.yaml_text import load_yaml, load_yaml_file


def build_dataclass(cls: type, values: dict, prefix: str) -> Any:
    """An instance of the dataclass `cls` from a dict, every value checked against its type."""
    hints = get_type_hints(cls)
    arguments = {}
    missing = dataclasses.MISSING
    for key in values:
        check_choice(key, hints, f"setting {prefix}")
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        kind = hints[field.name]
        if field.name in values:
            arguments[field.name] = convert_value(values[field.name], kind, name)
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
            arguments[field.name] = build_dataclass(kind, {}, f"{name}.")
        elif field.default is missing and field.default_factory is missing:
            raise ValueError(f"missing setting {name}")
    return cls(**arguments)


def convert_value(value: Any, kind: Any, name: str) -> Any:
    """The value as the type `kind`. Raises ValueError, with the setting, for another type."""
    origin = get_origin(kind)
    args = get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be settings, {{name: value}}, not {format_value(value)}")
        return build_dataclass(kind, value, f"{name}.")
    if origin is Literal:
        if value not in args:
            words = ", ".join(str(word) or "''" for word in args)
            raise ValueError(f"{name} must be one of {words}, not {format_value(value)}")
        return value
    if origin is Union:
        return convert_union(value, args, name)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name} must be a list, not {format_value(value)}")
        inner = args[0] if len(args) == 2 and args[1] is Ellipsis else None
        if inner is None and len(value) != len(args):
            raise ValueError(f"{name} must have {len(args)} entries, not {len(value)}")
        kinds = [inner] * len(value) if inner else args
        return tuple(
            convert_value(v, k, f"{name}[{i}]") for i, (v, k) in enumerate(zip(value, kinds))
        )
    return convert_scalar(value, kind, name)


def convert_union(value: Any, kinds: tuple, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        words = get_args(kind) if get_origin(kind) is Literal else ()
        if type(value) is kind or value in words:
            return convert_value(value, kind, name)
    if value == "" and type(None) in kinds:
        raise ValueError(f"{name} is empty; null is none")
    choices = [kind for kind in kinds if kind is not type(None)]
    lists = [kind for kind in choices if get_origin(kind) is tuple]
    if lists and len(choices) > 1:  # a list, or else one of the words
        words = [kind for kind in choices if kind not in lists]
        return convert_value(value, (lists if isinstance(value, (list, tuple)) else words)[0], name)
    if len(choices) > 1:
        words = [WORDS.get(kind) or ", ".join(get_args(kind)) for kind in choices]
        raise ValueError(f"{name} must be {' or '.join(words)}, not {format_value(value)}")
    return convert_value(value, choices[0], name)


WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def convert_scalar(value: Any, kind: type, name: str) -> Any:
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if kind is float:
        # YAML 1.1 reads 1e-4, without a dot, as a string; and nan and inf.
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif type(value) is kind:
        if not isinstance(value, int) or abs(value) < 2**63:
            return value
        raise ValueError(f"{name} must be an integer below 2^63, not {format_value(value)}")
    raise ValueError(f"{name} must be {WORDS.get(kind, 'a path')}, not {format_value(value)}")


ROOT = Path(__file__).resolve().parents[1]  # of the code: a checkout, or an installed package
# Settings of older versions in the config.yaml of a run, and the values that switched them off.
SWITCHED_OFF = {
    "run.flat_weights": False,
    "run.cluster": None,
    "run.gradient_profile": None,
    "data.packed": None,
}
Level = Literal["O0", "O1", "O2", "O3"]
Device = Literal["Ascend", "GPU", "CPU"]


@dataclasses.dataclass(frozen=True)
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
    # a CPU OpenVINO or ONNX Runtime. auto: on a CPU the faster of OpenVINO
    # and ONNX Runtime, if one is installed and can; else MindSpore.
    engine: Literal["auto", "mindspore", "openvino", "onnxruntime"] = "auto"
    # Precision of OpenVINO: bf16 needs a processor that has it, int8 the package nncf, which
    # quantises the network by clips of a list of the config file. Both change the scores.
    engine_precision: Literal["f32", "bf16", "int8"] = "f32"
    calibration: Literal["train", "val", "test"] = "val"  # the list for int8
    calibration_clips: int = 100  # one of a video, from all parts of the list
    # Ascend operators: compile each shape when it first runs (online), or use CANN's binaries
    # (prebuilt); auto is MindSpore's choice.
    op_compile: Literal["auto", "online", "prebuilt"] = "auto"
    max_overflows: int = 20  # consecutive non-finite steps before the run stops
    # Where AllReduce segments end: layer names, last indices, or none (one segment).
    # scripts/analysis/plan_allreduce.py finds the best split.
    all_reduce: Union[Literal["none"], tuple[Union[int, str], ...]] = "none"
    sink: bool = False  # feed the device many steps at a time; no effect on CPU
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
            raise ValueError(
                f"run.amp_dtype {self.amp_dtype} has no effect at run.amp O0, which is float32; "
                "set run.amp to O1, O2 or O3, or run.amp_dtype to float16"
            )
        check_positive(self, "run", "device_memory", "loss_scale", "max_overflows")
        check_positive(self, "run", "log_every", "save_every", "calibration_clips")
        check_not_negative(self, "run", "save_steps", "keep_checkpoints", "eval_every", "patience")
        if self.mode == "eager" and self.engine in ("openvino", "onnxruntime"):
            raise ValueError(f"run.mode eager needs run.engine mindspore, not {self.engine}")
        for name, is_on in (("keep_best", self.keep_best != "none"), ("patience", self.patience)):
            if is_on and not self.eval_every:
                raise ValueError(
                    f"run.{name} {getattr(self, name)} needs validations: --run.eval_every=1"
                )


def check_positive(section: Any, name: str, *fields: str) -> None:
    """Raises ValueError if a field is neither `auto` nor above 0."""
    for field in fields:
        value = getattr(section, field)
        if value != "auto" and value <= 0:
            raise ValueError(f"{name}.{field} must be above 0, not {value}")


def check_not_negative(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        value = getattr(section, field)
        if value < 0:
            raise ValueError(f"{name}.{field} must not be negative, not {value}")


def check_fraction(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        value = getattr(section, field)
        if not 0 <= value < 1:
            raise ValueError(f"{name}.{field} must lie in [0, 1), not {value}")


@dataclasses.dataclass(frozen=True)
class ImageData:
    """What the section `data` of every network has."""

    root: Path
    crop: int = 224  # pixels, in training
    batch: int = 8  # samples per device
    workers: Union[int, Literal["auto"]] = "auto"  # auto: this device's share of the CPU cores
    processes: Union[bool, Literal["auto"]] = "auto"  # auto: true on a CPU with more than 8 workers
    prefetch: Union[int, Literal["auto"]] = "auto"  # batches prepared in advance; auto: 2 to 8
    max_unreadable: float = 0.01  # the run stops above this fraction of unreadable samples
    # How often an epoch has a class: by its samples, by their square root, or all equally.
    balance: Literal["none", "sqrt", "full"] = "none"
    fraction: float = 1.0  # of the training samples of each class that a run uses

    def __post_init__(self):
        check_positive(self, "data", "crop", "batch", "workers", "prefetch")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"data.fraction must lie in (0, 1], not {self.fraction}")
        check_fraction(self, "data", "max_unreadable")

    @property
    def clips_per_sample(self) -> int:
        """Clips of a video in a training batch."""
        return 1

    @property
    def mixes(self) -> bool:
        """Whether mixup or cutmix is on."""
        return False


@dataclasses.dataclass(frozen=True)
class VideoData(ImageData):
    """What the section `data` of every network for videos has."""

    source: Literal["video", "frames"] = "video"
    image_tmpl: str = "img_{:05d}.jpg"  # if source is frames: the name of frame i, from 1
    folder_fps: float = 0.0  # frames per second of a folder of frames; 0: unknown, as `fps`
    reader: Literal["auto", "pyav", "decord"] = "auto"
    max_pixels: int = 4096 * 4096  # of a frame; a video with larger frames is unreadable

    def __post_init__(self):
        super().__post_init__()
        check_positive(self, "data", "max_pixels")
        check_not_negative(self, "data", "folder_fps")

    @property
    def is_flow(self) -> bool:
        """Whether the frames are optical flow, stored as images."""
        return False


@dataclasses.dataclass(frozen=True)
class Classes:
    """What the section `model` of every network for one data set has."""

    num_classes: int
    labels: Literal["single", "multi"] = "single"  # multi: a sample has any number of labels

    def __post_init__(self):
        check_positive(self, "model", "num_classes")


@dataclasses.dataclass(frozen=True)
class AnnotationLists:
    """The settings of one data set without a default; a class with defaults lists it last."""

    root: Path
    train_list: str
    test_list: str


@dataclasses.dataclass(frozen=True)
class ClassSettings:
    """The names of the classes of a data set, and what a horizontal flip does to them."""

    labels: str = ""  # class names: utils/labels/<labels>.txt
    flip: bool = True
    swap_labels: tuple[tuple[int, int], ...] = ()  # pairs of labels that a flip swaps


@dataclasses.dataclass(frozen=True)
class VideoSet(ClassSettings, VideoData, AnnotationLists):
    """The section `data` of a network for one data set of videos.

    Annotation files, and the videos they name, are relative to `root`.
    """

    val_list: str = ""  # for the validations of a training; empty: `test_list`

    @property
    def lists(self) -> dict[str, str]:
        """{split: annotation file}; the split val only if it has its own."""
        lists = {"train": self.train_list, "test": self.test_list}
        return {**lists, "val": self.val_list} if self.val_list else lists


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the section `train` of every network has; each network has its own defaults."""

    epochs: int = 50
    lr: float = 0.1  # for `base_batch` samples per update; it scales with the batch
    base_batch: int = 0  # 0: use the rates as they are
    warmup_epochs: float = 0
    warmup_lr: float = 0.0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    clip_norm: float = 0.0  # 0: off
    accumulation_steps: int = 1  # micro-batches per update
    ema_decay: float = 0.0  # decay of the exponential moving average of weights; 0: off
    pretrained: Optional[Path] = None  # a converted checkpoint
    new_head: bool = False  # the classifier starts newly initialised
    # Weights that stay as they are: `backbone` (all but the classifier), or a regular expression
    # for their names; empty: none.
    freeze: str = ""
    # In the cross entropy: a number for each class, or `balanced`, 1 / videos; empty: all 1. With
    # model.labels multi the weights of positives; `balanced` is negatives / positives.
    class_weights: Union[Literal["", "balanced"], tuple[float, ...]] = ""

    def __post_init__(self):
        check_positive(self, "train", "epochs", "lr", "accumulation_steps")
        try:
            re.compile(self.freeze)
        except re.error as error:
            raise ValueError(
                f"train.freeze: {self.freeze!r} is not a regular expression: {error}"
            ) from None
        check_fraction(self, "train", "ema_decay")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the section `eval` of every network has."""

    batch: int = 4  # samples per device
    allow_unreadable: bool = False

    def __post_init__(self):
        check_positive(self, "eval", "batch")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """What the `Config` of every network has; each has its own classes of the sections."""

    run: Run
    data: ImageData
    model: Any
    train: Recipe = Recipe()
    eval: Evaluation = Evaluation()

    def __post_init__(self):
        check_class_weights(self)
        if self.has_several_labels:
            check_several_labels(self)
        elif self.run.keep_best == "map":
            raise ValueError("run.keep_best map needs model.labels multi; top1 and loss do not")

    @property
    def has_several_labels(self) -> bool:
        """Whether a sample has any number of labels, not one."""
        return isinstance(self.model, Classes) and self.model.labels == "multi"

    @property
    def blank_label(self) -> Union[int, tuple[int, ...]]:
        """The label of a row that stands for no sample."""
        return () if self.has_several_labels else 0

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of the network's `build_model`."""
        raise NotImplementedError

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The number of classes of each data set."""
        return (self.model.num_classes,)

    @property
    def chance_loss(self) -> float:
        """The training loss of a network that gives all classes the same score.

        Infinite for several labels: the loss of rare labels is far lower soon.
        """
        return math.inf if self.has_several_labels else math.log(self.model.num_classes)


def check_class_weights(cfg: NetworkConfig) -> None:
    """Raises ValueError unless `train.class_weights` fits the classes and `data.balance`."""
    weights = cfg.train.class_weights
    counts = cfg.class_counts
    if weights == "balanced" and cfg.data.balance != "none":
        raise ValueError(
            f"train.class_weights balanced and data.balance {cfg.data.balance} correct the same "
            "imbalance twice; set one of them"
        )
    if isinstance(weights, str):
        return
    if len(counts) > 1:
        raise ValueError("train.class_weights: a list is for one data set; balanced is for several")
    if len(weights) != counts[0]:
        raise ValueError(
            f"train.class_weights has {len(weights)} numbers for {counts[0]} classes; give one for "
            "each class, in the order of the labels"
        )
    if min(weights) <= 0:
        raise ValueError(f"train.class_weights must be above 0, not {min(weights):g}")


def check_several_labels(cfg: NetworkConfig) -> None:
    """Raises ValueError for settings that are defined for one label a sample."""
    if cfg.data.balance != "none":
        raise ValueError(
            f"data.balance {cfg.data.balance} takes samples by their class, and with model.labels "
            "multi they have several; set it to none, and train.class_weights instead"
        )
    if cfg.data.mixes:
        raise ValueError("data.mixup and data.cutmix mix samples with one label: set both to 0")


def check_warmup(train: Recipe) -> None:
    if train.warmup_epochs >= train.epochs:
        raise ValueError(
            f"train.warmup_epochs must be below train.epochs {train.epochs}, "
            f"not {train.warmup_epochs}"
        )


def get_base_folder() -> Path:
    """The folder of data and results: the checkout, or the current folder if this is installed."""
    return ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()


def get_cache_folder() -> Path:
    """The folder of files that are made once: in the checkout, or the user's if it is installed."""
    if get_base_folder() == ROOT:
        return ROOT / ".cache"
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "mindspore_video_zoo"


def resolve_yaml(path: Path) -> Path:
    """The path itself or, if it does not exist, the file of this zoo with this name."""
    own = ROOT / path
    if os.path.exists(path) or not os.path.isfile(own):  # false for a name that is too long
        return Path(path)
    if get_base_folder() != ROOT:  # the user may have meant another copy
        print(f"reading {own}, of the installed package", file=sys.stderr)
    return own


ConfigT = TypeVar("ConfigT", bound=NetworkConfig)


@shorten_errors()
def load_config(cls: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Reads `path`, puts `section.key=value` strings on top and builds `cls`."""
    values = read_yaml(path)
    try:
        drop_settings_without_effect(values)
        check_names(cls, values)
    except ValueError as error:
        network = name_network(cls)
        raise ValueError(f"{path}, read as a config file of {network}: {error}") from None
    resolve_paths(cls, values, get_base_folder())
    values.setdefault("run", {}).setdefault("out", str(get_base_folder() / "out" / Path(path).stem))
    for override in overrides:
        apply_override(cls, values, override)
    if any(override.startswith("run.amp=") for override in overrides):
        values["run"]["cpu_amp"] = values["run"]["amp"]
    return build_dataclass(cls, values, "")


def name_network(cls: type[NetworkConfig]) -> str:
    """The folder of the network whose `Config` this is."""
    return cls.__module__.split(".")[-2]


def drop_settings_without_effect(values: dict) -> None:
    """Removes settings of older versions that the config.yaml of an older run has switched off."""
    for name, off in SWITCHED_OFF.items():
        section, key = name.split(".")
        settings = values.get(section, {})
        if key in settings and settings[key] == off:
            del settings[key]


def read_yaml(path: Path) -> dict:
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such config file{find_nearest_yaml(Path(path))}")
    try:
        values = load_yaml_file(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable config file: {format_error(error)}") from None
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise ValueError(f"{path}: expected sections with settings, as in run: {{device: CPU}}")
    return values


def find_nearest_yaml(path: Path) -> str:
    """Advice with the nearest name of the same folder, here or in this zoo; empty without one."""
    for folder in (path, path.parent, ROOT / path, ROOT / path.parent):
        names = [file.name for file in folder.glob("*.yaml")] if os.path.isdir(folder) else []
        near = difflib.get_close_matches(path.name, names, 1, 0.0)
        if near:
            return f"; nearest: {path if folder.name == path.name else path.parent}/{near[0]}"
    return ""


def check_names(cls: type, values: dict) -> None:
    """Raises ValueError for an unknown section or setting."""
    sections = get_type_hints(cls)
    for section in values:
        check_choice(section, sections, "section")
        for key in values[section]:
            check_choice(key, get_type_hints(sections[section]), f"setting {section}.")


def list_settings(cls: type) -> list[str]:
    """`section.key` of every setting."""
    sections = get_type_hints(cls).items()
    return [f"{name}.{key}" for name, section in sections for key in get_type_hints(section)]


def resolve_paths(cls: type, values: dict, base: Path) -> None:
    """Makes the relative paths among the values absolute."""
    for section, hint in get_type_hints(cls).items():
        for key, kind in get_type_hints(hint).items():
            value = values.get(section, {}).get(key)
            if (kind is Path or Path in get_args(kind)) and isinstance(value, str) and value:
                values[section][key] = str(base / value)


def apply_override(cls: type, values: dict, override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot):
        raise ValueError(f"--{override}: expected --section.key=value")
    try:
        value = load_yaml(text) if text else ""
    except ValueError:
        value = text
    check_names(cls, {section: {key: value}})
    values.setdefault(section, {})[key] = value
    resolve_paths(cls, {section: values[section]}, Path.cwd())


def to_dict(config: Any) -> dict:
    """The settings as plain values, as they are written beside a checkpoint."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def to_yaml(config: Any) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False, default_flow_style=None, width=100)


def check_swap_labels(data: ClassSettings, num_classes: int) -> None:
    """Raises ValueError if `data.swap_labels` has unknown or repeated labels, or no flips."""
    if data.swap_labels and not data.flip:
        raise ValueError("data.swap_labels has no effect while data.flip is false")
    labels = [label for pair in data.swap_labels for label in pair]
    wrong = [label for label in labels if not 0 <= label < num_classes]
    if wrong:
        raise ValueError(
            f"data.swap_labels: {wrong[-1]} is not a label of {num_classes} classes; "
            "give the pairs whose names are of left and right, or none: "
            "--data.swap_labels=[]"
        )
    if len(set(labels)) < len(labels):
        raise ValueError(f"data.swap_labels: {list(map(list, data.swap_labels))} has a label twice")
