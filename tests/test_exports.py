"""Lists made from exports of annotation tools."""

import json
from pathlib import Path

import pytest

from scripts.data.prepare.exports import Row, find_segment, find_video, read_exports
from tests.helpers import assert_one_line_error, read_result
from tests.numbered_videos import write_numbered_video
from tests.test_official_lists import CASES as OFFICIAL
from tests.test_official_lists import write_files
from utils.data.annotation_file import AnnotationFile, read_annotations
from utils.tests.video.test_file_kinds import UNSTEADY
from utils.tests.video.videos import pictures, write

RATE = 20  # of the videos; they have 40 frames
CVAT = """<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version>
  <meta><task><id>5</id><name>walks</name><size>40</size><mode>interpolation</mode>
      <frame_filter></frame_filter>
      <segments><segment><id>7</id><start>0</start><stop>24</stop></segment>
        <segment><id>8</id><start>20</start><stop>39</stop></segment></segments></task>
    <dumped>2024-03-01 10:00:00+00:00</dumped><source>a.mp4</source></meta>
  <track id="0" label="person" source="manual">{}</track></annotations>"""
BOX = """<box frame="{}" outside="{}" occluded="0" keyframe="0" xtl="1.0" ytl="2.0" xbr="9.0"
 ybr="9.0" z_order="0"><attribute name="action">{}</attribute></box>"""
# Frames 2 to 19 and 30 to 39: walk; 20 to 23: sit.
BOXES = [BOX.format(k, int(24 <= k < 30), "sit" if 20 <= k < 24 else "walk") for k in range(2, 40)]
SKELETON = """<skeleton frame="{}" keyframe="0" z_order="0"><points label="1" keyframe="0"
 outside="{}" occluded="0" points="3.0,4.0"></points></skeleton>"""
TAGS = """<annotations><version>1.1</version>
  <meta><job><id>9</id><frame_filter>step=5</frame_filter></job><source>b.mp4</source></meta>
  {}</annotations>"""
TAG = """<image id="{0}" name="frame_{0:06d}" width="96" height="64"><tag label="person"
 source="manual"><attribute name="action">walk</attribute></tag></image>"""
ELAN = """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" FORMAT="3.0" VERSION="3.0">
  <HEADER MEDIA_FILE="" TIME_UNITS="milliseconds">
    <MEDIA_DESCRIPTOR MEDIA_URL="file:///C:/talks/{0}.wav" MIME_TYPE="audio/x-wav"/>
    <MEDIA_DESCRIPTOR MEDIA_URL="file:///C:/talks/{0}.mp4" MIME_TYPE="video/mp4"
     RELATIVE_MEDIA_URL="./{0}.mp4" TIME_ORIGIN="100"/></HEADER>
  <TIME_ORDER><TIME_SLOT TIME_SLOT_ID="ts1" TIME_VALUE="200"/>
    <TIME_SLOT TIME_SLOT_ID="ts2" TIME_VALUE="700"/><TIME_SLOT TIME_SLOT_ID="ts3"/></TIME_ORDER>
  <TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="hands"><ANNOTATION><ALIGNABLE_ANNOTATION
     ANNOTATION_ID="a1" TIME_SLOT_REF1="ts1" TIME_SLOT_REF2="ts2">
     <ANNOTATION_VALUE>{1}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER>
  <TIER LINGUISTIC_TYPE_REF="default-lt" TIER_ID="words"/></ANNOTATION_DOCUMENT>"""
FIRST = "/data/upload/1/1a2b3c4d-a.mp4"
SECOND = "/data/local-files/?d=clips/b.mp4"


def make_task(video: str, *results: tuple) -> dict:
    """A task of Label Studio; results are (control, type, value)."""
    keys = ("from_name", "type", "value")
    result = [{"id": "x", "to_name": "video", **dict(zip(keys, values))} for values in results]
    others = [{"result": [], "was_cancelled": True}]
    return {"id": 1, "data": {"video": video}, "annotations": [*others, {"result": result}]}


def make_range(start: int, end: int, label: str) -> tuple:
    value = {"ranges": [{"start": start, "end": end}], "timelinelabels": [label]}
    return "actions", "timelinelabels", value


def make_boxes(label: str, *keys: tuple) -> tuple:
    sequence = [{"frame": k, "enabled": enabled, "time": k / RATE} for k, enabled in keys]
    value = {"framesCount": 40, "duration": 2, "sequence": sequence, "labels": [label]}
    return "boxes", "videorectangle", value


