"""Lists with segments of long videos: equal to lists of videos that were cut before."""

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import find_smoke_yaml, read_result
from tests.numbered_videos import write_numbered_video
from tests.test_frame_folders import LISTS, SETTINGS, build_rows
from utils.tests.video.videos import copy_packets

RATE = 20  # as in the settings of test_frame_folders
PART = 30  # frames
NETWORKS = list(LISTS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A video of three parts with lists of its segments, and the same parts as videos."""
    root = tmp_path_factory.mktemp("videos")
    for name in ("segments", "parts"):
        (root / name / "lists").mkdir(parents=True)
    long = root / "segments/long.mp4"
    groups = {"g": str(PART), "bf": "0", "x264-params": "scenecut=0"}
    write_numbered_video(long, frames=3 * PART, width=96, height=64, rate=RATE, **groups)
    for k in range(3):
        inside = range(k * PART, (k + 1) * PART)
        copy_packets(long, root / f"parts/{k}.mp4", lambda n, _, inside=inside: n in inside)
    seconds = PART / RATE
    lines = [f"long.mp4 {k * seconds} {(k + 1) * seconds} {k}\n" for k in range(3)]
    write_lists(root / "segments", lines)
    write_lists(root / "parts", [f"{k}.mp4 {k}\n" for k in range(3)])
    return root


def write_lists(root: Path, lines: list[str]) -> None:
    (root / "lists").mkdir(parents=True, exist_ok=True)
    (root / "labels.txt").write_text("".join(f"class {k}\n" for k in range(8)))
    for name in {name for names in LISTS.values() for name in names}:
        (root / name).write_text("".join(lines))


def assert_equal_rows(rows: tuple, expected: tuple) -> None:
    for own, others, count in zip(rows, expected, (6, 3)):
        for index in range(count):
            for value, other in zip(own[index], others[index]):
                np.testing.assert_array_equal(value, other)
        assert not own.unreadable.count


def run(run_here, script: str, network: str, out: Path, *settings: str, more=()) -> dict:
    arguments = ["--config_path", find_smoke_yaml(network), "--out", out]
    settings = [f"--{setting}" for setting in (*SETTINGS[network], *settings)]
    return read_result(run_here(f"scripts/data/{script}.py", *arguments, *settings, *more))


@pytest.mark.parametrize("network", NETWORKS)
def test_rows_of_segments_equal_rows_of_cut_videos(network, folders):
    rows = build_rows(network, f"data.root={folders / 'segments'}")
    assert_equal_rows(rows, build_rows(network, f"data.root={folders / 'parts'}"))


@pytest.mark.parametrize("network", ["x3d", "mvit_multi"])
def test_copies_of_segments_hold_only_their_part(network, folders, run_here, tmp_path):
    results = []
    for name in ("segments", "parts"):
        settings = f"data.root={folders / name}"
        result = run(run_here, "reencode_videos", network, tmp_path / name, settings)
        assert (result["videos"], result["bad"]) == (3, 0)
        results.append((result, build_rows(network, f"data.root={tmp_path / name}")))
    (segments, rows), (parts, expected) = results
    first = (tmp_path / "segments" / LISTS[network][0]).read_text().splitlines()[1]
    assert first == "long.mp4_1.5_3.mp4 1"
    assert segments["original_bytes"] == (folders / "segments/long.mp4").stat().st_size
    assert_equal_rows(rows, expected)


@pytest.mark.parametrize("network", ["tsm", "mvit_multi"])
def test_segments_of_folders_of_frames(network, folders, run_here, tmp_path):
    """Folders of the whole video, with a list of segments; and folders of the segments."""
    expected = build_rows(network, f"data.root={folders / 'parts'}")
    lossless = "data.image_tmpl=img_{:05d}.png"
    cut = tmp_path / "cut"
    settings = [f"data.root={folders / 'segments'}", lossless]
    result = run(run_here, "extract_frames", network, cut, *settings, more=["--short_side", "0"])
    assert (result["videos"], result["frames"]) == (3, 3 * PART)
    assert (cut / LISTS[network][0]).read_text().splitlines()[1] == "long.mp4_1.5_3 30 1"
    folder_settings = ["data.source=frames", lossless, f"data.folder_fps={RATE}"]
    assert_equal_rows(build_rows(network, f"data.root={cut}", *folder_settings), expected)
    whole = tmp_path / "whole"
    parts = sorted(cut.glob("long.mp4_*"))
    frames = [frame for part in parts for frame in sorted(part.glob("*.png"))]
    (whole / "long.mp4").mkdir(parents=True)
    for number, frame in enumerate(frames, 1):
        frame.rename(whole / f"long.mp4/img_{number:05d}.png")
    write_lists(whole, (folders / "segments" / LISTS[network][0]).read_text().splitlines(True))
    settings = [f"data.root={whole}", *folder_settings]
    assert_equal_rows(build_rows(network, *settings), expected)
    scan = run(run_here, "check_videos", network, tmp_path / "good", *settings)
    assert (scan["good"], scan["bad"]) == (6, 0)


@pytest.mark.parametrize("depth", ["all", "ends"])
def test_a_scan_tells_segments_of_one_video_apart(depth, folders, run_here, tmp_path):
    root = tmp_path / "data"
    good = ["long.mp4,0,1.5,0\n", "long.mp4,4,9,1\n"]
    write_lists(root, [good[0], "long.mp4,4.5,9,1\n", good[1], "long.mp4 0\n", "none.mp4,0,1,1\n"])
    (root / "long.mp4").symlink_to(folders / "segments/long.mp4")
    options = ["--frames", depth]
    settings = f"data.root={root}"
    result = run(run_here, "check_videos", "x3d", tmp_path / "out", settings, more=options)
    assert result["kinds"] == {"broken": 2, "bad line": 2, "missing": 2}
    assert (tmp_path / "out/train.txt").read_text() == "".join(good)
    rows = (tmp_path / "out/train.txt.bad.tsv").read_text().splitlines()
    assert rows[0].startswith(f"2\tbroken\t{root}/long.mp4 4.5 9\tno frame from 4.5 to 9 sec")
    checked = run(run_here, "check_videos", "x3d", tmp_path / "out", settings, more=options)
    assert checked["read"] == 0
    copied = run(run_here, "reencode_videos", "x3d", tmp_path / "copies", settings)
    assert (copied["videos"], copied["bad"]) == (2, 2)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_report_names_segments_and_a_segment_after_the_end(
    network, folders, tmp_path, log_messages
):
    root = tmp_path / "data"
    write_lists(root, ["long.mp4 0 1.5 2\n", "long.mp4 4.5 9 1\n", "long.mp4 4 9 0\n"])
    (root / "long.mp4").symlink_to(folders / "segments/long.mp4")
    training, evaluation = build_rows(network, f"data.root={root}")
    assert evaluation.records.list_names() == ["long.mp4 0 1.5", "long.mp4 4.5 9", "long.mp4 4 9"]
    assert [bool(evaluation[k][2]) for k in range(3)] == [True, False, True]
    assert any("long.mp4" in m and "from 4.5 to 9 seconds" in m for m in log_messages)
    assert len([training[k] for k in range(3)]) == 3  # the unreadable one is replaced
    assert training.unreadable.count == 1
