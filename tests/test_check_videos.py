"""scripts/data/check_videos.py recognizes every kind of damage to an intact video."""

import os
import signal
import time
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from scripts.data.integrity import VideoJob, examine
from tests.helpers import find_smoke_yaml, read_result, start_script
from tests.numbered_videos import write_numbered_video
from utils.process_pool import CrashError, run_all
from utils.tests.pool_jobs import FATAL, crash_or_square
from utils.tests.video.test_hostile_files import damage_video
from utils.tests.video.test_odd_videos import pictures, write

COMMAND = "scripts/data/check_videos.py"
FRAMES = 40


@pytest.fixture(scope="module")
def intact_video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("videos") / "intact.mp4"
    write_numbered_video(path, FRAMES, 64, 64, 25)
    return path


def read_journal(path: Path) -> list[str]:
    """Returns the completely written lines."""
    lines = path.read_text().splitlines(keepends=True)
    return [line for line in lines if line.strip() and line.endswith("\n")]


def remux(source: Path, target: Path, **options) -> None:
    """Copies the packets to another container."""
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(old.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)


def write_without_packets(target: Path) -> None:
    """Writes a container whose video stream is empty."""
    with av.open(str(target), "w") as new:
        stream = new.add_stream("mjpeg", rate=25)
        stream.width = 64
        stream.height = 64
        stream.pix_fmt = "yuvj420p"
        new.start_encoding()


