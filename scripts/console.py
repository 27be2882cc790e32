"""What the installed commands `zoo-...` run: the scripts of this zoo, unchanged.

    zoo-train NETWORK ARGUMENTS     is    python NETWORK/train.py ARGUMENTS
    zoo-check-env ARGUMENTS         is    python scripts/check_env.py ARGUMENTS

A yaml of the zoo is found by its name here, `tsm/configs/tsm_smoke.yaml`; `data` and `out` lie in
the current folder.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    command = Path(sys.argv[0]).stem
    name = command[len("zoo-") :].replace("-", "_") + ".py"
    script, rest = ROOT / "scripts" / name, sys.argv[1:]
    if not script.is_file():
        networks = sorted(file.parent.name for file in ROOT.glob(f"*/{name}"))
        if not rest or rest[0] not in networks:
            given = f", not {rest[0]}" if rest else ""
            print(
                f"error: {command}: name one of {', '.join(networks)} first{given}", file=sys.stderr
            )
            sys.exit(2)
        script = ROOT / rest.pop(0) / name
    sys.argv = [str(script), *rest]
    runpy.run_path(str(script), run_name="__main__")
