"""Reads YAML. A key that comes twice and an alias are errors: both are mistakes in a config."""

import os
from pathlib import Path
from typing import Any, Union

import yaml


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
    except yaml.reader.ReaderError as error:
        raise ValueError(f"character {error.position}: {error.reason}") from None
    except Exception as error:  # PyYAML lets errors of conversions out: `!!bool x` is a KeyError
        raise ValueError(f"{type(error).__name__} while reading a value: {error}") from None


def load_yaml_file(path: Path) -> Any:
    """Raises OSError if the file cannot be read, else as `load_yaml`."""
    if not os.path.isfile(path):  # a pipe would block
        raise ValueError("no file")
    return load_yaml(path.read_bytes())
