"""Random config files, overrides and command lines, each a function of a seed.

A config file is a recipe with random letters or lines changed, or random words of the syntax, or
a recipe with the value of one setting replaced. A fifth of them has an unusual encoding.
"""

import random
from pathlib import Path
from typing import get_type_hints

import yaml

from utils.files import ROOT
from utils.networks import list_networks

YAMLS = {
    network: sorted((ROOT / network / "configs").glob("*.yaml")) for network in list_networks()
}
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
OPTIONS = [
    "config_path", "checkpoint_path", "out", "source", "target", "labels", "top", "help", "x",
]  # fmt: skip


def make_yaml(seed: int) -> tuple[str, bytes]:
    """(network, content of the config file)."""
    draw = random.Random(seed)
    network = draw.choice(sorted(YAMLS))
    text = draw.choice(YAMLS[network]).read_text()
    kind = draw.randrange(3)
    if kind == 0:
        text = draw.choice([mutate_lines, mutate_letters])(draw, text)
    elif kind == 1:
        text = "".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 60)))
    else:
        text = replace_value(draw, text)
    if draw.random() < 0.2:
        return network, text.encode(draw.choice(ENCODINGS), "replace")
    return network, text.encode("utf-8", "surrogateescape" if kind == 2 else "replace")


def mutate_letters(draw: random.Random, text: str) -> str:
    letters = list(text)
    for _ in range(draw.randrange(1, 9)):
        position = draw.randrange(len(letters))
        letters[position : position + draw.randrange(3)] = draw.choice(WORDS)
    return "".join(letters)


def mutate_lines(draw: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(draw.randrange(1, 5)):
        index = draw.randrange(len(lines))
        other = draw.randrange(len(lines))
        change = draw.randrange(4)
        if change == 0:
            lines.insert(index, lines[other])
        elif change == 1:
            lines[index] = draw.choice(["  ", "\t", "- ", "? "]) + lines[index]
        elif change == 2:
            lines[index] = lines[index][: draw.randrange(len(lines[index]) + 1)]
        else:
            lines[index] = lines[index].replace(": ", ": " + draw.choice(WORDS), 1)
    return "".join(lines)


def replace_value(draw: random.Random, text: str) -> str:
    values = yaml.safe_load(text)
    section = draw.choice(sorted(values))
    if not values[section]:
        return text
    values[section][draw.choice(sorted(values[section]))] = "REPLACED"
    return yaml.safe_dump(values).replace("REPLACED", draw.choice(VALUES))


def make_override(seed: int, config: type) -> str:
    """`section.key=value`, usually of an existing setting."""
    draw = random.Random(seed)
    sections = get_type_hints(config)
    section = draw.choice(sorted(sections))
    key = draw.choice(sorted(get_type_hints(sections[section])))
    if draw.random() < 0.1:
        section = draw.choice([*WORDS, ""])
    if draw.random() < 0.1:
        key = draw.choice([*WORDS, ""])
    words = "".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 12)))
    value = draw.choice([*VALUES, words])
    return f"{section}.{key}={value}".replace("\0", "")


def make_command_line(seed: int, config: type, folder: Path) -> list[str]:
    """Arguments of a script: options, overrides and other words, with files of `folder`."""
    draw = random.Random(seed)
    network = config.__module__.partition(".")[0]
    files = [*map(str, folder.iterdir()), "", "n" * 300, "none", "caf\udce9", "a b"]
    files += ["\x1b[31m", "-"]
    arguments = []
    if draw.random() < 0.8:
        path = draw.choice(files) if draw.random() < 0.2 else str(draw.choice(YAMLS[network]))
        arguments += ["--config_path", path]
    for _ in range(draw.randrange(5)):
        kind = draw.randrange(4)
        option = draw.choice(OPTIONS)
        value = draw.choice([*files, *VALUES])[:1000]
        if kind == 0:
            arguments.append("--" + make_override(draw.randrange(2**32), config))
        elif kind == 1:
            arguments.append(f"--{option}={value}")
        elif kind == 2:
            arguments += [f"--{option}", value]
        else:
            arguments.append(draw.choice([*WORDS, *VALUES])[:1000])
    return [argument.replace("\0", "")[:100_000] for argument in arguments]
