"""Runs a script on several devices with msrun, and makes it behave like one process.

    python scripts/launch.py DEVICES SCRIPT [arguments]

DEVICES are those of this node; NODES, NODE_RANK, MASTER_ADDR and MASTER_PORT say the rest. The
first worker's log is shown on stderr, its last JSON line on stdout; the logs of all workers stay in
out/logs. SIGTERM and ctrl-C reach the workers as SIGTERM. Exit status: that of the failed worker.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    devices, script, *arguments = sys.argv[1:]
    nodes, node = int(os.environ.get("NODES", 1)), int(os.environ.get("NODE_RANK", 0))
    logs = ROOT / "out" / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    logs.mkdir(parents=True)
    command = [
        "msrun",
        f"--worker_num={int(devices) * nodes}",
        f"--local_worker_num={devices}",
        f"--node_rank={node}",
        f"--master_addr={os.environ.get('MASTER_ADDR', '127.0.0.1')}",
        f"--master_port={os.environ.get('MASTER_PORT') or (8118 if nodes > 1 else free_port())}",
        f"--log_dir={logs}",
        "--join=True",
        script,
        *arguments,
    ]
    with open(logs / "msrun.log", "w") as log:
        job = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    asked = forward_signals(job, script)
    result = follow(job, logs / f"worker_{node * int(devices)}.log")
    status = job.wait()
    if result:
        print(result, flush=True)
    if status:
        status = explain(logs)
    return 130 if signal.SIGINT in asked else status


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def forward_signals(job: subprocess.Popen, script: str) -> list:
    """Passes ctrl-C and SIGTERM on to the workers; returns the list of those that came."""
    asked: list = []

    def pass_on(number, frame) -> None:
        asked.append(number)
        for process in psutil.Process(job.pid).children():
            if script in process.cmdline():
                process.send_signal(signal.SIGTERM if len(asked) == 1 else signal.SIGKILL)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    return asked


def follow(job: subprocess.Popen, path: Path) -> str:
    """Copies a growing log to stderr until the job ends; returns its last JSON line."""
    result, rest, position = "", "", 0
    while True:
        ended = job.poll() is not None
        if path.exists():
            with open(path, errors="replace") as log:
                log.seek(position)
                text = rest + log.read()
                position = log.tell()
            *lines, rest = text.split("\n")
            for line in lines:
                if line.startswith("{"):
                    result = line
                else:
                    print(line, file=sys.stderr, flush=True)
        if ended:
            return result
        if mistake(path.parent):
            end_soon(job)
        time.sleep(0.2)


def mistake(logs: Path) -> str:
    """The line by which a worker told a mistake of the user; empty where none did."""
    for path in sorted(logs.glob("worker_*.log")):
        found = re.findall(r"^error: .*$", path.read_text(errors="replace"), re.MULTILINE)
        if found:
            return f"{path.stem}: {found[-1]}"
    return ""


def end_soon(job: subprocess.Popen) -> None:
    """Ends the job after a moment in which the workers may end by themselves.

    The others would wait half a minute for the one that is gone.
    """
    try:
        job.wait(timeout=2)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)  # it has a session, and so a group, of its own


def explain(logs: Path) -> int:
    """Says why the job failed: a worker's own line, or where to look."""
    told = mistake(logs)
    if told:
        print(told, file=sys.stderr)
        return 2
    print(f"a worker failed; the logs are in {logs}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
