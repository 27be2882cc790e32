"""A worker without MindSpore, for tests of the launcher; the scheduler only waits.

    python tests/fake_worker.py [RANK:ACTION ...]

ACTION is kill, fail, lose or mistake, in the first attempt only; the other ranks wait, as in
an AllReduce. `all:wait` makes every rank wait. Without arguments every rank succeeds.
"""

import json
import os
import signal
import sys
import time


def main() -> int:
    if os.environ["MS_ROLE"] == "MS_SCHED":
        time.sleep(100)
    rank = os.environ["MS_NODE_ID"]
    actions = dict(word.split(":") for word in sys.argv[1:])
    print(f"rank {rank} of {os.environ['MS_WORKER_NUM']}", file=sys.stderr, flush=True)
    action = actions.get(rank, "wait") if actions else ""
    if "restart" in os.environ["ZOO_LOGS"]:
        action = ""
    if action == "wait":
        time.sleep(100)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "fail":
        return 3
    if action == "lose":
        print("error: data.processes: a worker process was killed", file=sys.stderr)
        return 1
    if action == "mistake":
        print("error: data.root: nothing is there", file=sys.stderr)
        return 2
    print(json.dumps({"rank": int(rank)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
