"""Reads a config file, puts the command line on top, and builds the settings.

An unknown key, a missing key or a value of the wrong type is a ValueError that names the setting
and, for an unknown one, the nearest real one. In YAML a key that
comes twice and an alias are errors too.

Paths in a config file are relative to the checkout, those on the command line to the current
folder. Installed as a package there is no checkout, and both start at the current folder.

jsonargparse 4.53, tried with TSM's Config, would replace about 95 of these lines by 65: for errors
of one line, names of sections that it leaves unread, and paths (an empty one becomes `.`). It takes
0.17 s to import and build where this takes 0.03 s, and its reader accepts aliases and keys twice.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from utils import removed as removals
from utils.files import ROOT, get_base_folder
from utils.messages import check_choice, format_error, format_value, shorten_errors
from utils.settings import ConfigT, name_network

find_types = functools.cache(get_type_hints)  # {field: its type} of a dataclass


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which refuses aliases and keys that come twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            self.refuse(f"the alias *{event.anchor}: aliases are not supported", event)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    self.refuse(f"the key {key.value} is there twice", key)
                names.add(key.value)
                key.tag = "tag:yaml.org,2002:str"  # a key such as on or 1 is a string here
        return node

    @staticmethod
    def refuse(problem: str, node: Union[yaml.Event, yaml.Node]) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def load_yaml(text: Union[str, bytes]) -> Any:
    """The value of a document; ValueError, with the line if it is known, if it is not YAML."""
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{position}{error.problem or error.context}") from None
    except Exception as error:  # PyYAML lets errors of conversions out: `!!bool x` is a KeyError
        raise ValueError(f"{type(error).__name__} while reading a value: {error}") from None


def build_dataclass(cls: type, values: dict, prefix: str) -> Any:
    """An instance of the dataclass `cls` from a dict, every value checked against its type."""
    hints = find_types(cls)
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
    kinds = get_args(kind) if get_origin(kind) is Union else (kind,)
    if value is None and type(None) in kinds:
        return None
    for one in kinds:
        result = convert_to(value, one, name)
        if result is not MISMATCH:
            return result
    words = []
    for one in kinds:
        if get_origin(one) is Literal:
            choices = [str(word) or "''" for word in get_args(one)]
            words.append(f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}")
        elif one is not type(None):
            words.append(WORDS.get(get_origin(one) or one, "{setting: value}"))
    raise ValueError(f"{name} must be {' or '.join(words)}, not {format_value(value)}")


def convert_to(value: Any, kind: Any, name: str) -> Any:
    """The value as a type that is no union; MISMATCH if it is of another."""
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        words = {str(word).lower(): word for word in get_args(kind)}
        return words.get(value.lower(), MISMATCH) if isinstance(value, str) else MISMATCH
    if get_origin(kind) is tuple:
        kinds = get_args(kind)  # the last may be `...`
        if not isinstance(value, (list, tuple)):
            return MISMATCH
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(value) != len(kinds):
            raise ValueError(f"{name} must have {len(kinds)} entries, not {len(value)}")
        return tuple(convert_value(value[k], one, f"{name}[{k}]") for k, one in enumerate(kinds))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return build_dataclass(kind, value, f"{name}.") if isinstance(value, dict) else MISMATCH
    if kind is Path:
        is_path = isinstance(value, str) and value and "\0" not in value
        return Path(value) if is_path else MISMATCH
    if kind is float:
        # YAML 1.1 reads 1e-4, without a dot, as a string; and nan and inf.
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            if not isinstance(value, bool) and math.isfinite(float(value)):
                return float(value)
        return MISMATCH
    fits = type(value) is kind and (kind is not int or abs(value) < 2**63)
    return value if fits else MISMATCH


MISMATCH = object()
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
WORDS |= {Path: "a path", tuple: "a list"}


def find_recipes() -> dict[str, Path]:
    """{name: config file} of all recipes of the zoo."""
    folders = (file.with_name("configs") for file in ROOT.glob("*/network.py"))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def resolve_yaml(path: Path) -> Path:
    """The path itself or, if it does not exist, the file of the zoo with this path or name.

    A name is a recipe's, with or without `.yaml`, in any case.
    """
    if os.path.isfile(path):
        return Path(path)
    own = ROOT / path
    if len(path.parts) == 1:
        own = find_recipes().get(path.name.lower().removesuffix(".yaml"), own)
    if not os.path.isfile(own):  # also false for a name that is too long
        return Path(path)
    if path.suffix == ".yaml":  # perhaps a copy elsewhere is meant
        print(f"reading {own}, of the zoo", file=sys.stderr)
    return own


@shorten_errors()
def load_config(cls: type[ConfigT], path: Path, overrides: Sequence[str] = ()) -> ConfigT:
    """Reads `path`, puts `section.key=value` strings on top and builds `cls`."""
    return build_config(cls, read_yaml(path), Path(path).stem, overrides, owner=str(path))


@shorten_errors()
def build_config(
    cls: type[ConfigT],
    values: dict,
    name: str,
    overrides: Sequence[str],
    owner: str,
    of_checkpoint: bool = False,
) -> ConfigT:
    """Builds `cls` from {section: {key: value}}, with `section.key=value` strings on top.

    The outputs go to `out/<name>` unless `values` say it. Errors in `values` begin with `owner`.
    Removed settings are dropped if they are off, those `of_checkpoint` always.
    """
    try:
        for removed, (off, _) in removals.SETTINGS.items():
            section, key = removed.split(".")
            settings = values.get(section, {})
            if key in settings and (of_checkpoint or settings[key] == off):
                del settings[key]
        check_names(cls, values)
    except ValueError as error:
        network = name_network(cls)
        raise ValueError(f"{owner}, read as a config file of {network}: {error}") from None
    resolve_paths(cls, values, get_base_folder())
    values.setdefault("run", {}).setdefault("out", str(get_base_folder() / "out" / name))
    for override in overrides:
        apply_override(cls, values, override)
    if any(override.startswith("run.amp=") for override in overrides):
        values["run"]["cpu_amp"] = values["run"]["amp"]
    return build_dataclass(cls, values, "")


def read_yaml(path: Path) -> dict:
    if not os.path.isfile(path):
        names = [*find_recipes(), *map(str, Path(path).parent.glob("*.yaml"))]
        near = difflib.get_close_matches(str(path).lower(), names, 1, 0.0)[0]
        raise ValueError(f"{path}: no such config file; nearest: {near}")
    try:
        values = load_yaml(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable config file: {format_error(error)}") from None
    if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
        raise ValueError(f"{path}: expected sections with settings, as in run: {{device: CPU}}")
    return values


def check_names(cls: type, values: dict) -> None:
    """Raises ValueError for an unknown section or setting."""
    sections = find_types(cls)
    for section in values:
        check_choice(section, sections, "section")
        for key in values[section]:
            if removed := removals.SETTINGS.get(f"{section}.{key}"):
                raise ValueError(f"{section}.{key} was removed; instead: {removed[1]}")
            check_choice(key, find_types(sections[section]), f"setting {section}.")


def list_settings(cls: type) -> list[str]:
    """`section.key` of every setting."""
    sections = find_types(cls).items()
    return [f"{name}.{key}" for name, section in sections for key in find_types(section)]


def resolve_paths(cls: type, values: dict, base: Path) -> None:
    """Makes the relative paths among the values absolute."""
    for section, hint in find_types(cls).items():
        for key, kind in find_types(hint).items():
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
