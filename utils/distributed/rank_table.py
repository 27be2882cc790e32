"""Huawei's rank table: the JSON file in which older clusters list servers, devices and ranks.

Version 1.0: `server_count`, `server_list` with a `server_id` (an address) and its `device`s, each
with `device_id`, `device_ip` and `rank_id`, and a `status` that says `completed`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.files import read_text


@dataclass(frozen=True)
class RankTable:
    """A table that was checked: every server has as many devices, ranks follow the servers."""

    path: Path
    servers: tuple[str, ...]  # in the order of their ranks
    devices: int  # per server


def read_rank_table(path: Path) -> RankTable:
    """Raises ValueError, which names the file, if msrun cannot use the table."""
    try:
        return RankTable(path.resolve(), *check_servers(json.loads(read_text(path, "the file"))))
    except json.JSONDecodeError as error:
        raise ValueError(f"RANK_TABLE_FILE: {path} is not JSON: {error}") from None
    except ValueError as error:
        raise ValueError(f"RANK_TABLE_FILE: {path}: {error}") from None
    except Exception as error:  # of another form; also of too many brackets or an infinite number
        raise ValueError(f"RANK_TABLE_FILE: {path}: missing or misplaced: {error}") from None


def check_servers(table: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """(servers in the order of ranks, devices of each)."""
    if table["status"] != "completed":
        raise ValueError(f"status is {table['status']!r}, not 'completed'")
    servers = table["server_list"]
    if int(table["server_count"]) != len(servers) or not servers:
        raise ValueError(
            f"server_count is {table['server_count']}, server_list has {len(servers)} entries"
        )
    lists = [(str(server["server_id"]), read_devices(server)) for server in servers]
    sizes = {len(devices) for _, devices in lists}
    if len(sizes) > 1 or 0 in sizes:
        counts = ", ".join(f"{name}: {len(devices)}" for name, devices in lists)
        raise ValueError(f"every server must have the same number of devices, not {counts}")
    lists.sort(key=lambda entry: entry[1][0])
    ranks = [rank for _, devices in lists for rank, _ in devices]
    if ranks != list(range(len(ranks))):
        raise ValueError(
            f"rank_id must count from 0 to {len(ranks) - 1}, server by server, not {join(ranks)}"
        )
    for name, devices in lists:
        numbers = [number for _, number in devices]
        if numbers != list(range(len(numbers))):
            raise ValueError(
                f"server {name}: device_id must count from 0 in the order of rank_id, not "
                f"{join(numbers)}; choose devices with ASCEND_RT_VISIBLE_DEVICES"
            )
    return tuple(name for name, _ in lists), sizes.pop()


def read_devices(server: dict[str, Any]) -> list[tuple[int, int]]:
    """(rank, device) pairs in the order of ranks."""
    return sorted((int(d["rank_id"]), int(d["device_id"])) for d in server["device"])


def join(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
