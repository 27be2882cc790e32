"""Equal files: copies, links and other spellings, in one list or in two."""

import os
from pathlib import Path

import pytest

from utils.data.annotation_file import Record
from utils.data.equal_files import describe_repeats, find_equal_files, log_repeats
from utils.runtime import Runtime
from utils.video.reader import Segment


@pytest.fixture
def videos(tmp_path) -> Path:
    """Files a to d of equal size; copy.mp4 and links of a; two equal folders of frames."""
    for name in "abcd":
        (tmp_path / f"{name}.mp4").write_text(name)
    (tmp_path / "copy.mp4").write_text("a")
    os.link(tmp_path / "a.mp4", tmp_path / "hard.mp4")
    (tmp_path / "soft.mp4").symlink_to(tmp_path / "a.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "empty2.mp4").touch()
    for folder, last in (("frames", "2"), ("frames2", "2"), ("other", "3")):
        (tmp_path / folder).mkdir()
        for k, text in enumerate(("1", last)):
            (tmp_path / folder / f"{k}.jpg").write_text(text)
    return tmp_path


def test_equal_files_are_grouped_in_the_order_of_the_paths(videos):
    names = ["b.mp4", "copy.mp4", "a.mp4", "hard.mp4", "soft.mp4", "c.mp4", "none.mp4"]
    names += ["empty.mp4", "empty2.mp4", "frames", "frames2", "other"]
    groups = find_equal_files([str(videos / name) for name in names])
    assert [[Path(path).name for path in group] for group in groups] == [
        ["copy.mp4", "a.mp4", "hard.mp4", "soft.mp4"],
        ["frames", "frames2"],
    ]


def build_records(folder: Path, texts: str) -> list[Record]:
    """Of words NAME:LABEL or NAME:LABEL:START."""
    records = []
    for line, text in enumerate(texts.split(), 1):
        name, label, *start = text.split(":")
        segment = Segment(float(start[0]), float(start[0]) + 1) if start else None
        path = os.path.join(folder, f"{name}.mp4")
        records.append(Record(path, num_frames=None, label=int(label), line=line, segment=segment))
    return records


@pytest.mark.parametrize(
    ("train", "validation", "lines"),
    [
        ("a:0 b:1", "c:0 d:1", []),
        ("a:0 b:1 a:0", "c:0 d:1", ["train has samples more than once (1)"]),
        (
            "a:0 b:1 copy:1",
            "c:0 d:1",
            [
                "train has samples more than once (1)",
                "train has equal samples with different labels (1)",
            ],
        ),
        ("a:0 b:1", "./a:0 d:1", ["train and validation have the same samples (1)"]),
        ("a:0 b:1", "b:1 soft:0", ["train and validation have the same samples (2)"]),
        ("a:0 b:0", "c:0 d:1", ["train has one class: all 2 samples have the same label"]),
        ("a:0:0 a:1:2 b:1", "a:0:4 copy:1:2", ["train and validation have the same samples (1)"]),
        ("empty:0 b:1", "empty2:0 d:1", []),
    ],
)
def test_a_line_says_which_samples_are_repeated(train, validation, lines, videos, log_messages):
    lists = {"train": build_records(videos, train), "validation": build_records(videos, validation)}
    result = describe_repeats(lists)
    assert [line.partition(", for example")[0] for line in result] == lines
    log_repeats(Runtime(), **lists)
    log_repeats(Runtime(1, 2), **lists)
    assert log_messages == result


def test_of_too_many_files_only_the_paths_are_compared(videos):
    lists = {"a": build_records(videos, "a:0 b:1"), "b": build_records(videos, "copy:0 ./b:1")}
    (line,) = describe_repeats(lists, limit=3)
    assert line.startswith("a and b have the same samples (1), for example")
    assert line.endswith("b.mp4")
