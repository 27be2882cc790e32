"""The door of every entry script: arguments in, exit status out.

    python <net>/train.py --config_path Y [--section.key=value ...]

Exit status 0: done; 2: the user's mistake, told in one line; 130: interrupted; 1: ours, or a part
of the machine's, which is told in one line too.
"""

import contextlib
import errno
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, get_type_hints

from utils import signals
from utils.config import ROOT, known, load_config, locate, nearest, read_yaml
from utils.messages import VALUE, Failed, Interrupted, cut, cut_errors, to_line
from utils.networks import find_network
from utils.processes import record_completion
from utils.usage import fill_closed_streams, quietly, show_usage

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(
    main: Callable,
    config_class: type,
    usage: str,
    options: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Parses the command line, calls `main(config, **options)` and exits.

    `options` are further required arguments: `--name VALUE` or `--name=VALUE`; `optional` ones may
    be left out.
    """
    enter(usage, lambda: start(main, config_class, options, optional))


def start(
    main: Callable, config_class: type, options: Sequence[str], optional: Sequence[str]
) -> Any:
    needed, settings = ["config_path", *options], partial(settings_of, config_class)
    given, overrides = parse(sys.argv[1:], needed, optional=optional, settings=settings)
    path = locate(Path(given.pop("config_path")))
    config = load(config_class, path, overrides, f"{{}}/{Path(sys.argv[0]).name}")
    return main(config, **given)


def settings_of(config_class: type) -> list[str]:
    """`section.key` of every setting."""
    sections = get_type_hints(config_class).items()
    return [f"{name}.{key}" for name, kind in sections for key in get_type_hints(kind)]


def load(config_class: type, path: Path, overrides: list[str], taker: str) -> Any:
    """The settings; of a yaml in another network's folder that fails, who takes it is told."""
    try:
        return load_config(config_class, path, overrides)
    except ValueError as error:
        room = path.resolve().parent.parent.name
        if room not in rooms() or room == config_class.__module__.partition(".")[0]:
            raise
        whose = f"The yaml lies in {room}'s folder and is {room}'s"
        raise ValueError(f"{error}. {whose}: {taker.format(room)} takes it") from None


def run_room(
    main: Callable,
    usage: str,
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
    optional: Sequence[str] = (),
    words: Mapping[str, Sequence[str]] = MappingProxyType({}),
    free: str = "",
) -> None:
    """The same for a script that serves every room: `main(room, config, **options)`.

    The room is named by `--network`, or by the yaml's folder. `options` are required,
    `optional` ones are not, `flags` have no value, `words` {name: choices} come first, unnamed;
    `free` is as in `parse`.
    """

    def work() -> Any:
        rest = list(sys.argv[1:])
        chosen = {name: choose(name, choices, rest) for name, choices in words.items()}
        needed, others = ["config_path", *options], ["network", *optional]
        given, overrides = parse(rest, needed, flags, others, free, every_setting)
        path = locate(Path(given.pop("config_path")))
        room = given.pop("network", None) or room_of(path)
        known(room, rooms(), "network")
        config = load(config_of(room), path, overrides, "--network={}")
        return main(room, config, **chosen, **given)

    enter(usage, work)


def config_of(room: str) -> type:
    return find_network(room).config


def every_setting() -> list[str]:
    return [setting for room in rooms() for setting in settings_of(config_of(room))]


def room_of(path: Path) -> str:
    """The network in whose folder a yaml lies."""
    read_yaml(path)
    room = path.resolve().parent.parent.name
    if room not in rooms():
        raise ValueError(
            f"--network is missing: {path} lies in no network's folder; add --network="
            + "|".join(rooms())
        )
    return room


def choose(name: str, choices: Sequence[str], rest: list[str]) -> str:
    """Takes the first argument, which must be one of the choices."""
    if not rest or rest[0] not in choices:
        raise ValueError(f"{name}: the first argument must be one of {', '.join(choices)}")
    return rest.pop(0)


def whole_number(name: str, text: str, otherwise: str = "") -> int:
    """The value of the option `name`; ValueError where it is none above 0.

    `otherwise` is what else the caller takes, for the message.
    """
    if not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise ValueError(
            f"--{name} must be a whole number above 0{otherwise}, not {cut(text, VALUE)}"
        )
    return int(text)


def number(name: str, text: str, least: float = 0.0) -> float:
    """The value of the option `name`; ValueError where it is no number, or below `least`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise ValueError(f"--{name} must be a number from {least:g} on, not {cut(text, VALUE)}")
    return value


def rooms() -> list[str]:
    """The networks of this zoo: folders with a model and a config."""
    return sorted(file.parent.name for file in ROOT.glob("*/model.py"))


@cut_errors()
def parse(
    arguments: list[str],
    names: Sequence[str],
    flags: Sequence[str] = (),
    optional: Sequence[str] = (),
    free: str = "",
    settings: Callable[[], Sequence[str]] = list,
) -> tuple[dict[str, Any], list[str]]:
    """Sorts the arguments into named ones and setting overrides; all `names` are required.

    Unnamed ones are a mistake, or, with `free`, the list of that name. `settings` are those that
    an unknown name may mean.
    """
    given: dict[str, Any] = {**dict.fromkeys(flags, False), **({free: []} if free else {})}
    overrides, rest, value = [], list(arguments), ""
    while rest:
        word, after = rest.pop(0), value
        value = ""
        if free and not word.startswith("-"):
            given[free].append(word)
            continue
        if not word.startswith("--"):
            hint = ""
            if after and "=" not in word:
                hint = "; a path with blanks needs quotes"
            elif word.endswith(".yaml"):
                hint = f"; --config_path {word}?"
            raise ValueError(f"{word}: expected --name=value{hint}")
        name, equals, value = word[2:].partition("=")
        if name in flags and not equals:
            given[name] = True
            continue
        if "." not in name:
            known_option(name, [*names, *flags, *optional], settings)
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
    if overrides and settings is list:
        raise ValueError(f"--{overrides[0]}: this command takes no settings")
    return given, overrides


def known_option(name: str, options: Sequence[str], settings: Callable[[], Sequence[str]]) -> None:
    """Raises where `name` is no option, with the nearest option or setting of that key."""
    if name in options:
        return
    keys: dict[str, list[str]] = {}
    for setting in dict.fromkeys(settings()):
        keys.setdefault(setting.partition(".")[2], []).append(f"--{setting}")
    near = nearest(name, [*keys, *options])
    if near in options:
        known(name, options, "option --")
    raise ValueError(
        f"unknown option --{cut(name, VALUE)}; settings are --section.key=value: "
        f"did you mean {' or '.join(keys[near])}?"
    )


def enter(usage: str, work: Callable, bare: bool = False) -> None:
    """Shows the usage where it is asked for, else runs `work` and exits.

    No argument at all asks for it too, except from a command that is `bare`. What `work` raises
    becomes an exit status and one line on stderr.
    """
    fill_closed_streams()
    try:
        show_usage(usage)
        if not (sys.argv[1:] or bare):
            print(usage.strip(), file=sys.stderr)
            sys.exit(2)
        signals.watch()
        with quietly():
            status = work()
        status = status if isinstance(status, int) else 0
        if not status:
            record_completion()
    except (OSError, ValueError) as error:
        if "ZOO_TRACEBACK" in os.environ:
            raise
        leave(2, to_line(f"error: {explain(error)}"))
    except Interrupted as error:
        leave(130, to_line(error))
    except RuntimeError as error:
        line = find_failure(error)
        if not line or "ZOO_TRACEBACK" in os.environ:
            raise
        leave(1, to_line(f"error: {line}"))
    sys.exit(status)


def find_failure(error: RuntimeError) -> str:
    """The message of a Failed, also of one that MindData hands on; empty for other errors."""
    if isinstance(error, Failed):
        return str(error)
    found = re.search(r"^(?:\w+\.)*Failed: (.*)", str(error), re.MULTILINE)
    return found[1] if found else ""


def explain(error: Exception) -> str:
    """What to tell of an error of the user; raises any other, which is ours."""
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is not None:  # the system refuses a file that the user named
        return f"{error.filename}: {error.strerror}"
    if error.errno in FULL:
        return f"{error.strerror}, while writing to stdout or to a file"
    raise error


def leave(status: int, line: str) -> None:
    """Ends at once: threads of the framework and of the data pipeline need not be waited for."""
    with contextlib.suppress(ValueError), quietly():
        print(line, file=sys.stderr, flush=True)
    os._exit(status)
