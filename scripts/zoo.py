"""The installed command `zoo`: runs the scripts of this zoo.

    zoo train NETWORK ARGUMENTS     is    python NETWORK/train.py ARGUMENTS
    zoo check-env ARGUMENTS         is    python scripts/check_env.py ARGUMENTS
    zoo make-lists ARGUMENTS        is    python scripts/data/make_lists.py ARGUMENTS

`zoo --help` lists all commands; `zoo COMMAND --help` shows the usage of one. The path of a recipe
of the zoo starts at its network, `tsm/configs/tsm_smoke.yaml`; `data` and `out` are in the current
folder.
"""

import ast
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
NETWORK_SCRIPTS = {  # of every network folder
    "train": "Trains a network",
    "eval": "Evaluates a network",
    "export": "Exports a network to MINDIR or ONNX",
}
FOLDERS = ("scripts", "scripts/data", "scripts/analysis", "benchmarks")
NOT_COMMANDS = ("activations", "average_checkpoints", "build_networks")
NOT_COMMANDS += ("compare_scores", "worker", "zoo")
COMMANDS = {
    path.stem.replace("_", "-"): f"{folder}/{path.name}"
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("[!_]*.py"))
    if path.stem not in NOT_COMMANDS
}
sys.path[0] = str(ROOT)

from utils import removed
from utils.cli import exit_on_broken_pipe, prepare_streams, show_usage


def main() -> None:
    prepare_streams()
    name = "".join(sys.argv[1:2])
    words = sys.argv[2:]
    networks = sorted(file.parent.name for file in ROOT.glob("*/model.py"))
    if name in NETWORK_SCRIPTS:
        choices = f"NETWORK is one of {', '.join(networks)}"
        if words[:1] in (["-h"], ["--help"]):
            show_usage(f"usage: zoo {name} NETWORK [arguments]\n\n{choices}.")
        if not words or words[0] not in networks:
            stop(f"zoo {name}: {choices}{f', not {words[0]}' if words else ''}")
        script = ROOT / words.pop(0) / f"{name}.py"
    elif name in removed.COMMANDS:
        removed.refuse_command(name)
    elif name in COMMANDS:
        script = ROOT / COMMANDS[name]
    elif name in ("", "-h", "--help"):
        lines = [__doc__.strip(), ""]
        lines += [f"  {name:20}{about}" for name, about in NETWORK_SCRIPTS.items()]
        for command, path in COMMANDS.items():  # with the first sentence of its script
            about = ast.get_docstring(ast.parse((ROOT / path).read_text()))
            lines.append(f"  {command:20}{about.splitlines()[0]}")
        with exit_on_broken_pipe():
            print("\n".join(lines))
        sys.exit(0 if name else 2)
    else:
        near = get_close_matches(name, [*NETWORK_SCRIPTS, *COMMANDS], n=1)
        advice = f"did you mean {near[0]}?" if near else "`zoo --help` lists the commands"
        stop(f"unknown command {name}; {advice}")
    sys.argv = [str(script), *words]
    show_usage(ast.get_docstring(ast.parse(script.read_text())))
    with exit_on_broken_pipe():
        runpy.run_path(str(script), run_name="__main__")


def stop(line: str) -> NoReturn:
    print(f"error: {line}", file=sys.stderr)
    sys.exit(2)
