"""Lists of a user's videos in class folders; plot_training.py."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scripts.analysis import plot_training
from scripts.data.prepare.class_folders import scan_class_folders, split_classes, split_sources
from tests.helpers import assert_one_line_error, read_result

PLOT = "scripts/analysis/plot_training.py"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two classes of ten and five different videos, one text file, one hidden folder."""
    for name, count in (("run far", 10), ("jump", 5)):
        (tmp_path / name / "more").mkdir(parents=True)
        for k in range(count):
            subfolder = "more" if k % 2 else "."
            (tmp_path / name / subfolder / f"{k} ü.mp4").write_text(f"{name} {k}")
    (tmp_path / "jump" / "notes.txt").write_text("no video")
    (tmp_path / ".cache").mkdir()
    return tmp_path


@pytest.fixture
def make_lists(run_here):
    script = "scripts/data/make_lists.py"
    return lambda folder, out, *more: run_here(script, "--videos", folder, "--out", out, *more)


def test_every_class_is_split_without_overlap(folder, make_lists, tmp_path):
    out = tmp_path / ".cache" / "lists"
    result = read_result(make_lists(folder, out))
    assert (result["classes"], result["train"], result["test"]) == (2, 12, 3)
    assert (result["others"], result["twins"]) == (1, 0)
    assert (out / "labels.txt").read_text() == "jump\nrun far\n"
    train, test = ((out / f"{name}.txt").read_text().splitlines() for name in ("train", "test"))
    assert [line[-1] for line in test] == ["0", "1", "1"]
    assert all((folder / line.rsplit(" ", 1)[0]).is_file() for line in train + test)
    assert not set(train) & set(test)
    assert result["lists"] == [f"{out}/train.txt", f"{out}/test.txt"]


def test_a_line_counts_what_is_no_video_of_a_class(folder, make_lists, tmp_path):
    """Files of macOS, Windows and Jupyter, equal files, folders without a video.

    The only video of a class is for training.
    """
    (folder / "alone").mkdir()
    (folder / "alone" / "a.mp4").write_text("alone")
    out = tmp_path / ".cache" / "lists"
    for name in ("__MACOSX", "jump/.ipynb_checkpoints", "jump/@eaDir", "empty"):
        (folder / name / "in").mkdir(parents=True)
        (folder / name / "in" / ("x.MP4" if name != "empty" else "x.heic")).write_text(name)
    (folder / "jump" / "._0.mp4").write_text("x")
    (folder / "run far" / "old.mp4").write_text("run far 0")
    (folder / "run far" / "wrong.mp4").write_text("jump 0")
    (folder / "run far" / "link.mp4").symlink_to(folder / "run far" / "0 ü.mp4")
    found = scan_class_folders(folder)
    listed = sum(split_classes(found, {"test": 0.2}, 0).values(), [])
    names = [line.rsplit(" ", 1)[0] for line in listed]
    assert all(sum(name in twins for name in names) == 1 for twins in found.twins)
    done = make_lists(folder, out)
    result = read_result(done)
    counts = {"classes": 3, "train": 13, "test": 3, "others": 2, "system": 5, "twins": 2}
    assert result.items() >= counts.items()
    assert "alone/a.mp4 0\n" in (out / "train.txt").read_text()
    for words in ("2 groups of equal files", "empty/in/x.heic, jump/notes.txt", "covers: alone"):
        assert words in done.stderr


def read_lists(out: Path, *names: str) -> list[list[str]]:
    return [(out / name).read_text().splitlines() for name in names]


def test_a_validation_list_is_apart_from_the_test_list(folder, make_lists, tmp_path):
    """The test list is that without a validation list."""
    out = tmp_path / ".cache" / "lists"
    read_result(make_lists(folder, out))
    (plain,) = read_lists(out, "test.txt")
    result = read_result(make_lists(folder, out, "--val", "0.2", "--overwrite"))
    assert (result["train"], result["val"], result["test"]) == (9, 3, 3)
    train, val, test = read_lists(out, "train.txt", "val.txt", "test.txt")
    assert test == plain
    assert len({*train, *val, *test}) == 15
    assert [line[-1] for line in val] == ["0", "1", "1"]
    read_result(make_lists(folder, out, "--names", "csv"))
    assert read_lists(out, "val.csv", "test.csv") == [test, test]


