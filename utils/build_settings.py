"""Turns plain values, as YAML gives them, into dataclasses of settings; errors name the setting."""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from utils.messages import cut, quote

LONGEST_NAME = 100  # characters of an unknown name that are compared with the real ones


def check_choice(name: str, names: Any, what: str) -> None:
    """Raises where `name` is none of `names`, with the nearest that is."""
    if name in names:
        return
    gap = "" if what[-1] in ".-" else " "  # "setting data." and "option --" end in half a name
    name = cut(name, LONGEST_NAME)
    raise ValueError(f"unknown {what}{gap}{name}; nearest: {nearest(name, names)}")


def nearest(name: str, names: Iterable[str]) -> str:
    """The most similar of `names`, by the first characters of `name`."""
    return difflib.get_close_matches(name[:LONGEST_NAME], list(names), 1, 0.0)[0]


def build(cls: type, values: dict, prefix: str) -> Any:
    """An instance of the dataclass `cls` from a dict, every value checked against its type."""
    hints, arguments = get_type_hints(cls), {}
    for key in values:
        check_choice(key, hints, f"setting {prefix}" if prefix else "section")
    for field in dataclasses.fields(cls):
        name, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
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
    if dataclasses.is_dataclass(kind):
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
        if kind is not int or abs(value) < 2**63:
            return value
        raise ValueError(f"{name} must be a whole number below 2^63, not {quote(value)}")
    raise ValueError(f"{name} must be {WORDS.get(kind, 'a path')}, not {quote(value)}")
