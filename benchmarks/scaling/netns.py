"""Several hosts on one machine: network namespaces on a bridge, each behind a link of limited rate.

Linux, root, and iproute2 are needed. Traffic stays inside the namespaces.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

SUBNET = "10.77.0"


def why_not() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc are not installed (iproute2)"
    probe = f"zoo{os.getpid()}p"
    try:
        with contextlib.ExitStack() as stack:
            add_namespace(probe, stack)
            limit(probe, "lo", "1gbit")
    except OSError as error:
        return f"network namespaces are not permitted here: {error}"
    return ""


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[list[tuple[str, str]]]:
    """(namespace, address) of `count` hosts that send at most `rate`, as `tc` spells it: 100mbit.

    Everything is taken down at the end. Raises OSError where that is not permitted.
    """
    hub = f"zoo{os.getpid()}h"
    with contextlib.ExitStack() as stack:
        add_namespace(hub, stack)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        made = []
        for i in range(count):
            name, address = f"zoo{os.getpid()}n{i}", f"{SUBNET}.{i + 1}"
            add_namespace(name, stack)
            plug(name, address, hub, f"port{i}")
            limit(name, "eth0", rate)
            settle(name)
            made.append((name, address))
        yield made


def add_namespace(name: str, stack: contextlib.ExitStack) -> None:
    run("ip", "netns", "add", name)
    stack.callback(run, "ip", "netns", "delete", name)


def plug(name: str, address: str, hub: str, port: str) -> None:
    """Connects a namespace to the bridge of the hub."""
    ends = ["eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", hub]
    run("ip", "link", "add", *ends)
    run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        run("ip", "-n", name, "link", "set", device, "up")
    run("ip", "-n", hub, "link", "set", port, "master", "bridge")
    run("ip", "-n", hub, "link", "set", port, "up")


def limit(name: str, device: str, rate: str) -> None:
    """A token bucket: what leaves waits in line, for up to five seconds, and is not dropped."""
    bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "5s"]
    run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", *bucket)


# BBR, some systems' default, keeps trying the link with less and more; and a sender that has been
# idle, as between two steps, would begin slowly again.
TCP = "net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0"


def settle(name: str) -> None:
    """Lets TCP use the link evenly, so that what is measured is the link."""
    for setting in TCP:
        run("ip", "netns", "exec", name, "sysctl", "-q", "-w", setting)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
