"""Every log line that docs/troubleshooting.md quotes is one that the code prints.

A message of the code, a string or an f-string, becomes a pattern, whose placeholders are groups. A
quoted line must match one of them. What a group matches is a value of a few words, or messages
with a semicolon between them.
"""

import ast
import re
from functools import cache

import pytest

from utils.files import ROOT
from utils.networks import list_networks

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SYMPTOMS = [
    "Out of memory",
    "The loss is NaN",
    "Accuracy at chance",
    "Validation differs from the test",
    "Data is slow",
    "Wrong classes",
    "The wrong device",
    "It hangs at the start",
    "A checkpoint cannot be converted or loaded",
]
LETTERS = 8  # of the constant parts of a message
WORDS = 4  # of a value
NUMBER = re.compile(r"^line \d+: ")  # before a message about a line of a file
PERCENT = re.compile(r"%[-+ #0-9.]*[sdgfr%]")


@cache
def read_strings() -> list[ast.AST]:
    """The strings and f-strings of the product."""
    paths = [
        path
        for folder in [*list_networks(), "utils", "scripts"]
        for path in (ROOT / folder).rglob("*.py")
        if "tests" not in path.parts
    ]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    return [node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr))]


@cache
def list_messages() -> dict[str, re.Pattern[str]]:
    """{constant parts: pattern} of all messages."""
    messages = {}
    for node in read_strings():
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
        elif isinstance(node.value, str):
            parts = [word for text in PERCENT.split(node.value) for word in (text, None)][:-1]
        else:
            continue
        constant = "".join(part or "" for part in parts).strip("; ")
        if sum(c.isalpha() for c in constant) >= LETTERS and "\n" not in constant:
            pattern = "".join("(.*?)" if part is None else re.escape(part) for part in parts)
            pattern = pattern.removeprefix(re.escape("; "))
            messages[pattern] = re.compile(f"{pattern}(.*)")
    return messages


def is_printed(text: str) -> bool:
    """Whether the code has a message that this line can be."""
    return any(
        all(map(are_values_or_messages, match.groups()))
        for pattern in list_messages().values()
        if (match := pattern.fullmatch(text))
    )


def are_values_or_messages(group: str) -> bool:
    group = NUMBER.sub("", group.removeprefix("; "))
    if len(group.split()) <= WORDS or is_printed(group):
        return True
    first, _, rest = group.partition("; ")
    return bool(rest) and are_values_or_messages(first) and are_values_or_messages(rest)


@cache
def list_keys() -> set[str]:
    return {node.value for node in read_strings() if isinstance(node, ast.Constant)} | {"left"}


def read_lines() -> list[tuple[str, str]]:
    """(heading, quoted line)."""
    return [
        (section.splitlines()[0], line)
        for section in PAGE.split("\n## ")[1:]
        for block in re.findall(r"```log\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]


@pytest.mark.parametrize(("heading", "line"), read_lines())
def test_the_code_prints_a_quoted_line(heading, line):
    if line.startswith("epoch "):  # values: two blanks between them
        names = [word.split(" ")[0] for word in line.split("  ")]
        assert set(names) <= list_keys()
    else:
        assert is_printed(line)


def test_every_symptom_has_a_log_line():
    assert re.findall("^## (.*)$", PAGE, re.MULTILINE) == SYMPTOMS
    assert list(dict.fromkeys(heading for heading, _ in read_lines())) == SYMPTOMS


@pytest.mark.parametrize(
    "line",
    [
        "the loss has remained above 2.08, that of equal scores for all classes: train.lr may be "
        "too high, labels wrong, or train.pretrained of another kind",
        "data.batch 64: a training step wants about 21.3 GB more, 14.2 GB are free; batch=42 fits",
        "rank 5 was ended by SIGKILL; see out/logs/worker_5.log",
    ],
)
def test_another_line_is_not_printed(line):
    assert not is_printed(line)
