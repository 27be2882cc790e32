"""What the installed commands `zoo-...` run: the scripts of this zoo, unchanged.

    zoo-train NETWORK ARGUMENTS     is    python NETWORK/train.py ARGUMENTS
    zoo-check-env ARGUMENTS         is    python scripts/check_env.py ARGUMENTS
    zoo-dry-run ARGUMENTS           is    python scripts/analysis/dry_run.py ARGUMENTS

A yaml of the zoo is found by its name here, `tsm/configs/tsm_smoke.yaml`; `data` and `out` lie in
the current folder. `--help` shows what is written at the head of the script.
"""

import ast
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("scripts", "scripts/analysis")
sys.path[0] = str(ROOT)

from utils.usage import quietly, show_usage


def main() -> None:
    command = Path(sys.argv[0]).stem
    name = f"{command[len('zoo-') :].replace('-', '_')}.py"
    rest = sys.argv[1:]
    scripts = [ROOT / folder / name for folder in FOLDERS if (ROOT / folder / name).is_file()]
    script = scripts[0] if scripts else of_network(command, name, rest)
    show_usage(ast.get_docstring(ast.parse(script.read_text())))
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings; errors still show
    sys.argv = [str(script), *rest]
    with quietly():
        runpy.run_path(str(script), run_name="__main__")


def of_network(command: str, name: str, rest: list[str]) -> Path:
    """The script of the network that the first argument names; takes that argument."""
    networks = sorted(file.parent.name for file in ROOT.glob("*/model.py"))
    if rest and rest[0] in networks:
        return ROOT / rest.pop(0) / name
    several = ", ".join(networks)
    show_usage(
        f"usage: {command} NETWORK [arguments]\n\n"
        f"NETWORK is one of {several}; `{command} {networks[0]} --help` shows its arguments."
    )
    found = f", not {rest[0]}" if rest else ""
    print(f"error: {command}: the first argument must be one of {several}{found}", file=sys.stderr)
    sys.exit(2)
