"""Reads untrusted YAML: bounded work, plain values, texts as keys; else a ValueError."""

import os
from pathlib import Path
from typing import Any, Union

import yaml

MAX_BYTES = 2**17  # bytes of a document; also the kernel's limit for one argument of a command
MAX_DEPTH = 20  # lists and mappings inside each other; settings need four


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, which can make documents exponentially large.

    Merge keys, keys that are not text, and a key that comes twice are refused too.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            self.refuse(f"the alias *{event.anchor}: aliases are not supported", event)
        if self.depth == MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} levels of nesting", self.peek_event())
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str" or not isinstance(key, yaml.ScalarNode):
                self.refuse("a key that is not text; texts such as on and 1 need quotes", key)
            if key.value in names:
                self.refuse(f"the key {key.value} is there twice", key)
            names.add(key.value)
        return node

    @staticmethod
    def refuse(problem: str, node: Union[yaml.Event, yaml.Node]) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def load_yaml(text: Union[str, bytes]) -> Any:
    """The value of a document; of bytes, in UTF-8 or, with a byte order mark, UTF-16.

    Raises ValueError, with the line if it is known, for anything that is not YAML of this kind.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES} bytes")
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{position}{error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"character {error.position}: {error.reason}") from None
    except Exception as error:  # PyYAML lets errors of conversions out: `!!bool x` is a KeyError
        raise ValueError(f"{type(error).__name__} while reading a value: {error}") from None


def load_yaml_file(path: Path) -> Any:
    """Raises OSError if the file cannot be read, else as `load_yaml`."""
    if not os.path.isfile(path):  # a pipe would block
        raise ValueError("no file")
    with open(path, "rb") as file:
        return load_yaml(file.read(MAX_BYTES + 1))
