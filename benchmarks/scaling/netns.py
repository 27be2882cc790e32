"""Simulates hosts on one machine: network namespaces on a bridge, with links of limited rate.

Linux, root, and iproute2 are needed. Traffic stays inside the namespaces.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

SUBNET = "10.77.0"
# TCP uses the link evenly, so that the link is measured and not TCP. BBR, the default of some
# systems, varies its rate to probe the link. And without the second option a sender that was idle,
# as between two steps, would start slowly again.
TCP = "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0"


def explain_missing() -> str:
    """Why network namespaces cannot be created here; empty if they can."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc are not installed (iproute2)"
    probe = f"zoo{os.getpid()}p"
    try:
        with contextlib.ExitStack() as stack:
            add_namespace(probe, stack)
            limit_rate(probe, "lo", "1gbit")
    except OSError as error:
        return f"network namespaces are not permitted here: {error}"
    return ""


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[list[tuple[str, str]]]:
    """Creates `count` hosts: (namespace, address). Each sends at most `rate` of `tc`, as 100mbit.

    All are deleted at the end. Raises OSError if that is not permitted.
    """
    hub = f"zoo{os.getpid()}h"
    with contextlib.ExitStack() as stack:
        add_namespace(hub, stack)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        created = []
        for i in range(count):
            name, address = f"zoo{os.getpid()}n{i}", f"{SUBNET}.{i + 1}"
            add_namespace(name, stack)
            connect_to_bridge(name, address, hub, f"port{i}")
            limit_rate(name, "eth0", rate)
            for setting in TCP:
                run("ip", "netns", "exec", name, "sysctl", "-q", "-w", setting)
            created.append((name, address))
        yield created


def add_namespace(name: str, stack: contextlib.ExitStack) -> None:
    run("ip", "netns", "add", name)
    stack.callback(run, "ip", "netns", "delete", name)


def connect_to_bridge(name: str, address: str, hub: str, port: str) -> None:
    ends = ["eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", hub]
    run("ip", "link", "add", *ends)
    run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        run("ip", "-n", name, "link", "set", device, "up")
    run("ip", "-n", hub, "link", "set", port, "master", "bridge")
    run("ip", "-n", hub, "link", "set", port, "up")


def limit_rate(name: str, device: str, rate: str) -> None:
    """Adds a token bucket: packets wait in a queue, for up to five seconds, and are not lost."""
    bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "5s"]
    run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", *bucket)


def run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise OSError(f"{' '.join(command)}: {process.stderr.strip() or process.returncode}")
