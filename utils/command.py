"""The door of every entry script: arguments in, exit status out.

    python <net>/train.py --config_path Y [--section.key=value ...]

Exit status 0: done; 2: the user's mistake, told in one line; 130: interrupted; 1: ours.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

from utils import signals
from utils.config import ROOT, known, load_config


class Interrupted(Exception):
    """Stopped by ctrl-C; the message says what is safe and how to go on."""


def run(
    main: Callable,
    config_class: type,
    usage: str,
    options: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Parses the command line, calls `main(config, **options)` and exits.

    `options` are further required arguments, `--name VALUE` or `--name=VALUE`; `optional` ones
    may be left out.
    """
    enter(usage, lambda: start(main, config_class, options, optional))


def start(main: Callable, config_class: type, options: Sequence[str], optional: Sequence) -> Any:
    given, overrides = parse(sys.argv[1:], ["config_path", *options], (), optional)
    config = load_config(config_class, Path(given.pop("config_path")), overrides)
    return main(config, **given)


def run_room(
    main: Callable,
    usage: str,
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
    optional: Sequence[str] = (),
    words: dict[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """The same for a script that serves every room: `main(room, config, **options)`.

    The room is named by `--network`, or by the yaml's folder. `options` are required,
    `optional` ones are not, `flags` have no value, `words` {name: choices} come first, unnamed.
    """

    def work() -> Any:
        rest = list(sys.argv[1:])
        chosen = {name: choose(name, choices, rest) for name, choices in words.items()}
        given, overrides = parse(rest, ["config_path", *options], flags, ["network", *optional])
        path = Path(given.pop("config_path"))
        room = given.pop("network", None) or path.resolve().parents[1].name
        known(room, rooms(), "option --network")
        config_class = importlib.import_module(f"{room}.config").Config
        return main(room, load_config(config_class, path, overrides), **chosen, **given)

    enter(usage, work)


def choose(name: str, choices: Sequence[str], rest: list[str]) -> str:
    """Takes the first argument, which must be one of the choices."""
    if not rest or rest[0] not in choices:
        raise ValueError(f"{name}: the first argument must be one of {', '.join(choices)}")
    return rest.pop(0)


def whole_number(name: str, text: str) -> int:
    """The value of the option `name`; ValueError where it is none above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"--{name} must be a whole number above 0, not {text}")
    return int(text)


def rooms() -> list[str]:
    """The networks of this zoo: folders with a model and a config."""
    return sorted(file.parent.name for file in ROOT.glob("*/model.py"))


def parse(
    arguments: list[str],
    names: Sequence[str],
    flags: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Sorts the arguments into named ones and setting overrides; all `names` are required."""
    given: dict[str, Any] = dict.fromkeys(flags, False)
    overrides, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word}: expected --name=value")
        name, equals, value = word[2:].partition("=")
        if name in flags and not equals:
            given[name] = True
            continue
        if "." not in name:
            known(name, [*names, *flags, *optional], "option --")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"{word} needs a value: {word}=VALUE")
            value = rest.pop(0)
        if "." in name:
            overrides.append(f"{name}={value}")
        else:
            given[name] = value
    for name in names:
        if name not in given:
            raise ValueError(f"missing --{name}; --help shows the usage")
    return given, overrides


def enter(usage: str, work: Callable, bare: bool = False) -> None:
    """Shows the usage where it is asked for, else runs `work` and exits.

    No argument at all asks for it too, except from a command that is `bare`. What `work` raises
    becomes an exit status and one line on stderr.
    """
    if not (sys.argv[1:] or bare) or set(sys.argv[1:]) & {"-h", "--help"}:
        print(usage.strip(), file=sys.stdout if sys.argv[1:] else sys.stderr)
        sys.exit(0 if sys.argv[1:] else 2)
    signals.watch()
    try:
        status = work()
    except ValueError as error:
        if "ZOO_TRACEBACK" in os.environ:
            raise
        leave(2, f"error: {' '.join(str(error).split())}")
    except Interrupted as error:
        leave(130, str(error))
    sys.exit(status if isinstance(status, int) else 0)


def leave(status: int, line: str) -> None:
    """Ends at once: threads of the framework and of the data pipeline need not be waited for."""
    print(line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
