"""Entry points of scripts: the command line by argparse, errors as one line and an exit status.

    def main(cfg: Config, *, checkpoint_path: str, batch: cli.PositiveInt = 1) -> None: ...

    if __name__ == "__main__":
        cli.run(main, Config, __doc__)  # --config_path Y --checkpoint_path C [--batch 1]

The parameters of `main`, except `network` and `cfg`, are the arguments of the command. A keyword-
only one is an option, required if it has no default; another one is a positional argument, a list
several of them (with a default, or none). `bool` is a flag, `Literal` lists the choices, and
`Annotated[type, convert]` names the function that converts the text. The option `checkpoint_path`
may be the name of published weights, which are downloaded. Without `--config_path`, its file or
that of `source` says of which network and recipe it is.

Exit status 0: done; 2: user error; 130: interrupted; 1: internal error, or the machine failed.
This module needs no MindSpore: what does is imported where it is used.
"""

import argparse
import contextlib
import errno
import inspect
import io
import math
import os
import re
import signal
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NoReturn, Optional

from utils import removed
from utils.messages import (
    VALUE,
    RunInterruptedError,
    find_nearest,
    format_line,
    shorten,
    shorten_errors,
)
from utils.processes import record_completion
from utils.settings import LARGEST, name_network

TINY = sys.float_info.min  # the smallest number above 0
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(main: Callable, config_class: type, usage: str, *options_of: Callable) -> NoReturn:
    """Calls `main(cfg, **options)` and exits; `usage` is the docstring of the script.

    The keyword-only parameters of `options_of` are options too, which `main` passes on.
    """

    own = name_network(config_class)
    main_guard(usage, lambda: run_with_config(own, usage, main, *options_of))


def run_for_network(main: Callable, usage: str, *options_of: Callable) -> NoReturn:
    """Calls `main(network, cfg, **options)` of a script that serves every network, and exits.

    The network is named by `--network`, or by the folder of the config file.
    """
    main_guard(usage, lambda: run_with_config("", usage, main, *options_of))


def run_with_config(own: str, usage: str, main: Callable, *options_of: Callable) -> Any:
    """Calls `main` as the command line says: a script of the network `own`, or if empty of all."""
    from utils import networks
    from utils.load_config import list_settings, load_config, resolve_yaml

    names = [own] if own else networks.list_networks()
    records = {name: networks.find_network(name) for name in names}
    keys = [key for record in records.values() for key in list_settings(record.config)]
    parser = Parser(usage, keys, main, *options_of)
    if not own:
        parser.add_argument("--network", choices=tuple(records))
    path, settings, options = parser.parse(sys.argv[1:])
    chosen = own or options.pop("network", "")
    if path:
        path = resolve_yaml(path)
        network = records[chosen] if chosen else networks.find_network_of_yaml(path)
        cfg = load_config(network.config, path, settings)
    described = "checkpoint_path" if "checkpoint_path" in options else "source"
    if not path and described not in options:
        raise ValueError("missing --config_path; --help shows the usage")
    # A name of published weights becomes their file
    if weights := options.get("checkpoint_path"):
        from utils.weights.preparation import resolve_checkpoint  # here: no training needs it

        options["checkpoint_path"] = type(weights)(resolve_checkpoint(str(weights)))
    if not path:
        network, cfg = networks.load_own_config(Path(options[described]), settings)
    if own and network.name != own:
        raise ValueError(f"{options[described]} is of {network.name}: use its script")
    return main(cfg, **options) if own else main(network, cfg, **options)


