"""YAML and command line to one frozen dataclass, checked at the door.

The `Config` of a network has the sections `run`, `data`, `model`, `train`, `eval`, each a frozen
dataclass. An unknown key, a missing key or a value of the wrong type is a ValueError that names the
setting and, for an unknown one, the nearest real one.

Paths: in a yaml they are relative to the checkout, on the command line to the current folder.
Installed as a package there is no checkout, and both start at the current folder.
"""

import dataclasses
import difflib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Optional, Union, get_args, get_type_hints

if not find_spec("mindspore"):  # the commonest first error: a shell without the environment
    print(
        f"error: {sys.executable} has no MindSpore: source .venv/bin/activate, which "
        "bash scripts/quickstart.sh makes, or pip install -r requirements.txt",
        file=sys.stderr,
    )
    sys.exit(2)

import math
from collections.abc import Sequence
from typing import get_origin

import yaml

from utils.distributed.cost_model import Cluster
from utils.messages import check_choice, cut_errors, quote, to_line
from utils.yaml_text import load_yaml, load_yaml_file


def build(cls: type, values: dict, prefix: str) -> Any:
    """An instance of the dataclass `cls` from a dict, every value checked against its type."""
    hints, arguments = get_type_hints(cls), {}
    for key in values:
        check_choice(key, hints, f"setting {prefix}" if prefix else "section")
    for field in dataclasses.fields(cls):
        name, kind = prefix + field.name, hints[field.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            arguments[field.name] = build(kind, values.get(field.name, {}), name + ".")
        elif field.name in values:
            arguments[field.name] = convert(values[field.name], kind, name)
        elif is_required(field):
            raise ValueError(f"missing setting {name}")
    return cls(**arguments)


def is_required(field: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def convert(value: Any, kind: Any, name: str) -> Any:
    """The value as the type `kind`; ValueError that names the setting where it is not one."""
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{name} must be settings, {{name: value}}, not {quote(value)}")
        return build(kind, value, f"{name}.")
    if origin is Literal:
        if value not in args:
            words = ", ".join(map(str, args))
            raise ValueError(f"{name} must be one of {words}, not {quote(value)}")
        return value
    if origin is Union:
        return convert_union(value, args, name)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name} must be a list, not {quote(value)}")
        inner = args[0] if len(args) == 2 and args[1] is Ellipsis else None
        if inner is None and len(value) != len(args):
            raise ValueError(f"{name} must have {len(args)} entries, not {len(value)}")
        kinds = [inner] * len(value) if inner else args
        return tuple(convert(v, k, f"{name}[{i}]") for i, (v, k) in enumerate(zip(value, kinds)))
    return convert_scalar(value, kind, name)


def convert_union(value: Any, kinds: tuple, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        words = get_args(kind) if get_origin(kind) is Literal else ()
        if type(value) is kind or value in words:
            return convert(value, kind, name)
    if value == "" and type(None) in kinds:
        raise ValueError(f"{name} is empty; null is none")
    choices = [kind for kind in kinds if kind is not type(None)]
    lists = [kind for kind in choices if get_origin(kind) is tuple]
    if lists and len(choices) > 1:  # a list, or else one of the words
        words = [kind for kind in choices if kind not in lists]
        return convert(value, (lists if isinstance(value, (list, tuple)) else words)[0], name)
    if len(choices) > 1:
        words = [WORDS.get(kind) or ", ".join(get_args(kind)) for kind in choices]
        raise ValueError(f"{name} must be {' or '.join(words)}, not {quote(value)}")
    return convert(value, choices[0], name)


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def convert_scalar(value: Any, kind: type, name: str) -> Any:
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if kind is float:
        # YAML 1.1 reads 1e-4, without a dot, as a text; and nan and inf.
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (OverflowError, TypeError, ValueError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif type(value) is kind:
        if not isinstance(value, int) or abs(value) < 2**63:
            return value
        raise ValueError(f"{name} must be a whole number below 2^63, not {quote(value)}")
    raise ValueError(f"{name} must be {WORDS.get(kind, 'a path')}, not {quote(value)}")


ROOT = Path(__file__).resolve().parents[1]  # of the code: a checkout, or an installed package
Level = Literal["O0", "O1", "O2", "O3"]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is the same in every network: device, precision, splits, where the results go."""

    device: Literal["Ascend", "GPU", "CPU"] = "Ascend"
    device_memory: int = 32  # GB that a device needs for the recipe, by a dry run
    seed: int = 0
    amp: Level = "O0"
    loss_scale: float = 1.0  # with dynamic_loss_scale: the first value
    dynamic_loss_scale: bool = False
    # How MindSpore compiles for Ascend and GPU: kernel by kernel (O0), with fused kernels (O1),
    # the whole graph by GE (O2, Ascend 910A only); auto is MindSpore's choice. No effect on CPU.
    jit_level: Literal["auto", "O0", "O1", "O2"] = "O0"
    # float32 convolutions and matrix products with a mantissa of 10 bits: HF32 on Ascend, TF32 on
    # GPU. Faster; false is IEEE float32, which comparisons with published numbers need.
    tf32: bool = True
    # Ascend operators: compile each shape when it first runs (online), or use CANN's binaries
    # (prebuilt); auto is MindSpore's choice.
    op_compile: Literal["auto", "online", "prebuilt"] = "auto"
    max_overflows: int = 20  # consecutive non-finite steps before the run stops
    # Where AllReduce segments end: layer names, last indices, auto (planned) or none (one segment).
    all_reduce: Union[Literal["auto", "none"], tuple[Union[int, str], ...]] = "none"
    cluster: Optional[Cluster] = None  # the machines, for `auto`
    gradient_profile: Optional[Path] = (
        None  # for `auto`: of profile_backward.py, or plan_allreduce.py --chip
    )
    sink: bool = False  # feed the device many steps at a time; no effect on CPU
    log_every: int = 20  # steps
    save_every: int = 1  # epochs
    save_steps: int = 0  # also save each so many steps; 0: at epoch ends only
    keep_checkpoints: int = 3  # epoch checkpoints kept; 0: all
    eval_every: int = 0  # epochs; 0: never while training
    profile: Optional[Path] = None  # a folder for the trace of a few steps
    tensorboard: bool = False  # also write the log's values for TensorBoard, into `out`
    resume: bool = True  # go on where the run in `out` stopped
    out: Optional[Path] = None  # default: out/<name of the yaml>

    def __post_init__(self):
        if not 0 <= self.seed < 2**32:  # NumPy takes no other
            raise ValueError(f"run.seed must lie in [0, 2^32), not {self.seed}")
        positive(self, "run", "device_memory", "loss_scale", "max_overflows")
        positive(self, "run", "log_every", "save_every")
        not_negative(self, "run", "save_steps", "keep_checkpoints", "eval_every")
        if self.all_reduce == "auto" and self.cluster is None:
            raise ValueError(
                "run.all_reduce auto needs run.cluster: "
                "{devices_per_node: 8, bandwidth: 12.5, latency: 5, ...}"
            )


def positive(section: Any, name: str, *fields: str) -> None:
    """Raises where one of the fields is neither `auto` nor above 0."""
    for field in fields:
        value = getattr(section, field)
        if value != "auto" and value <= 0:
            raise ValueError(f"{name}.{field} must be above 0, not {value}")


def not_negative(section: Any, name: str, *fields: str) -> None:
    for field in fields:
        value = getattr(section, field)
        if value < 0:
            raise ValueError(f"{name}.{field} must not be negative, not {value}")


def home() -> Path:
    """Where data and results lie: the checkout, or the current folder if this is installed."""
    return ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()


def locate(path: Path) -> Path:
    """The path itself, or where nothing is there, the file of this zoo that has this name."""
    own = ROOT / path
    if os.path.exists(path) or not os.path.isfile(own):  # false for a name that is too long
        return Path(path)
    if home() != ROOT:  # who has a copy of their own should see that this is not it
        print(f"reading {own}, of the installed package", file=sys.stderr)
    return own


@cut_errors()
def load_config(cls: type, path: Path, overrides: Sequence[str] = ()) -> Any:
    """Reads `path`, puts `section.key=value` strings on top and builds `cls`."""
    values = read_yaml(path)
    check_names(cls, values, path)
    values = resolve_paths(cls, values, home())
    values.setdefault("run", {}).setdefault("out", str(home() / "out" / Path(path).stem))
    for override in overrides:
        apply_override(cls, values, override)
    return build(cls, values, "")


def read_yaml(path: Path) -> dict:
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such config file{nearest_yaml(Path(path))}")
    try:
        values = load_yaml_file(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable yaml: {one_line(error)}") from None
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise ValueError(f"{path}: expected sections with settings, as in run: {{device: CPU}}")
    return values


def nearest_yaml(path: Path) -> str:
    """Of the folder that was named, of this zoo's if it has none; empty where there is no yaml."""
    for folder in (path, path.parent, ROOT / path, ROOT / path.parent):
        names = [file.name for file in folder.glob("*.yaml")] if os.path.isdir(folder) else []
        near = difflib.get_close_matches(path.name, names, 1, 0.0)
        if near:
            return f"; nearest: {path if folder.name == path.name else path.parent}/{near[0]}"
    return ""


def check_names(cls: type, values: dict, path: Path) -> None:
    """Raises for a section or a setting that there is not, with the yaml's name."""
    sections = get_type_hints(cls)
    try:
        for section in values:
            check_choice(section, sections, "section")
            for key in values[section] if dataclasses.is_dataclass(sections[section]) else ():
                check_choice(key, get_type_hints(sections[section]), f"setting {section}.")
    except ValueError as error:
        network = cls.__module__.partition(".")[0]
        raise ValueError(f"{path}, read as a yaml of {network}: {error}") from None


def list_settings(cls: type) -> list[str]:
    """`section.key` of every setting."""
    sections = get_type_hints(cls).items()
    return [f"{name}.{key}" for name, section in sections for key in get_type_hints(section)]


def one_line(error: Exception) -> str:
    return to_line(error) or type(error).__name__


def first_of(names: list[str], most: int) -> str:
    """`a, b and 7 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def resolve_paths(cls: type, values: dict, base: Path) -> dict:
    """Makes the relative paths among the values absolute; leaves unknown keys for `build`."""
    for section, hint in get_type_hints(cls).items():
        for key, kind in get_type_hints(hint).items() if dataclasses.is_dataclass(hint) else ():
            value = values.get(section, {}).get(key)
            if is_path(kind) and isinstance(value, str) and value:
                values[section][key] = str(base / value)
    return values


def is_path(kind: Any) -> bool:
    return kind is Path or Path in get_args(kind)


def apply_override(cls: type, values: dict, override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot):
        raise ValueError(f"--{override}: expected --section.key=value")
    try:
        value = load_yaml(text) if text else ""
    except ValueError:
        value = text
    sections = get_type_hints(cls)
    check_choice(section, sections, "section")
    check_choice(key, get_type_hints(sections[section]), f"setting {section}.")
    values.setdefault(section, {})[key] = value
    resolve_paths(cls, {section: values[section]}, Path.cwd())


def to_dict(config: Any) -> dict:
    """The resolved settings as plain values, as they are written beside a checkpoint."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return str(value) if isinstance(value, Path) else value

    return plain(dataclasses.asdict(config))


def to_yaml(config: Any) -> str:
    return yaml.safe_dump(to_dict(config), sort_keys=False, default_flow_style=None, width=100)


def check_swap_labels(data: Any, num_classes: int) -> None:
    """`data.swap_labels` names labels that exist, and goes with flips."""
    if data.swap_labels and not data.flip:
        raise ValueError("data.swap_labels has no effect while data.flip is false")
    labels = [label for pair in data.swap_labels for label in pair]
    wrong = [label for label in labels if not 0 <= label < num_classes]
    if wrong:
        raise ValueError(
            f"data.swap_labels: {wrong[-1]} is no label of {num_classes} classes; give the pairs "
            "whose names are of left and right, or none where there are none: "
            "--data.swap_labels=[]"
        )
    if len(set(labels)) < len(labels):
        raise ValueError(f"data.swap_labels: {list(map(list, data.swap_labels))} has a label twice")