def make_via(*entries: tuple) -> str:
    """A VIA project; entries are (number of the video, z, av)."""
    metadata = {
        f"{video}_{k}": {"vid": video, "flg": 0, "z": z, "xy": [], "av": av}
        for k, (video, z, av) in enumerate(entries)
    }
    metadata["1_file"] = {"vid": "1", "flg": 0, "z": [], "xy": [], "av": {}}
    metadata["1_box"] = {"vid": "1", "flg": 0, "z": [0.5], "xy": [2, 1, 1, 5, 5], "av": {"2": "x"}}
    options = {"0": "walk", "1": "sit"}
    files = {
        number: {"fid": number, "fname": name, "type": 4, "loc": 1, "src": ""}
        for number, name in (("1", "a.mp4"), ("2", "clips/b.mp4"))
    }
    project = {
        "project": {"pname": "acts", "data_format_version": "3.1.1"},
        "attribute": {
            "1": {"aname": "act", "anchor_id": "FILE1_Z2_XY0", "type": 4, "options": options},
            "2": {"aname": "note", "anchor_id": "FILE1_Z0_XY0", "type": 1, "options": {}},
        },
        "file": files,
        "view": {number: {"fid_list": [number]} for number in files},
        "metadata": metadata,
    }
    return json.dumps(project)