def write_damaged_files(intact: Path, folder: Path) -> dict[str, str]:
    """Writes a file of every kind, and returns {file: kind}."""
    data = intact.read_bytes()
    (folder / "good.mp4").write_bytes(data)
    (folder / "with space.mp4").write_bytes(data)
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "cut.mp4").write_bytes(data[: len(data) // 2])
    remux(intact, folder / "front.mp4", movflags="faststart")
    front = (folder / "front.mp4").read_bytes()
    (folder / "cut_front.mp4").write_bytes(front[: len(front) * 2 // 3])
    remux(intact, folder / "whole.mkv")
    write_numbered_video(folder / "whole.avi", FRAMES, 64, 64, 25, codec="mpeg4")
    for suffix in ("mkv", "avi"):
        whole = (folder / f"whole.{suffix}").read_bytes()
        (folder / f"cut.{suffix}").write_bytes(whole[: len(whole) // 2])
    write(folder / "whole.ts", pictures(FRAMES), bf="2", g="12")
    noise = np.random.RandomState(0).bytes(20_000)
    (folder / "noise.mp4").write_bytes(noise)
    middle = front.index(b"mdat") + 8
    spoilt = front[: middle + 400] + noise[: len(front) - middle - 400]
    (folder / "spoilt.mp4").write_bytes(spoilt)
    (folder / "text.mp4").write_text("no video\n")
    with wave.open(str(folder / "sound.mp4"), "wb") as song:
        song.setparams((1, 2, 8000, 8000, "NONE", ""))
        song.writeframes(noise[:16000])
    with av.open(str(folder / "song.mp4"), "w") as new:
        stream = new.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            new.mux(packet)
    write_without_packets(folder / "nothing.avi")
    Image.new("RGB", (64, 64)).save(folder / "picture.png")
    (folder / "picture.mp4").write_bytes((folder / "picture.png").read_bytes())
    (folder / "notes.txt").write_text("not a video\n" * 99)
    (folder / "video.txt").write_bytes(data)
    kinds = {
        "good": ["good.mp4", "with space.mp4", "front.mp4", "whole.mkv", "whole.avi", "whole.ts"],
        "empty": ["empty.mp4"],
        "truncated": ["cut.mp4", "cut_front.mp4", "cut.mkv", "cut.avi"],
        "broken": ["noise.mp4", "spoilt.mp4", "text.mp4"],
        "audio only": ["song.mp4", "sound.mp4"],
        "no frames": ["nothing.avi"],
        "wrong extension": ["picture.mp4", "notes.txt", "video.txt"],
        "missing": ["nowhere.mp4"],
    }
    return {name: kind for kind, names in kinds.items() for name in names}


@pytest.fixture(scope="module")
def damaged_files(tmp_path_factory, intact_video) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("damaged")
    kinds = write_damaged_files(intact_video, folder)
    lines = [f"{name} {i % 3}\n" for i, name in enumerate(kinds)]
    (folder / "train.txt").write_text("".join(lines) + "good.mp4 99\n")
    (folder / "test.txt").write_text("good.mp4 0\ncut.mp4 1\n")
    return folder, kinds


@pytest.mark.parametrize("reader", ["auto", "opencv"])
def test_every_kind_of_damage_is_recognized(damaged_files, reader):
    folder, kinds = damaged_files
    result = {name: examine(VideoJob(str(folder / name), reader)) for name in kinds}
    assert {name: finding.kind for name, finding in result.items()} == kinds
    assert result["good.mp4"].frames == FRAMES
    assert all(finding.reason for finding in result.values() if finding.kind != "good")


def test_a_check_of_both_ends_misses_only_damage_in_the_middle(damaged_files):
    folder, kinds = damaged_files
    result = {name: examine(VideoJob(str(folder / name), depth="ends")).kind for name in kinds}
    assert {name for name in kinds if result[name] != kinds[name]} <= {"spoilt.mp4"}


def build_arguments(folder: Path, out: Path, network: str = "x3d") -> list:
    yaml = find_smoke_yaml(network)
    lists = ["--data.train_list=train.txt", "--data.test_list=test.txt", "--model.num_classes=8"]
    return [COMMAND, f"--config_path={yaml}", f"--out={out}", f"--data.root={folder}", *lists]


@pytest.mark.parametrize("network", ["x3d", "tsm"])
def test_the_command_writes_lists_of_good_and_bad_videos(
    damaged_files, run_here, tmp_path, network
):
    folder, kinds = damaged_files
    result = read_result(run_here(*build_arguments(folder, tmp_path, network)))
    good = [name for name, kind in kinds.items() if kind == "good"]
    lines = (tmp_path / "train.txt").read_text().splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == good
    rows = [row.split("\t") for row in (tmp_path / "train.txt.bad.tsv").read_text().splitlines()]
    assert {Path(row[2]).name: row[1] for row in rows[:-1]} == {
        name: kind for name, kind in kinds.items() if kind != "good"
    }
    assert rows[-1][1] == "bad line"
    assert "99" in rows[-1][3]
    assert result["videos"] == len(kinds) + 3
    assert result["good"] == len(good) + 1
    assert result["bad"] == sum(result["kinds"].values()) == result["videos"] - result["good"]
    again = read_result(run_here(*build_arguments(folder, tmp_path, network)))
    assert again["read"] == 0
    assert {**again, "read": 0, "seconds": 0} == {**result, "read": 0, "seconds": 0}


def test_keep_damaged_keeps_damaged_videos_in_the_list(run_here, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("intact", "spoilt \x1b[2J"):
        write(folder / f"{name}.mp4", pictures(40, 160, 128), g="10")
    damage_video(folder / "spoilt \x1b[2J.mp4")
    (folder / "train.txt").write_text("intact.mp4 0\nspoilt \x1b[2J.mp4 1\n")
    (folder / "test.txt").write_text("intact.mp4 0\n")
    for options, lines in ((["--keep_damaged"], 2), ([], 1)):
        completed = run_here(*build_arguments(folder, tmp_path / "out"), *options)
        result = read_result(completed)
        assert (result["good"], result["kinds"]) == (2, {"damaged": 1})
        assert (tmp_path / "out" / "train.txt").read_text().count("\n") == lines
        assert "\tdamaged\t" in (tmp_path / "out" / "train.txt.bad.tsv").read_text()
        assert ("left out: " in completed.stderr) is (lines == 1)
        assert "\x1b[2J" not in completed.stderr
    assert r"spoilt \x1b[2J.mp4: damaged, the decoder marks" in completed.stderr


def test_a_killed_scan_resumes(intact_video, run_here, tmp_path):
    folder = tmp_path / "data"
    out = tmp_path / "out"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i}.mp4").write_bytes(intact_video.read_bytes())
    (folder / "train.txt").write_text("".join(f"{i}.mp4 0\n" for i in range(60)))
    (folder / "test.txt").write_text("0.mp4 0\n")
    journal = out / "train.txt.scan.jsonl"
    process = start_script(*build_arguments(folder, out), "--workers=1")
    deadline = time.monotonic() + 120
    while not journal.is_file() or journal.read_text().count("\n") < 5:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "train.txt").exists()
    count = len(read_journal(journal))
    with open(journal, "a") as file:  # a kill can leave an incomplete line, a fault of a disk any
        file.write("\n".join(["null", "5", '["a", 5]', '["a", ["good", "", 1, 2]]', '["cut']))
    result = read_result(run_here(*build_arguments(folder, out)))
    assert result["good"] == 61
    assert result["read"] == 60 - count + 1
    os.utime(folder / "3.mp4", (1, 1))  # a changed time means a changed file
    assert read_result(run_here(*build_arguments(folder, out)))["read"] == 1


def test_a_crashed_decoder_loses_one_video():
    """Two of 11 jobs kill their process."""
    results = list(run_all(crash_or_square, [*range(10), FATAL], 2))
    assert [job for job, result in results if isinstance(result, CrashError)] == [FATAL, FATAL]
    numbers = [result for _, result in results if isinstance(result, int)]
    assert sorted(numbers) == [number**2 for number in range(10) if number != FATAL]
