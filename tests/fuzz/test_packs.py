"""Damaged packs are refused with the name of the file, or give exactly the right frames."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from scripts.data.packing.encoder import EncodeOptions
from scripts.data.packing.pack import LOCATIONS_FILE, pack_lists, plan_packing, read_settings
from scripts.data.packing.shard_writer import note_path, read_note
from tests.fuzz.damage import mutate
from tests.numbered_videos import write_numbered_video
from utils.data.annotation_file import AnnotationFile, Record
from utils.data.packed.reader import INDEX, LIST, PackedVideo
from utils.data.records import read_records

# Replacements for a value. "deep" is nested deeper than the parser of Python allows.
NUMBERS = (True, -1, 0, 7, 2**70, 1.5, float("inf"))
VALUES = (None, *NUMBERS, "", "x", "../x", "\0", [], {}, [[]], "deep")
DEEP = "[" * 50_000


def flip_bit(content: bytes, seed: int, start: int, end: int) -> bytes:
    """Flips one bit of the bytes [start, end); end 0: to the end of the content."""
    rng = random.Random(seed)
    data = bytearray(content)
    data[rng.randrange(start, end or len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def change_json(content: bytes, seed: int) -> bytes:
    """Replaces or deletes one value at any depth."""
    rng = random.Random(seed)
    values = json.loads(content)
    slots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            slots.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(values)
    node, key = rng.choice(slots)
    if rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(values).replace('"deep"', DEEP).encode()


FRAMES = 30
OPTIONS = EncodeOptions(256, 6, 18)
FILES = {INDEX: (mutate, change_json), LOCATIONS_FILE: (mutate,), LIST: (mutate,)}


class Pack(NamedTuple):
    """A packed list of three videos in two shards, and its records and frames before damage."""

    file: AnnotationFile
    folder: Path
    records: list[Record]
    frames: list[np.ndarray]  # uint8 (FRAMES, H, W, 3) of each record


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Pack:
    root = tmp_path_factory.mktemp("videos")
    for k in range(3):
        write_numbered_video(root / f"{k}.mp4", frames=FRAMES, width=96, height=64, rate=25)
    (root / "list.txt").write_text("".join(f"{k}.mp4 {k}\n" for k in range(3)))
    file = AnnotationFile(
        "list.txt", path=root / "list.txt", root=root, source="video", num_classes=3
    )
    folder = root / "packed"
    plan = plan_packing(file, folder=folder / "list.txt", options=OPTIONS, shards=2, known_bad={})
    pack_lists([plan], reader="auto", workers=1, executor="processes")
    records = read_records(file, folder)
    frames = [read_frames(record, list(range(FRAMES))) for record in records]
    return Pack(file, folder=folder, records=records, frames=frames)


def read_frames(record: Record, indices: list[int]) -> np.ndarray:
    return PackedVideo(record.path, record.location).frames(indices)


@contextmanager
def replace_content(path: Path, content: bytes) -> Iterator[None]:
    """Replaces the content of a file until the end of the block."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def catch_value_error(work: Callable, *arguments: Any) -> tuple[Any, str]:
    """(result, error message) of a call; other errors than ValueError fail the test."""
    try:
        return work(*arguments), ""
    except ValueError as error:
        return None, str(error)


@contextmanager
def flip_bit_of_video(record: Record, part: str, seed: int) -> Iterator[None]:
    """Flips one bit of a packed video, in one part of it, until the end of the block."""
    location = record.location
    parts = {"head": (0, 25), "table": (25, location.head), "packets": (location.head, 0)}
    before = location.read()

    def write(content: bytes) -> None:
        with open(location.shard, "r+b") as file:
            file.seek(location.offset)
            file.write(content)

    write(flip_bit(before, seed, *parts[part]))
    try:
        yield
    finally:
        write(before)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_shard_never_gives_other_frames(pack, seed, count):
    """Reads three frames of a video with one damaged bit, `count` times for each of its parts."""
    refused = dict.fromkeys(("head", "table", "packets"), 0)
    for part in refused:
        for number in range(seed + count, seed + 2 * count):
            rng = random.Random(number)
            k = rng.randrange(len(pack.records))
            record = pack.records[k]
            indices = sorted(rng.sample(range(FRAMES), 3))
            with flip_bit_of_video(record, part, number):
                frames, line = catch_value_error(read_frames, record, indices)
            if line:
                assert record.location.shard in line
                refused[part] += 1
            else:
                assert np.array_equal(frames, pack.frames[k][indices]), (part, number)
    assert refused["head"] == refused["table"] == count
    assert 0 < refused["packets"] < count, "damage in packets that are not read changes nothing"


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_damaged_index_is_refused_with_its_name(pack, seed, count):
    """Opens the list with one damaged file, `count` times for each kind of damage."""
    for name, changes in FILES.items():
        path = pack.folder / "list.txt" / name
        content = path.read_bytes()
        refused = 0
        for change in changes:
            for number in range(seed + count, seed + 2 * count):
                with replace_content(path, change(content, number)):
                    records, line = catch_value_error(read_records, pack.file, pack.folder)
                if line:
                    assert str(path) in line
                    assert "\n" not in line
                    refused += 1
                else:
                    assert records == pack.records, (name, change.__name__, number)
        assert refused >= 0.9 * count * len(changes)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_of_a_pack_is_named(pack, name, tmp_path):
    path = pack.folder / "list.txt" / name
    path.rename(tmp_path / "away")
    try:
        with pytest.raises(ValueError, match="data.packed: .*list.txt.*pack_videos"):
            read_records(pack.file, pack.folder)
    finally:
        (tmp_path / "away").rename(path)


def test_damaged_notes_of_a_packing_are_rewritten_or_named(pack, seed):
    shard = Path(pack.records[0].location.shard)
    settings = pack.folder / "list.txt" / "settings.json"
    expected = json.loads(note_path(shard).read_bytes())
    for path, change in ((p, c) for p in (note_path(shard), settings) for c in FILES[INDEX]):
        content = path.read_bytes()
        for number in range(seed, seed + 60):
            with replace_content(path, change(content, number)):
                note = read_note(shard)
                (begun, line) = catch_value_error(read_settings, settings)
            assert begun or str(settings) in line
            assert note is None or {**expected, **note} == expected