RANGES = [make_range(1, 10, "walk"), make_range(11, 15, "sit")]
LABEL_STUDIO = [make_task(FIRST, *RANGES), make_task(SECOND, make_range(3, 8, "walk"))]
SHAPES = [make_boxes("walk", (1, True), (10, False), (21, True)), make_boxes("sit", (5, True))]
CHOICES = [
    make_task(video, ("kind", "choices", {"choices": [label]}))
    for video, label in ((FIRST, "sit"), (SECOND, "walk"))
]
MIN = [
    {"video": FIRST, "id": 1, "annotator": 1, "created_at": "2024", "choice": "sit"},
    {"video": SECOND, "id": 2, "annotator": 1, "created_at": "2024", "choice": "walk"},
]
VIA = make_via(("1", [0.25, 1.5], {"1": "0"}), ("2", [0, 1], {"1": "1"}))
# Files, (tier, fps), lines of all lists
CASES = {
    "cvat": (
        {
            "one/annotations.xml": CVAT.format("".join(BOXES)),
            "two/annotations.xml": TAGS.format("".join(TAG.format(k) for k in (0, 5, 20))),
        },
        ("action", 0),
        [
            "clips/b.mp4 0 0.5 walk",
            "clips/b.mp4 1 1.25 walk",
            "deep/a.mp4 0.1 1 walk",
            "deep/a.mp4 1 1.2 sit",
            "deep/a.mp4 1.5 2 walk",
        ],
    ),
    "cvat, skeletons": (
        {
            "a.xml": CVAT.format("".join(SKELETON.format(k, int(k > 9)) for k in range(20))),
            "b.xml": CVAT.replace("person", "dog").format(SKELETON.format(30, 0)),
        },
        ("", 0),
        ["deep/a.mp4 0 0.5 person", "deep/a.mp4 1.5 1.55 dog"],
    ),
    "elan": (
        {"a.eaf": ELAN.format("a", "walk"), "b.eaf": ELAN.format("b", "sit")},
        ("", 0),
        ["clips/b.mp4 0.3 0.8 sit", "deep/a.mp4 0.3 0.8 walk"],
    ),
    "label studio, ranges": (
        {"project.json": json.dumps(LABEL_STUDIO)},
        ("", 10),
        ["clips/b.mp4 0.2 0.8 walk", "deep/a.mp4 0 1 walk", "deep/a.mp4 1 1.5 sit"],
    ),
    "label studio, boxes": (
        {"project.json": json.dumps([make_task(n, s) for n, s in zip((FIRST, SECOND), SHAPES)])},
        ("", 0),
        ["clips/b.mp4 0.2 2 sit", "deep/a.mp4 0 0.5 walk", "deep/a.mp4 1 2 walk"],
    ),
    "label studio, choices": (
        {"project.json": json.dumps(CHOICES)},
        ("", 0),
        ["clips/b.mp4 walk", "deep/a.mp4 sit"],
    ),
    "label studio, json-min": (
        {"min.json": json.dumps(MIN)},
        ("", 0),
        ["clips/b.mp4 walk", "deep/a.mp4 sit"],
    ),
    "via, segments": (
        {"via.json": VIA},
        ("", 0),
        ["clips/b.mp4 0 1 sit", "deep/a.mp4 0.25 1.5 walk"],
    ),
    "via, files": (
        {"via.json": make_via(("1", [], {"2": "walk"}), ("2", [], {"2": "sit"}))},
        ("", 0),
        ["clips/b.mp4 sit", "deep/a.mp4 walk"],
    ),
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for name in ("deep/a.mp4", "clips/b.mp4"):
        (root / name).parent.mkdir()
        write_numbered_video(root / name, frames=40, width=96, height=64, rate=RATE)
    (root / "deep/a\u200b.mp4").touch()
    return root


@pytest.fixture
def make_lists(run_here, videos, tmp_path):
    def run(files: dict, *options):
        write_files(tmp_path / "exports", files)
        arguments = ["--annotations", tmp_path / "exports", "--videos", videos]
        return run_here("scripts/data/make_lists.py", *arguments, "--out", tmp_path, *options)

    return run


@pytest.mark.parametrize("name", CASES)
def test_labels_of_an_export_become_lines(name, videos, tmp_path):
    files, options, expected = CASES[name]
    write_files(tmp_path, files)
    folders, sources = read_exports(tmp_path, videos, *options)
    lines = [f"{line} {label}" for label, lines in folders.classes.items() for line in lines]
    assert sorted(lines) == expected
    assert sources == {line.rpartition(" ")[0]: line.split()[0] for line in expected}


@pytest.mark.parametrize("group", [[], ["--group", r"(\w)\.mp4$"]])
def test_lists_of_an_export_share_no_video(group, make_lists, videos, tmp_path):
    done = make_lists(CASES["cvat"][0], "--tier", "action", *group)
    result = read_result(done)
    assert "sit; add videos\n" in done.stderr
    assert (result["classes"], result["train"] + result["test"], result["sources"]) == (2, 5, 2)
    assert (tmp_path / "labels.txt").read_text() == "sit\nwalk\n"
    paths = []
    for name in ("train.txt", "test.txt"):
        file = AnnotationFile(name, tmp_path / name, root=videos, source="video", num_classes=2)
        paths.append({record.path for record in read_annotations(file)[0]})
    assert [len(names) for names in paths] == [1, 1]
    assert not paths[0] & paths[1]


@pytest.mark.parametrize(
    ("files", "options", "word"),
    [
        ({}, [], "--annotations"),
        (OFFICIAL["kinetics"][0], [], "--dataset"),
        (OFFICIAL["sthv2"][0], [], "--dataset"),
        (OFFICIAL["diving48"][0], [], "--dataset"),
        ({"a.xml": "<annotations>"}, [], "a.xml"),
        ({"a.json": json.dumps([{**MIN[0], "choice": 3}])}, [], "no label"),
        (CASES["cvat"][0], [], "--tier"),
        (CASES["cvat"][0], ["--tier", "actoin"], "action"),
        (CASES["elan"][0], ["--split", "1"], "--dataset"),
        (CASES["elan"][0], ["--names", "images"], "--names"),
        ({"a.eaf": ELAN.format("a", " ")}, [], "deep/a.mp4 0.3 0.8"),
        ({"a.eaf": ELAN.format("a", "x").replace('REF1="ts1"', 'REF1="ts3"')}, [], "no time span"),
        ({"a.eaf": ELAN.format("gone", "x")}, [], "gone.mp4"),
        ({"a.eaf": ELAN.format("a\u200b", "x")}, [], r"--videos: 'deep/a\u200b.mp4'"),
        ({"a.eaf": ELAN.format("a", "x").replace(".mp4", ".wav")}, [], "no video"),
        ({"a.eaf": ELAN.format("a", "x")}, [], "all labels are x"),
        (CASES["elan"][0], [], "--test"),
        (CASES["label studio, ranges"][0], [], "--fps"),
        ({"a.json": json.dumps([*CHOICES, *LABEL_STUDIO])}, ["--fps", "9"], "actions, kind"),
        ({"a.json": make_via(("1", [0, 1], {}))}, [], "a.mp4, 0 1 has"),
        ({"a.json": make_via(("1", [0.5], {"1": "0"}))}, [], "no time span"),
        ({"a.json": make_via(("1", [], {"1": "0"}), ("1", [], {"1": "1"}))}, [], "walk and sit"),
        ({"a.json": make_via(("1", [], {"1": "0"}), ("1", [0, 1], {"1": "1"}))}, [], "whole"),
        ({"a.json": '{"metadata": 1}'}, [], "a.json"),
    ],
)
def test_what_an_export_lacks_is_one_line(files, options, word, make_lists, tmp_path):
    assert_one_line_error(make_lists(files, *options), word)
    assert not (tmp_path / "train.txt").exists()


def test_two_videos_of_one_name_are_told_apart_by_their_folders():
    videos = {"b": ["clips/b.mp4", "other/b.mp4"], "my-b": ["my-b.mp4"]}
    assert find_video(SECOND, videos, Path("root")) == "clips/b.mp4"
    for name, count in (("b.mp4", 2), ("my-1a2b3c4d-b.mp4", 0)):
        with pytest.raises(ValueError, match=f"^--videos: root has {count} videos {name}"):
            find_video(name, videos, Path("root"))


def test_a_track_has_its_frames_at_a_rate_that_is_not_steady(tmp_path):
    path = write(tmp_path / "a.flv", pictures(), stamps=UNSTEADY)
    row = Row("label", "a.flv", "walk", (5, 10), in_frames=True)
    assert find_segment(row, path, 0) == (0.188, 0.388)
