"""docs/migration.md: every setting of ours that it names exists and has the value it says."""

import re
from typing import get_args, get_type_hints

import pytest
import yaml

from utils.config import ROOT, load_config, to_dict
from utils.networks import find_network

TEXT = (ROOT / "docs" / "migration.md").read_text()
OURS = re.compile(r"^Ours: `((\w+)/configs/\w+\.yaml)`", re.MULTILINE)
SETTING = re.compile(r"(run|data|model|train|eval)\.(\w+)(?:\.(\w+))?(?:: (.+))?")


def rows() -> list:
    """(room, yaml, last cell of a row) of the sections that name a yaml of ours."""
    result = []
    for section in TEXT.split("\n## ")[1:]:
        if named := OURS.search(section):
            lines = [line for line in section.splitlines() if line.startswith("| `")]
            cells = [line.strip("|").split("|") for line in lines]
            assert {len(row) for row in cells} == {3}, section.splitlines()[0]
            result += [(named[2], named[1], row[2].strip()) for row in cells]
    return result


def config_class(network_name: str) -> type:
    return find_network(network_name).config


def check(network_name: str, path: str, term: str) -> bool:
    """Whether a term is a setting of ours; it must then be a real one, with its value."""
    if term.startswith("--") and "." in term.split("=")[0]:
        given = [word[2:] for word in term.split()]
        load_config(config_class(network_name), ROOT / path, given)
        return True
    named = SETTING.fullmatch(term)
    if not named or named[2] in ("py", "csv", "txt"):
        return False
    section, key, inner, text = named.groups()
    kinds = get_type_hints(get_type_hints(config_class(network_name))[section])
    assert key in kinds, f"{network_name} has no {section}.{key}"
    value = to_dict(load_config(config_class(network_name), ROOT / path))[section][key]
    if inner:
        assert inner in get_type_hints(get_args(kinds[key])[0]), f"{network_name} has no {term}"
        value = value[0][inner]
    if text is not None:
        messages = yaml.safe_load(text)
        assert value == (
            messages if isinstance(messages, (bool, list)) else type(value)(messages)
        ), term
    return True


@pytest.mark.parametrize(("network_name", "path", "cell"), rows())
def test_ours_exists_and_has_the_value_that_is_told(network_name, path, cell):
    terms = re.findall(r"`([^`]+)`", cell)
    settings = [check(network_name, path, term) for term in terms]
    assert any(settings) or cell.startswith(("not needed: ", "not here: "))
    for term in terms:
        assert "/" not in term or (ROOT / term).is_file(), term


def test_every_code_base_has_a_table():
    for name in ("PySlowFast, X3D", "PySlowFast, MViTv2", "MultiTrain", "mmaction2", "torchvision"):
        assert f"\n## {name}" in TEXT
    assert len(rows()) > 200
