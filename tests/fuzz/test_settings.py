"""Random config files, overrides and command lines load or end in one short error message."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from utils.files import ROOT
from utils.load_config import load_config, to_dict, to_yaml
from utils.messages import SETTINGS_LINE
from utils.networks import find_network, list_networks

pytestmark = pytest.mark.timeout(1800)  # a stop against hangs
WORDS = [
    "{", "}", "[", "]", ", ", ": ", "- ", "? ", "\n", "\n  ", "\n    ", " ", "\t", "#", "---\n",
    "&a ", "*a", "<<: ", "<<: *a", "<<: [*a, *a]", "|", ">", "...\n", "'", '"', "\\",
    "%YAML 1.1\n", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ",
    "!!omap ", "!!pairs ", "!!python/object/apply:os.mkdir [hacked]", "!!python/name:os.system",
    "!x ", "%TAG ! x\n", "run", "data", "model", "train", "eval", "seed", "device", "root", "lr",
    "on", "~", "null", "=", "@", "`", "nan", ".nan", "inf", "-.inf", "1e999", "0x", "0b2", "1:2:3",
    "1_0", "2020-01-01", "99999999999999999999", "-1", "0", "1.5", "true", "x", "\x00", "\x1b[31m",
    "\x85", "\u2028", "\ufeff", "é", "日本", "😀", "\ud800", "x" * 3000, "[" * 500, "{a: " * 400,
    "- " * 500,
]  # fmt: skip
VALUES = [
    "nan", ".inf", "-.inf", "1e999", "-1", "0", "1e-400", "99999999999999999999", "1" + "0" * 400,
    "0x" + "f" * 5000, "true", "null", "", "''", "[]", "{}", "[[]]", "[null]", "[[1, 2], [3]]",
    "{a: {b: {c: 1}}}", "[nan]", "[[nan, 1]]", "auto", "none", "2020-01-01",
    "2020-01-01T00:00:00Z", "!!binary aGk=", "!!set {a}", "!!bool x", "!!timestamp x", "!!int ''",
    "'a\\0b'", '"a\\0b"', "/dev/null", "/dev/zero", "/proc/none", "~", "$(touch hacked)",
    ";touch hacked", "`touch hacked`", "caf\udce9", "\x1b[31m", "*a", "&a [*a]", "x" * 300,
    "../" * 2000, "[" * 400, "1" * 100_000, "[1, two, 3.5, null, {a: b}]", "0o17", "1:60", "+1",
    ".5", "1.", "1e3", "00", "0.0", "-0.0",
]  # fmt: skip
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "latin-1", "utf-7", "utf-8-sig", "cp500"]
FEW = 150
COUNTS = [FEW, pytest.param(1000, marks=pytest.mark.slow)]
RECIPES = [path for name in list_networks() for path in (ROOT / name / "configs").glob("*.yaml")]
random_text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=60).map("".join)
random_value = st.one_of(st.sampled_from(VALUES), random_text)


@st.composite
def draw_config_file(draw) -> tuple[str, bytes]:
    """(network, content): random words, or a recipe in which something is replaced by them."""
    recipe = draw(st.sampled_from(sorted(RECIPES)))
    text = recipe.read_text()
    kind = draw(st.sampled_from(["words", "letters", "value"]))
    if kind == "words":
        text = draw(random_text)
    elif kind == "value":
        values = yaml.safe_load(text)
        section = draw(st.sampled_from(sorted(name for name in values if values[name])))
        values[section][draw(st.sampled_from(sorted(values[section])))] = "REPLACED"
        text = yaml.safe_dump(values).replace("REPLACED", draw(st.sampled_from(VALUES)))
    else:
        letters = list(text)
        for _ in range(draw(st.integers(1, 8))):
            start = draw(st.integers(0, len(letters) - 1))
            letters[start : start + draw(st.integers(0, 2))] = draw(st.sampled_from(WORDS))
        text = "".join(letters)
    encoding = draw(st.sampled_from(["utf-8"] * 4 + ENCODINGS))
    errors = "surrogateescape" if encoding == "utf-8" and kind == "value" else "replace"
    return recipe.parent.parent.name, text.encode(encoding, errors)


@st.composite
def draw_override(draw, network: str) -> str:
    """`section.key=value`, usually of an existing setting."""
    sections = get_type_hints(find_network(network).config)
    section = draw(st.sampled_from(sorted(sections)))
    key = draw(st.sampled_from(sorted(get_type_hints(sections[section]))))
    odd = draw(st.sampled_from([None] * 9 + [*WORDS, ""]))
    name = draw(st.sampled_from([f"{section}.{key}"] * 9 + [f"{odd}.{key}", f"{section}.{odd}"]))
    return f"{name}={draw(random_value)}".replace("\0", "")


def try_cases(strategy: st.SearchStrategy, check: Callable, count: int) -> None:
    """Checks `count` random cases; hypothesis reports the smallest that fails."""
    options = {"deadline": None, "database": None, "derandomize": count <= FEW}
    options["suppress_health_check"] = list(hypothesis.HealthCheck)
    hypothesis.settings(max_examples=count, **options)(hypothesis.given(strategy)(check))()


def list_numbers(values) -> list:
    """All numbers in nested dicts and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [number for value in values for number in list_numbers(value)]
    return [values] if isinstance(values, (int, float)) else []


def assert_loads_or_is_refused(network: str, path: Path, overrides: list[str]) -> None:
    try:
        config = load_config(find_network(network).config, path, overrides)
    except ValueError as error:
        message = str(error)
        assert len(message) <= SETTINGS_LINE
        assert message.isprintable(), message
        return
    assert all(map(math.isfinite, list_numbers(to_dict(config))))
    copy = path.with_name("copy.yaml")
    copy.write_text(to_yaml(config), encoding="utf-8", errors="surrogateescape")
    assert to_dict(load_config(find_network(network).config, copy)) == to_dict(config)


@pytest.mark.parametrize("count", COUNTS)
def test_random_config_files_load_or_are_refused(count, tmp_path):
    path = tmp_path / "random.yaml"

    def check(case: tuple[str, bytes]) -> None:
        path.write_bytes(case[1])
        assert_loads_or_is_refused(case[0], path, [])

    try_cases(draw_config_file(), check, count)
    assert {file.name for file in tmp_path.iterdir()} <= {"random.yaml", "copy.yaml"}


@pytest.mark.parametrize("network", list_networks())
@pytest.mark.parametrize("count", COUNTS)
def test_random_overrides_load_or_are_refused(network, count, tmp_path):
    path = tmp_path / "random.yaml"
    path.write_bytes(next((ROOT / network / "configs").glob("*.yaml")).read_bytes())

    def check(override: str) -> None:
        assert_loads_or_is_refused(network, path, [override])

    try_cases(draw_override(network), check, count // 2)
