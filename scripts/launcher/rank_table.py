"""Huawei's rank table: the JSON file in which older clusters list servers, devices and ranks.

Version 1.0: `server_count`, `server_list` with a `server_id` (an address) and its `device`s, each
with `device_id`, `device_ip` and `rank_id`, and the `status` `completed`.
"""

from pathlib import Path
from typing import Any

from utils.files import read_json


def read_rank_table(path: Path) -> tuple[list[str], int]:
    """(addresses of the servers in the order of their ranks, number of devices of each server).

    Raises ValueError, which names the file, if msrun cannot use the table.
    """
    try:
        return check_servers(read_json(path, "the file"))
    except ValueError as error:
        raise ValueError(f"RANK_TABLE_FILE: {path}: {error}") from None
    except Exception as error:  # of another form; also of an infinite number
        raise ValueError(f"RANK_TABLE_FILE: {path}: missing or misplaced: {error}") from None


def check_servers(table: dict[str, Any]) -> tuple[list[str], int]:
    if table["status"] != "completed":
        raise ValueError(f"status is {table['status']!r}, not 'completed'")
    servers = sorted(table["server_list"], key=list_ids)
    count = table["server_count"]
    if int(count) != len(servers) or not servers:
        raise ValueError(f"server_count is {count}, server_list has {len(servers)} entries")
    counts = {len(server["device"]) for server in servers}
    if len(counts) > 1 or 0 in counts:
        raise ValueError(f"every server must have the same number of devices, not {counts}")
    devices = counts.pop()
    ids = [pair for server in servers for pair in list_ids(server)]
    for rank, pair in enumerate(ids):
        if pair != (rank, rank % devices):
            raise ValueError(
                f"(rank_id, device_id) is {pair}, not {(rank, rank % devices)}: rank_id must count "
                f"from 0 to {len(ids) - 1}, server by server, and device_id from 0 in the same "
                "order; choose devices with ASCEND_RT_VISIBLE_DEVICES"
            )
    return [str(server["server_id"]) for server in servers], devices


def list_ids(server: dict[str, Any]) -> list[tuple[int, int]]:
    """(rank_id, device_id) of the devices of a server, in the order of ranks."""
    return sorted((int(device["rank_id"]), int(device["device_id"])) for device in server["device"])
