"""What msrun starts in place of a script, for scripts/launch.py: ties the process to the launcher.

    python scripts/worker.py SCRIPT [arguments]

Leaves a file with the number of the process beside its log, waits until msrun has ended, and
becomes the script. The script then dies with the launcher, also of `kill -9`.
"""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.processes import wait_until_reparented


def main() -> None:
    name = "scheduler"
    if os.environ["MS_ROLE"] == "MS_WORKER":
        name = f"worker_{os.environ['MS_NODE_ID']}"
    elif os.environ["ZOO_NODE"] != "0":
        return  # msrun starts a scheduler at each node whose host has the master's address
    Path(os.environ["ZOO_LOGS"], f"{name}.{os.getpid()}.pid").touch()
    wait_until_reparented(int(os.environ["ZOO_LAUNCHER"]))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