def run_command(
    main: Callable,
    usage: str,
    *options_of: Callable,
    settings: Sequence[str] = (),
) -> NoReturn:
    """Calls `main(**options)` of a script without a config file, and exits.

    If it takes `settings`, all names `section.key`, it is `main(settings, **options)` with the
    settings of the command line, `name=value`.
    """
    parser = Parser(usage, [], main, *options_of)
    parser.settings = settings

    def work() -> Any:
        path, values, options = parser.parse(sys.argv[1:])
        if path:  # an option like others here
            options["config_path"] = path
        return main(values, **options) if settings else main(**options)

    main_guard(usage, work)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser made from the parameters of `main` and `options_of`.

    With `settings`, which are all names `section.key`, it also takes `--config_path` and
    `--section.key=value`. Wrong arguments are ValueErrors, with the nearest option or setting.
    """

    def __init__(self, usage: str, settings: Sequence[str], main: Callable, *options_of: Callable):
        super().__init__(
            usage=usage, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
        )
        self.settings = settings
        if settings:
            functions = (main, *options_of)
            names = {name for f in functions for name in inspect.signature(f).parameters}
            describes = names & {"checkpoint_path", "source"}
            self.add_argument("--config_path", type=Path, required=not describes)
        for function in (main, *options_of):
            hints = typing.get_type_hints(function, include_extras=True)
            for name, parameter in inspect.signature(function).parameters.items():
                positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                if parameter.kind is parameter.KEYWORD_ONLY:
                    required = parameter.default is parameter.empty
                    self.add_argument(f"--{name}", required=required, **describe_type(hints[name]))
                elif positional and function is main and name not in ("network", "cfg", "settings"):
                    has_default = parameter.default is not parameter.empty
                    optional = {"nargs": "*", "default": argparse.SUPPRESS} if has_default else {}
                    self.add_argument(name, **{**describe_type(hints[name]), **optional})

    @shorten_errors()
    def parse(self, arguments: Sequence[str]) -> tuple[Path, list[str], dict[str, Any]]:
        """(path of the config file, settings as `section.key=value`, options by name).

        What follows `--` is positional. Without arguments, prints the usage and exits if one is
        required.
        """
        arguments = list(arguments)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        # `./` because argparse takes the name of a file with a dash for an option even there
        files = [f"./{word}" if word.startswith("-") else word for word in arguments[end + 1 :]]
        arguments[end + 1 :] = files
        if not arguments and any(action.required for action in self._actions):
            print(self.usage.strip(), file=sys.stderr)
            sys.exit(2)
        for word in arguments[:end]:
            name = word.partition("=")[0]
            if re.match("--?[a-zA-Z]", name) and name not in self._option_string_actions:
                if "." not in name or name[1] != "-":
                    self.refuse_option(name)
                if not self.settings:
                    raise ValueError(f"{word}: this command takes no settings")
                self.add_argument(name, dest=name[2:])  # load_config checks the names of settings
        namespace, strays = self.parse_known_intermixed_args(arguments)
        if strays:
            self.error(f"unexpected argument {strays[0]}")
        options = vars(namespace)
        settings = [f"{name}={options.pop(name)}" for name in list(options) if "." in name]
        return options.pop("config_path", None), settings, options

    def refuse_option(self, name: str) -> NoReturn:
        """Raises ValueError with the nearest option, or the settings of the nearest key."""
        if instead := removed.OPTIONS.get(name.lstrip("-")):
            raise ValueError(f"{name} was removed; instead: {instead}")
        settings = [f"--{setting}" for setting in dict.fromkeys(self.settings)]
        keys = {option: re.split("--|[.]", option)[-1] for option in self._option_string_actions}
        keys |= {option: option.rpartition(".")[2] for option in settings}
        nearest = find_nearest(name.lstrip("-"), keys.values())
        near = " or ".join(option for option, key in keys.items() if key == nearest)
        advice = f"did you mean {near}?" if near else "--help shows the usage"
        raise ValueError(f"unknown option {shorten(name, VALUE)}; {advice}")

    def error(self, message: str) -> NoReturn:
        """Raises ValueError; argparse would print the usage and exit."""
        raise ValueError(f"{message.removeprefix('argument ')}; --help shows the usage")


def describe_type(hint: Any) -> dict[str, Any]:
    """Arguments of `add_argument` for a parameter of this type."""
    kind = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is bool:
        return {"action": "store_true"}
    if kind is typing.Union:  # Optional
        return describe_type(arguments[0])
    if kind is Annotated:
        return {"type": arguments[1]}
    if kind is typing.Literal:
        metavar = "|".join(map(str, arguments))  # the name of a positional argument in errors
        return {"type": type(arguments[0]), "choices": arguments, "metavar": metavar}
    if kind is list:
        return {**describe_type(arguments[0]), "nargs": "+", "action": "extend"}
    return {"type": hint}


def number_between(minimum: float, maximum: Optional[int] = None, kind: type = int) -> Callable:
    """A function for Annotated: a string to an int or float. It raises ArgumentTypeError."""
    word = "an integer" if kind is int else "a number"
    least = "above 0" if minimum == TINY else f"of at least {minimum}"
    bounds = least if maximum is None else f"from {minimum} to {maximum}"

    def convert(text: str) -> Any:
        is_plain = kind is float or (text.isdecimal() and len(text) <= 18)
        with contextlib.suppress(ValueError):
            value = kind(text) if is_plain else math.nan
            if minimum <= value <= (LARGEST if maximum is None else maximum):
                return value
        raise argparse.ArgumentTypeError(f"must be {word} {bounds}, not {shorten(text, VALUE)}")

    return convert


PositiveInt = Annotated[int, number_between(1)]
NonNegativeInt = Annotated[int, number_between(0)]
NonNegativeFloat = Annotated[float, number_between(0, kind=float)]
PositiveFloat = Annotated[float, number_between(TINY, kind=float)]
Probability = Annotated[float, number_between(0, 1, float)]
Seed = Annotated[int, number_between(0, 2**32 - 1)]  # NumPy takes no other


def main_guard(usage: str, work: Callable[[], Any]) -> NoReturn:
    """Runs `work` and exits: an error becomes an exit status and one line on stderr.

    `--help` prints the usage instead.
    """
    prepare_streams()
    try:
        show_usage(usage)
        with exit_on_broken_pipe():
            status = work()
        status = status if isinstance(status, int) else 0
        if not status:
            record_completion()
    except (OSError, ValueError) as error:
        if "ZOO_TRACEBACK" in os.environ:
            raise
        line = str(error)
        if isinstance(error, OSError):
            if error.filename is None and error.errno not in DISK_FULL:
                raise  # it is internal
            line = f"{error.filename or 'stdout or a file'}: {error.strerror}"
        exit_now(2, format_line(f"error: {line}"))
    except RunInterruptedError as error:
        exit_now(130, format_line(error))
    except KeyboardInterrupt:
        exit_now(128 + signal.SIGINT, "interrupted")
    except RuntimeError as error:
        failure = find_failure(error)
        if not failure or "ZOO_TRACEBACK" in os.environ:
            raise
        exit_now(1, format_line(f"error: {failure}"))
    sys.exit(status)


def find_failure(error: RuntimeError) -> str:
    """The message of a MachineError, also of one that MindData passes on; else empty."""
    text = f"{type(error).__name__}: {error}"
    match = re.search(r"^(?:\w+\.)*MachineError: (.*)", text, re.MULTILINE)
    return match[1] if match else ""


def exit_now(status: int, line: str) -> NoReturn:
    """Ends at once, without waiting for threads of MindSpore and of the data pipeline."""
    with contextlib.suppress(OSError), exit_on_broken_pipe():
        print(line, file=sys.stderr, flush=True)
    os._exit(status)


def show_usage(usage: str) -> None:
    """Prints the usage and exits if the command line has -h or --help."""
    if {"-h", "--help"} & set(sys.argv[1 : [*sys.argv, "--"].index("--")]):
        with exit_on_broken_pipe():
            print(usage.strip())
        sys.exit(0)


def prepare_streams() -> None:
    """Opens /dev/null in place of stdin, stdout or stderr if the caller has closed them.

    Otherwise the next file, perhaps a checkpoint, would get the number and receive printed text.
    Characters that the console does not have, as in names of classes, are printed as escapes.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook has streams of its own
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def exit_on_broken_pipe() -> Iterator[None]:
    """Inside, the process ends without a message if the reader of stdout has gone, as `head` does.

    Flushes stdout at the end, so that its errors are raised here and not when the interpreter ends.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(141)
