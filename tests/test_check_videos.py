"""scripts/data/check_videos.py: lists, tables, resuming; tests/test_bad_videos.py has the kinds."""

import os
import signal
from pathlib import Path

import pytest

from scripts.data.check_videos import describe_repeats
from scripts.executors.process_pool import CrashError, run_all
from scripts.executors.tests.pool_jobs import FATAL, crash_or_square
from tests.helpers import find_smoke_yaml, read_result, start_script, wait_until
from tests.numbered_videos import write_numbered_video
from tests.test_bad_videos import damage_video, write_files_of_every_kind
from utils.data.annotation_file import Record
from utils.tests.video.videos import pictures, write
from utils.video.reader import Segment

COMMAND = "scripts/data/check_videos.py"


@pytest.fixture(scope="module")
def intact_video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("videos") / "intact.mp4"
    write_numbered_video(path, frames=40, width=64, height=64, rate=25)
    return path


def build_arguments(folder: Path, out: Path) -> list:
    yaml = find_smoke_yaml("x3d")
    lists = ["--data.train_list=train.txt", "--data.test_list=test.txt", "--model.num_classes=8"]
    return [COMMAND, f"--config_path={yaml}", f"--out={out}", f"--data.root={folder}", *lists]


def test_the_command_writes_lists_of_good_and_bad_videos(run_here, tmp_path):
    folder = tmp_path / "data"
    out = tmp_path / "out"
    folder.mkdir()
    kinds = write_files_of_every_kind(folder)
    lines = [f"{name} {i % 3}\n" for i, name in enumerate(kinds)]
    (folder / "train.txt").write_bytes(os.fsencode("".join(lines) + "good.mp4 99\n"))
    (folder / "test.txt").write_text("good.mp4 0\ncut.mp4 1\n")
    result = read_result(run_here(*build_arguments(folder, out)))
    good = [name for name, kind in kinds.items() if kind == "good"]
    lines = os.fsdecode((out / "train.txt").read_bytes()).splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == good
    rows = [row.split("\t") for row in (out / "train.txt.bad.tsv").read_text().splitlines()]
    bad = {name: kind for name, kind in kinds.items() if kind != "good"}
    assert {Path(row[2]).name: row[1] for row in rows[:-1]} == bad
    assert rows[-1][1] == "bad line"
    assert "99" in rows[-1][3]
    assert result["videos"] == len(kinds) + 3
    assert result["good"] == len(good) + 1
    assert result["bad"] == sum(result["kinds"].values()) == result["videos"] - result["good"]
    again = read_result(run_here(*build_arguments(folder, out)))
    assert again["read"] == 0
    assert {**again, "read": 0, "seconds": 0} == {**result, "read": 0, "seconds": 0}


@pytest.fixture
def copies(tmp_path) -> Path:
    """Files a to d of equal size; copy.mp4 and links of a."""
    for name in "abcd":
        (tmp_path / f"{name}.mp4").write_text(name)
    (tmp_path / "copy.mp4").write_text("a")
    os.link(tmp_path / "a.mp4", tmp_path / "hard.mp4")
    (tmp_path / "soft.mp4").symlink_to(tmp_path / "a.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "empty2.mp4").touch()
    return tmp_path


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
        ("a:0:0 a:1:2 b:1", "a:0:4 copy:1:2", ["train and validation have the same samples (1)"]),
        ("empty:0 b:1", "empty2:0 d:1", []),
    ],
)
def test_a_line_says_which_samples_are_repeated(train, validation, lines, copies):
    lists = {"train": build_records(copies, train), "validation": build_records(copies, validation)}
    result = describe_repeats(lists)
    assert [line.partition(", for example")[0] for line in result] == lines


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
    wait_until(process, lambda: journal.is_file() and journal.read_text().count("\n") >= 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "train.txt").exists()
    lines = journal.read_text().splitlines(keepends=True)
    count = sum(line.strip() != "" and line.endswith("\n") for line in lines)
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
