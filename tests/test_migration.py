"""Every setting that docs/migration/ names exists in our yaml and has the stated value.

A row of a table has two cells, "theirs" and "ours". The items under "Not needed:" and "Not here:"
are `theirs`: reason.
"""

import re
from functools import cache
from typing import get_args, get_type_hints

import pytest
import yaml

from utils.files import ROOT
from utils.load_config import load_config, to_dict
from utils.networks import find_network

PAGES = sorted((ROOT / "docs/migration").glob("*.md"))
TEXT = "\n".join(path.read_text() for path in PAGES if path.stem != "operators")
OURS = re.compile(r"^Ours: `((\w+)/configs/\w+\.yaml)`", re.MULTILINE)
SETTING = re.compile(r"(run|data|model|train|eval)\.(\w+)(?:\.(\w+))?(?:: (.+))?")


def read_rows() -> list:
    """(network, yaml, "ours" of a row or item, whether it is a row) of each section."""
    result = []
    for section in TEXT.split("\n## ")[1:]:
        if match := OURS.search(section):
            lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
            cells = [line.strip("|").split("|") for line in lines]
            assert {len(row) for row in cells} == {2}, section.splitlines()[0]
            result += [(match[2], match[1], row[1].strip(), True) for row in cells]
            items = [line for line in section.splitlines() if line.startswith("* ")]
            result += [(match[2], match[1], item.partition(": ")[2], False) for item in items]
    return result


@cache
def read_settings(network_name: str, path: str) -> dict:
    return to_dict(load_config(find_network(network_name).config, ROOT / path))


def check_setting(network_name: str, path: str, term: str) -> bool:
    """Whether a term is a setting; asserts that the setting exists and has the stated value."""
    config = find_network(network_name).config
    if term.startswith("--") and "." in term.split("=")[0]:
        load_config(config, ROOT / path, [word[2:] for word in term.split()])
        return True
    match = SETTING.fullmatch(term)
    if not match or match[2] in ("py", "csv", "txt"):
        return False
    section, key, inner, text = match.groups()
    kinds = get_type_hints(get_type_hints(config)[section])
    assert key in kinds, f"{network_name} has no {section}.{key}"
    value = read_settings(network_name, path)[section][key]
    if inner:
        assert inner in get_type_hints(get_args(kinds[key])[0]), f"{network_name} has no {term}"
        value = value[0][inner]
    if text is not None:
        stated = yaml.safe_load(text)
        stated = stated if isinstance(stated, (bool, list)) else type(value)(stated)
        assert value == stated, term
    return True


@pytest.mark.parametrize(("network_name", "path", "cell", "is_row"), read_rows())
def test_a_named_setting_exists_and_has_the_stated_value(network_name, path, cell, is_row):
    terms = re.findall(r"`([^`]+)`", cell)
    settings = [check_setting(network_name, path, term) for term in terms]
    assert cell
    assert any(settings) or not is_row
    for term in terms:
        assert "/" not in term or (ROOT / term).is_file(), term
