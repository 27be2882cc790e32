"""scripts/data/reencode_videos.py: MP4 files with the frames and times of the originals."""

import os
import shutil
import signal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import (
    assert_one_line_error,
    find_smoke_yaml,
    read_result,
    start_script,
    wait_until,
)
from tests.numbered_videos import write_numbered_video
from utils.tests.video.videos import encode, stamp_frames
from utils.video.decoders import open_video


def build_arguments(root: Path, out: Path, *more) -> list:
    """A command that re-encodes, without its `python`."""
    settings = ["--config_path", find_smoke_yaml("tsm"), f"--data.root={root}"]
    return ["scripts/data/reencode_videos.py", *settings, "--out", out, *more]


@pytest.fixture
def reencode(run_here):
    """Re-encodes in this process."""
    return lambda *arguments: run_here(*build_arguments(*arguments))


@pytest.fixture(scope="module")
def copies(data_root, tmp_path_factory) -> Path:
    """The synthetic lists, at a quality that keeps all results."""
    out = tmp_path_factory.mktemp("copies")
    process = start_script(*build_arguments(data_root, out, "--quality", "1"))
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert '"videos": 32, "bad": 0' in output
    return out


def read_files(folder: Path) -> dict[str, bytes]:
    """Without those that a killed command was writing."""
    paths = [path for path in folder.rglob("[!.]*") if path.is_file() and ".tmp/" not in str(path)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_interrupted_command_continues_to_the_same_files(copies, data_root, reencode, tmp_path):
    options = ["--quality", "1", "--workers", "1"]
    process = start_script(*build_arguments(data_root, tmp_path, *options))
    wait_until(process, lambda: any((tmp_path / "videos").rglob("*.mp4")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "train.txt").exists(), "killed before its end"
    (early, *_) = (tmp_path / "videos").rglob("*.mp4")
    written = early.stat().st_mtime_ns
    assert read_result(reencode(data_root, tmp_path, *options))["videos"] == 32
    assert early.stat().st_mtime_ns == written
    assert read_files(tmp_path) == read_files(copies)


STEADY = range(31)
# Ticks of 1/3000 second; Matroska rounds two of them to the same millisecond.
VARIABLE = np.cumsum([0, *[100, 100, 500] * 3, 1, *[100, 100, 500] * 6])


def write_video(path: Path, ticks, width: int, height: int, rate=30, pix_fmt="yuv420p") -> None:
    """Pictures that become brighter; the container is that of the suffix."""
    steps = [np.full((height, width, 3), 8 * number, np.uint8) for number in range(len(ticks))]
    unit = 1 / Fraction(rate)
    encode(path, stamp_frames(steps, ticks, unit), pix_fmt=pix_fmt, rate=rate)


def write_lists(root: Path, names: list[str]) -> list[str]:
    """Settings for the lists of all videos of a folder."""
    for name in ("train.txt", "test.txt"):
        (root / name).write_bytes(os.fsencode("".join(f"{name} 0\n" for name in names)))
    return [f"--data.{name}_list={name}.txt" for name in ("train", "test")]


def test_copies_keep_numbers_times_and_sizes(reencode, tmp_path):
    """Several containers, rates and odd sides; a name that is not UTF-8."""
    videos = tmp_path / "videos"
    (videos / "in").mkdir(parents=True)
    write_video(videos / "a.avi", STEADY, 64, 48, rate=25)
    write_video(videos / "in" / "odd.mkv", STEADY, 65, 49, Fraction(30000, 1001), pix_fmt="yuv444p")
    write_video(videos / "large.mp4", STEADY, 160, 120, rate=24)
    write_video(videos / "variable.mkv", VARIABLE, 64, 48, rate=3000)
    shutil.copy(videos / "large.mp4", bytes(videos) + b"/\xff.mov")
    names = ["a.avi", "in/odd.mkv", "large.mp4", "variable.mkv", "\udcff.mov"]
    out = tmp_path / "out"
    lists = write_lists(videos, names)
    command = [videos, out, *lists, "--short_side", "60", "--quality", "1"]
    result = read_result(reencode(*command))
    assert (result["videos"], result["bad"]) == (5, 0)
    assert (out / "train.txt.bad.tsv").read_bytes() == b""
    for name in names:
        copied = name if name == "large.mp4" else f"{name}.mp4"
        with open_video(out / copied) as copy, open_video(videos / name) as video:
            assert len(copy) == len(video)
            if video.times is None:
                assert (copy.fps, copy.times) == (pytest.approx(video.fps, rel=1e-4), None)
            else:  # MP4 has no end of the last picture
                np.testing.assert_allclose(copy.times[:-1], video.times[:-1], atol=2e-3)
            frames = video.frames([0, 20])
            side = (60, 80) if frames.shape[1] == 120 else frames.shape[1:3]
            assert copy.frames([0, 20]).shape[1:3] == side
            assert abs(copy.frames([20]).mean() - frames[1].mean()) < 2
    assert read_result(reencode(*command))["bytes"] == result["bytes"]


def test_files_of_others_and_of_other_settings_stay(reencode, tmp_path):
    videos = tmp_path / "videos"
    videos.mkdir()
    write_numbered_video(videos / "a.mp4", frames=5, width=64, height=48, rate=25)
    out = tmp_path / "out"
    lists = write_lists(videos, ["a.mp4"])
    read_result(reencode(videos, out, *lists))
    before = read_files(out)
    done = reencode(videos, out, *lists, "--quality", "20")
    assert_one_line_error(done, "a.mp4 is of other settings")
    assert_one_line_error(reencode(videos, videos, *lists), "--out", str(videos))
    assert before.items() <= read_files(out).items()
    shutil.copy(videos / "a.mp4", videos / "b.avi.mp4")
    shutil.copy(videos / "a.mp4", videos / "b.avi")
    write_lists(videos, ["b.avi", "b.avi.mp4"])
    before = read_files(tmp_path)
    assert_one_line_error(reencode(videos, tmp_path / "new", *lists), "would both become")
    assert before == read_files(tmp_path)