@pytest.fixture
def films(tmp_path) -> Path:
    """Three classes of videos from films of very different lengths; one film has two classes."""
    sizes = {"dive": [12, 6, 3, 2, 2, 1], "jump": [5, 5, 5, 5, 5], "run": [9, 1]}
    for name, counts in sizes.items():
        (tmp_path / name).mkdir()
        for film, count in enumerate(counts):
            source = f"{name}{film}" if film else "shared" * (name != "run") or "run0"
            for k in range(count):
                (tmp_path / name / f"v_{source}_{k}.mp4").write_text(f"{name} {film} {k}")
    return tmp_path


def test_videos_of_one_source_are_in_one_list(films, make_lists, tmp_path):
    out = tmp_path / ".lists"
    command = [films, out, "--val", "0.2", "--group", r"v_(\w+)_\d+"]
    result = read_result(make_lists(*command))
    assert result["sources"] == 12
    assert result["train"] + result["val"] + result["test"] == 61
    lists = read_lists(out, "train.txt", "val.txt", "test.txt")
    sources = [{line.split("v_")[1].rpartition("_")[0] for line in lines} for lines in lists]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 12
    train, val, test = (np.bincount([int(line[-1]) for line in lines]) for lines in lists)
    assert train.min() > 0
    assert test.min() > 0, "every class is tested: even that of 9 and 1 videos"
    np.testing.assert_allclose(val[:2] / (26, 25), 0.2, atol=0.08)
    np.testing.assert_allclose(test[:2] / (26, 25), 0.2, atol=0.08)
    read_result(make_lists(*command))
    assert read_lists(out, "train.txt", "val.txt", "test.txt") == lists


def test_of_ten_sources_or_more_two_validate():
    labels = {f"{label}/{source}": label for label in range(6) for source in range(10)}
    sources = {video: video.split("/")[1] for video in labels}
    parts = split_sources(labels, sources, {"test": 0.2, "val": 0.1}, seed=0)
    assert Counter(parts.values()) == {"train": 6, "test": 2, "val": 2}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("v_(", "--group: v_("), (r"v_(jump\d)", "41 of 61 files"), ("(v)_", "one source, v")],
)
def test_a_pattern_without_sources_is_one_line(pattern, message, films, make_lists, tmp_path):
    assert_one_line_error(make_lists(films, tmp_path / ".lists", "--group", pattern), message)
    assert not (tmp_path / ".lists").exists()


def test_images_are_linked_into_a_folder_of_each_list(folder, make_lists, tmp_path):
    """Every list has all classes, so the labels are the same in all lists."""
    for name in ("run far", "jump"):
        (folder / name / "a.PNG").write_text(f"{name} a")
        (folder / name / "more" / "b.jpg").write_text(f"{name} b")
    (folder / "alone").mkdir()
    (folder / "alone" / "c.jpeg").write_text("c")
    out = tmp_path / ".cache" / "lists"
    result = read_result(make_lists(folder, out, "--names", "images"))
    assert (result["classes"], result["train"], result["test"]) == (3, 3, 2)
    assert result["lists"] == [f"{out}/train", f"{out}/test"]
    links = [sorted(path.name for path in (out / name).rglob("*.*")) for name in ("train", "test")]
    assert sorted(sum(links, [])) == ["a.PNG", "a.PNG", "c.jpeg", "more_b.jpg", "more_b.jpg"]
    assert all(path.read_text() for path in out.rglob("*.*"))
    assert sorted(path.name for path in (out / "test").iterdir()) == ["alone", "jump", "run far"]


def test_plot_training_draws_the_curves_of_runs(run_here, tmp_path):
    """Two runs that were killed and resumed, with a test, are drawn in both formats."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lines = [
            {"epoch": e, "step": 2 * e, "loss": 1 / e, "top1": 0.1 * e, "lr": 0.1, "waiting": 0.0}
            for e in (1, 2, 3, 2, 3)
        ]
        lines.insert(3, {"epoch": 3, "top1": 0.5, "videos": 8})
        lines.append({"traced_steps": [1, 2]})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "log.jsonl").write_text(text + '{"epoch": 4, "lo')
    runs = [tmp_path / "one", tmp_path / "two"]
    result = read_result(run_here(PLOT, *runs))
    assert result["file"] == str(runs[0] / "curves.png")
    assert result["last"][str(runs[1])]["epoch"] == 3
    lines = plot_training.read_log(runs[0])
    assert [line.get("step") for line in lines] == [2, 4, 6, None]
    assert (runs[0] / "curves.png").read_bytes()[:4] == b"\x89PNG"
