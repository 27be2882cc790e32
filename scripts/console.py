"""What the installed commands `zoo-...` run: the scripts of this zoo, unchanged.

    zoo-train NETWORK ARGUMENTS     is    python NETWORK/train.py ARGUMENTS
    zoo-check-env ARGUMENTS         is    python scripts/check_env.py ARGUMENTS

A yaml of the zoo is found by its name here, `tsm/configs/tsm_smoke.yaml`; `data` and `out` lie in
the current folder.
"""

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    command = Path(sys.argv[0]).stem
    script = ROOT / "scripts" / f"{command[len('zoo-') :].replace('-', '_')}.py"
    rest = sys.argv[1:]
    if not script.is_file():
        networks = sorted(file.parent.name for file in ROOT.glob(f"*/{script.name}"))
        if not rest or rest[0] not in networks:
            found = f", not {rest[0]}" if rest else ""
            expected = f"the first argument must be one of {', '.join(networks)}{found}"
            print(f"error: {command}: {expected}", file=sys.stderr)
            sys.exit(2)
        script = ROOT / rest.pop(0) / script.name
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings; errors still show
    sys.argv = [str(script), *rest]
    runpy.run_path(str(script), run_name="__main__")
