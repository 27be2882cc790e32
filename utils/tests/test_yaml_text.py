"""YAML that is refused, and the messages of wrong values."""

import re

import pytest

from tsm.config import Config
from utils.files import ROOT
from utils.load_config import load_config, load_yaml

SMOKE = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x]\nb: [*a, *a]", "line 2, column 5: the alias *a"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key a"),
        ("!!bool x", "KeyError"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"a: \xff", "position 3"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_an_error_in_a_yaml_has_its_position(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        load_yaml(text)


def test_every_key_is_a_string():
    keys = {"on": 1, "1": 2, "~": 3, "<<": {"a": 4}}
    assert load_yaml("{on: 1, 1: 2, ~: 3, '<<': {a: 4}}") == keys


@pytest.mark.parametrize("value", ["nan", ".nan", "inf", "-.inf", "1e999", "!!float nan"])
def test_a_number_that_is_not_finite_is_refused(value):
    for name, text in (("train.lr", value), ("data.scales", f"[1, {value}]")):
        with pytest.raises(ValueError, match=rf"{name}(\[1\])? must be a number, not "):
            load_config(Config, SMOKE, [f"{name}={text}"])


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=9223372036854775808",
        f"data.workers={2**64}",
        f"run.seed={2**32}",
        'data.root="a\\0b"',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_value_out_of_range_is_refused(override):
    with pytest.raises(ValueError, match=f"^{override.partition('=')[0]} must "):
        load_config(Config, SMOKE, [override])


def test_an_override_that_is_not_yaml_is_a_text():
    for text in ("*star", "a: b: c", "[open", "!!bool x"):
        assert load_config(Config, SMOKE, [f"data.root={text}"]).data.root.name == text
