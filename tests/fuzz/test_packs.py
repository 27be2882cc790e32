"""Damaged packs: each is refused with the name of the file, or gives exactly the right frames."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.fuzz.damage import mutate
from tests.numbered_videos import write_numbered_video
from utils.data.annotation_file import AnnotationFile, Record
from utils.data.packed.encoder import EncodeOptions
from utils.data.packed.pack import pack_lists, plan_packing, read_settings
from utils.data.packed.reader import INDEX, LIST, LOCATIONS_FILE, PackedVideo, read_records
from utils.data.packed.shard_writer import note_path, read_note

# Replacements for a value; the last is nested deeper than Python's parser allows.
NUMBERS = (True, -1, 0, 7, 2**70, 1.5, float("inf"))
VALUES = (None, *NUMBERS, "", "x", "../x", "\0", [], {}, [[]], "deep")
DEEP = "[" * 50_000


def flip_bit(content: bytes, seed: int, first: int, end: int) -> bytes:
    """Flips one bit of the bytes [first, end); end 0: to the end of the content."""
    rng, data = random.Random(seed), bytearray(content)
    data[rng.randrange(first, end or len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def change_json(content: bytes, seed: int) -> bytes:
    """Replaces or deletes one value at any depth."""
    rng, values = random.Random(seed), json.loads(content)
    positions: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            positions.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(values)
    node, key = rng.choice(positions)
    if rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(values).replace('"deep"', DEEP).encode()


FRAMES = 30
OPTIONS = {"video": EncodeOptions("video", 256, 6, 18), "jpeg": EncodeOptions("jpeg", 256, 1, 80)}
FILES = {INDEX: (mutate, change_json), LOCATIONS_FILE: (mutate,), LIST: (mutate,)}


class Pack(NamedTuple):
    """A packed list of three videos in two shards, and its records and frames before damage."""

    file: AnnotationFile
    folder: Path
    records: list[Record]
    frames: list[np.ndarray]  # uint8 (FRAMES, H, W, 3) of each record


@pytest.fixture(scope="module", params=["video", "jpeg"])
def pack(request, tmp_path_factory) -> Pack:
    root = tmp_path_factory.mktemp(request.param)
    for k in range(3):
        write_numbered_video(root / f"{k}.mp4", FRAMES, 96, 64, 25)
    (root / "list.txt").write_text("".join(f"{k}.mp4 {k}\n" for k in range(3)))
    file, folder = AnnotationFile("list.txt", root / "list.txt", root, "video", 3), root / "packed"
    plan = plan_packing(file, folder / "list.txt", OPTIONS[request.param], 2, {})
    pack_lists([plan], "auto", 1)
    records = read_records(file, folder)
    frames = [read_frames(record, list(range(FRAMES))) for record in records]
    return Pack(file, folder, records, frames)


@pytest.fixture
def seed(request) -> int:
    return request.config.getoption("--seed", default=0)


def read_frames(record: Record, indices: list[int]) -> np.ndarray:
    return PackedVideo(record.path, record.location).frames(indices)


class Damage:
    """Other content in a file, until the end of the block."""

    def __init__(self, path: Path, content: bytes):
        self.path, self.content = path, content

    def __enter__(self) -> None:
        self.before = self.path.read_bytes()
        self.path.write_bytes(self.content)

    def __exit__(self, *_) -> None:
        self.path.write_bytes(self.before)


def attempt(work: Callable, *arguments: Any) -> tuple[Any, str]:
    """(result, error message) of a call; other errors than ValueError fail the test."""
    try:
        return work(*arguments), ""
    except ValueError as error:
        return None, str(error)


class FlippedBit:
    """Flips one bit of a packed video, in one part of it, until the end of the block."""

    def __init__(self, record: Record, part: str, seed: int):
        position = record.location
        first, end = {"head": (0, 25), "table": (25, position.head), "packets": (position.head, 0)}[
            part
        ]
        self.before, self.path = position.read(), position.shard
        self.content, self.offset = flip_bit(self.before, seed, first, end), position.offset

    def write(self, content: bytes) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.offset)
            file.write(content)

    def __enter__(self) -> None:
        self.write(self.content)

    def __exit__(self, *_) -> None:
        self.write(self.before)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_a_shard_never_gives_other_frames(pack, seed, count):
    """Reads three frames of a video with one damaged bit, `count` times for each of its parts."""
    refused = dict.fromkeys(("head", "table", "packets"), 0)
    for part in refused:
        for number in range(seed + count, seed + 2 * count):
            rng = random.Random(number)
            k = rng.randrange(len(pack.records))
            record, indices = pack.records[k], sorted(rng.sample(range(FRAMES), 3))
            with FlippedBit(record, part, number):
                frames, line = attempt(read_frames, record, indices)
            if line:
                assert record.location.shard in line
                refused[part] += 1
            else:
                assert np.array_equal(frames, pack.frames[k][indices]), (part, number)
    assert refused["head"] == refused["table"] == count
    assert 0 < refused["packets"] < count, "damage in packets that are not read does no harm"


@pytest.mark.parametrize("pack", ["video"], indirect=True)
@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_damaged_index_is_refused_by_its_name(pack, seed, count):
    """Opens the list with one damaged file, `count` times for each kind of damage."""
    for name, changes in FILES.items():
        path = pack.folder / "list.txt" / name
        content, refused = path.read_bytes(), 0
        for change in changes:
            for number in range(seed + count, seed + 2 * count):
                with Damage(path, change(content, number)):
                    records, line = attempt(read_records, pack.file, pack.folder)
                if line:
                    assert str(path) in line
                    assert "\n" not in line
                    refused += 1
                else:
                    assert records == pack.records, (name, change.__name__, number)
        assert refused >= 0.9 * count * len(changes)


@pytest.mark.parametrize("pack", ["video"], indirect=True)
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_of_a_pack_is_named(pack, name, tmp_path):
    path = pack.folder / "list.txt" / name
    path.rename(tmp_path / "away")
    try:
        with pytest.raises(ValueError, match="data.packed: .*list.txt.*pack_videos"):
            read_records(pack.file, pack.folder)
    finally:
        (tmp_path / "away").rename(path)


@pytest.mark.parametrize("pack", ["video"], indirect=True)
@pytest.mark.parametrize("name", FILES)
def test_a_pack_without_checksums_is_read_or_refused(pack, name, seed, log_messages):
    """A pack of an earlier version: only the values themselves can be checked."""
    index = pack.folder / "list.txt" / INDEX
    result = json.loads(index.read_bytes())
    del result["places"], result["checksum"]
    with Damage(index, json.dumps(result).encode()):
        assert read_records(pack.file, pack.folder) == pack.records
        assert [line for line in log_messages if "was packed without checksums" in line]
        path = pack.folder / "list.txt" / name
        content = path.read_bytes()
        for change in FILES[name]:
            for number in range(seed, seed + 60):
                with Damage(path, change(content, number)):
                    records, line = attempt(read_records, pack.file, pack.folder)
                assert records or str(pack.file.root) in line
                for record in records or ():
                    attempt(read_frames, record, [3])


@pytest.mark.parametrize("pack", ["video"], indirect=True)
def test_damaged_notes_of_a_packing_are_rewritten_or_named(pack, seed):
    shard = Path(pack.records[0].location.shard)
    settings = pack.folder / "list.txt" / "settings.json"
    expected = json.loads(note_path(shard).read_bytes())
    for path, change in ((p, c) for p in (note_path(shard), settings) for c in FILES[INDEX]):
        content = path.read_bytes()
        for number in range(seed, seed + 60):
            with Damage(path, change(content, number)):
                note, (begun, line) = read_note(shard), attempt(read_settings, settings)
            assert begun or str(settings) in line
            assert note is None or {**expected, **note} == expected
