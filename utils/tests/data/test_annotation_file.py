"""Annotation files: accepted and refused lines, and the error messages."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from utils.data.annotation_file import (
    AnnotationFile,
    encode_label,
    format_label,
    read_annotations,
    swap_labels,
)
from utils.files import ROOT

GOLDEN = json.loads((ROOT / "tsm" / "tests" / "golden" / "tsm_data.json").read_text())


@pytest.fixture
def read_list(tmp_path):
    """read_list(text, source): writes the list and reads it, below tmp_path, with 10 classes."""

    def call(text, source="video", image_tmpl="", min_frames=3, **settings):
        path = tmp_path / "list.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        file = AnnotationFile(path.name, path, tmp_path, source, 10, image_tmpl, **settings)
        return read_annotations(file, min_frames)

    return call


@pytest.fixture
def touch_files(tmp_path):
    def call(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    return call


@pytest.mark.parametrize("case", GOLDEN["list_parsing"])
def test_frame_lists_give_the_records_of_the_original(case, read_list, tmp_path):
    for line in case["lines"]:
        (tmp_path / line.rsplit(" ", 2)[0]).mkdir(parents=True)
    keep = case["test_mode"] and not case["remove_missing"]
    template = case.get("image_tmpl", "img_{:05d}.jpg")
    options = {"image_tmpl": template, "min_frames": 0 if keep else 3}
    records, short = read_list("\n".join(case["lines"]), "frames", **options)
    kept = [[str(Path(r.path).relative_to(tmp_path)), r.num_frames, r.label] for r in records]
    assert kept == case["kept"]
    assert short == len(case["lines"]) - len(case["kept"])


# {what: (source, several labels, lines, [(path, label, frames, segment)])}
SEVERAL = [("a", (3, 7), None, None), ("b", (5,), None, None), ("c d", (), None, None)]
SEVERAL_FRAMES = [("a", (3, 7), 30, None), ("b", (5,), 4, None)]
SEVERAL_SEGMENTS = [("a", (3, 7), None, (1.0, 2.0)), ("b", (5,), None, (0.5, 4.0))]
LISTS = {
    "two fields": ("video", False, ["{root}/a 0", "c d 3", "e 7 f 5", "deep/b 9", "h i,1,2,j 4"], [
        ("a", 0, None, None), ("c d", 3, None, None), ("e 7 f", 5, None, None),
        ("deep/b", 9, None, None), ("h i,1,2,j", 4, None, None),
    ]),
    "three fields, a short video": ("video", False, ["a 0", "deep/b 250 9", "c d 12 4", "a 2 5"], [
        ("a", 0, None, None), ("deep/b", 9, 250, None), ("c d", 4, 12, None), ("a", 5, 2, None),
    ]),
    "folders with spaces and numbers": ("frames", False, ["e 7 f 30 1", "g 1 40 2", "g 30 20 3"], [
        ("e 7 f", 1, 30, None), ("g 1", 2, 40, None), ("g 30", 3, 20, None),
    ]),
    "labels by commas": ("video", True, ["a 7,3", "b 5", "c d -"], SEVERAL),
    "labels by columns": ("video", True, ["a 3 7", "b 5", "c d -"], SEVERAL),
    "labels of frames": ("frames", True, ["a 30 3,7", "b 4 5"], SEVERAL_FRAMES),
    "columns of frames": ("frames", True, ["a 30 3 7", "b 4 5"], SEVERAL_FRAMES),
    "labels of segments": ("video", True, ["a 1 2 3,7", "b 0.5 4 5"], SEVERAL_SEGMENTS),
    "one label of each segment": ("video", True, ["a 1 2.0 3", "b 0.5 4 5"], [
        ("a", (3,), None, (1.0, 2.0)), ("b", (5,), None, (0.5, 4.0)),
    ]),
    "columns of segments": ("video", True, ["a,1,2,3,7", "b,0.5,4,5"], SEVERAL_SEGMENTS),
    "segments by spaces": ("video", False, ["a 0 10 3", "c d 1.5 2.25 4", "a 10 12.0625 5"], [
        ("a", 3, None, (0, 10)), ("c d", 4, None, (1.5, 2.25)), ("a", 5, None, (10, 12.0625)),
    ]),
    "segments by commas": ("video", False, ["c d, 1.5, 2.25, 4", '"e, f",1,2,5'], [
        ("c d", 4, None, (1.5, 2.25)), ("e, f", 5, None, (1, 2)),
    ]),
    "quoted": ("video", True, ["path,start,end,label", 'a,1,2,"3,7"', "b,0.5,4,5"],
               SEVERAL_SEGMENTS),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS)
def test_a_list_gives_its_records(case, read_list, tmp_path):
    source, multi_label, lines, expected = case
    for name in ("a", "b", "c d", "e 7 f", "g 1", "g 30", "deep/b", "h i,1,2,j", "e, f"):
        if source == "video":
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        else:
            (tmp_path / name).mkdir(parents=True)
    text = "\n".join(lines).format(root=tmp_path)
    records, short = read_list(text, source, multi_label=multi_label)
    assert short == 0
    assert [r.line for r in records] == list(range(len(lines) - len(records) + 1, len(lines) + 1))
    assert [
        (os.path.relpath(r.path, tmp_path), r.label, r.num_frames, r.segment and tuple(r.segment))
        for r in records
    ] == expected


def test_blank_lines_are_skipped_but_counted(read_list, touch_files):
    touch_files("a.mp4", "b.mp4")
    records, _ = read_list(b"\xef\xbb\xbf\r\na.mp4 1\r\n\r\n   \nb.mp4 2")
    assert [(record.label, record.line) for record in records] == [(1, 2), (2, 5)]


@pytest.mark.parametrize(
    ("line", "source", "reason"),
    [
        ("a.mp4", "video", "`path label`"),
        ("a.mp4 x", "video", "label 'x'"),
        ("a.mp4 10", "video", "label '10'"),
        ("a.mp4 0 1", "video", "num_frames '0'"),
        ("a.mp4 0 2 1", "video", "`path label`, the form of the first line"),
        ("b.mp4 1", "video", "b.mp4' does not exist"),
        ("folder 1", "video", "folder' does not exist"),
        ("folder 1", "frames", "`path num_frames label`"),
        ("folder x 1", "frames", "num_frames 'x'"),
        ("folder 30 10", "frames", "label '10'"),
    ],
)
def test_a_bad_line_is_refused_with_its_reason(
    read_list, touch_files, tmp_path, line, source, reason
):
    touch_files("a.mp4", "good/frame")
    (tmp_path / "folder").mkdir()
    good = "a.mp4 1" if source == "video" else "good 10 1"
    with pytest.raises(ValueError) as caught:
        read_list(f"{good}\n\n{line}\n{good}\n", source)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'list.txt'}, bad lines (1): line 3: ")
    assert reason in message


BAD_SEGMENTS = {
    "a.mp4 10 10 1": "'10' to '10'",
    "a.mp4 nan 9 1": "'nan' to '9'",
    "a.mp4 0 1 10": "label '10'",
    "a.mp4 1": "`path start end label`",
    "a.mp4,1,2,1": "`path start end label`",
}
BAD_LABELS = {
    "a 3,10": "label '10'",
    "a 3,,5": "label ''",
    "a 300 5\nb 12 7": "list.txt",
    "a 3 5 7\nb 12 8 7": "list.txt",
    "a 3 7\nb 3,7": "a 3' does not exist",
}


def test_bad_segments_and_bad_lists_of_several_labels_are_refused(read_list, touch_files):
    touch_files("a.mp4", "a", "b")
    for line, reason in BAD_SEGMENTS.items():
        with pytest.raises(ValueError, match=rf"list.txt, bad lines \(1\): line 3: .*{reason}"):
            read_list(f"a.mp4 0 2 1\n\n{line}\na.mp4 0 2 1\n")
    for text, reason in BAD_LABELS.items():
        with pytest.raises(ValueError, match=re.escape(reason)):
            read_list(text, multi_label=True)


@pytest.mark.parametrize(
    ("text", "source"), [("", "video"), ("\n\n  \n", "video"), ("x 2 5\ny 0 7", "frames")]
)
def test_a_list_without_usable_videos_is_refused(read_list, text, source):
    with pytest.raises(ValueError, match=r"list\.txt"):
        read_list(text, source)


def test_labels_are_encoded_swapped_and_written():
    assert encode_label((1, 3), 4).tolist() == [0, 1, 0, 1]
    assert encode_label((), 2).tolist() == [0, 0]
    assert encode_label(7, 9) == np.int32(7)
    assert swap_labels((1, 3), [(0, 1), (5, 6)]) == (0, 3)
    assert swap_labels((0, 1), [(0, 1)]) == (0, 1)
    assert [format_label(label) for label in (5, (3, 17), ())] == ["5", "3,17", "-"]
