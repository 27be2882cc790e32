"""Reads event files like TensorBoard: verifies checksums, drops points that a restart repeats."""

import struct
from pathlib import Path

import pytest


def read_events(path: Path) -> list:
    """Returns the records of a file, after a check of their checksums."""
    proto = pytest.importorskip("tensorboardX.proto.event_pb2")
    crc = pytest.importorskip("tensorboardX.record_writer").masked_crc32c
    content = path.read_bytes()
    result = []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        body = content[12 : 12 + size]
        assert struct.unpack("<I", content[8:12]) == (crc(content[:8]),)
        assert content[12 + size : 16 + size] == struct.pack("<I", crc(body))
        result.append(proto.Event.FromString(body))
        content = content[16 + size :]
    return result


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """Returns {tag: {step: value}}; a restart at step k hides earlier points of steps from k on."""
    curves: dict[str, dict[int, float]] = {}
    files = sorted(folder.glob("events.out.tfevents.*"), key=lambda file: file.stat().st_mtime_ns)
    for event in [event for file in files for event in read_events(file)]:
        if event.HasField("session_log"):
            assert event.session_log.status == event.session_log.START
            for tag, points in curves.items():
                curves[tag] = {k: value for k, value in points.items() if k < event.step}
        for value in event.summary.value:
            points = curves.setdefault(value.tag, {})
            assert event.step not in points, "a step appears twice"
            points[event.step] = value.simple_value
    return curves
