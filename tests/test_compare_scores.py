"""Scores of another program against ours: each form of file, the differences, different lists."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from scripts.analysis import score_files
from tests.helpers import assert_one_line_error
from tests.test_fuse_scores import PATHS, RAW, make_report
from utils.evaluate.label_report import write_label_report
from utils.evaluate.report_page import Samples
from utils.evaluate.several_labels import encode_label_sets

SOFTMAX = np.exp(RAW[0]) / np.exp(RAW[0]).sum(1, keepdims=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> str:
    """Of three videos that can be read and, the last, one that cannot."""
    return make_report(tmp_path_factory.mktemp("ours") / "report", RAW[0])


def write_scores(path: Path, scores: np.ndarray, names=tuple(PATHS)) -> Path:
    """Writes scores in the form that the suffix names; .npy and .npz without `names` have none."""
    if path.suffix == ".csv":
        rows = [",".join([name, *map(str, row)]) for name, row in zip(names, scores.tolist())]
        path.write_text("\n".join(["path,x,y,z", *rows]) + "\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(dict(zip(names, scores.tolist()))))
    elif path.suffix == ".npz":
        np.savez(path, scores=scores, **({"paths": np.array(names)} if names else {}))
    else:
        np.save(path, scores)
        if names:
            path.with_suffix(".txt").write_text("\n".join(names) + "\n")
    return path


def compare(run_here, *arguments):
    done = run_here("scripts/analysis/compare_scores.py", *arguments)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


FORMS = ["csv", "json", "npy", "npz", "npy without names", "npz without names"]


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_of_each_form_agree(form, report, run_here, tmp_path):
    suffix, _, is_unnamed = form.partition(" ")
    names = () if is_unnamed else tuple(PATHS)
    file = write_scores(tmp_path / f"a.{suffix}", SOFTMAX.astype(np.float32), names)
    status, result = compare(run_here, report, file, "--tolerance", "1e-6")
    assert (status, result["videos"], result["unreadable"]) == (0, 3, 1)
    assert (result["top1_agreement"], result["beyond"], result["first"]) == (1, 0, None)
    assert result["max_abs_difference"] < 1e-7


def test_the_first_and_the_worst_videos_beyond_the_tolerance_are_named(report, run_here, tmp_path):
    scores = SOFTMAX.copy()
    scores[1, 0] += 0.01
    scores[2] = np.roll(scores[2], 1)
    file = write_scores(tmp_path / "theirs.csv", scores)
    status, result = compare(run_here, report, file, "--worst", "2")
    differences = np.abs(scores - SOFTMAX)[:3]
    assert (status, result["beyond"], result["first"]["path"]) == (1, 2, PATHS[1])
    assert result["first"]["difference"] == pytest.approx(0.01, abs=1e-5)
    assert [entry["path"] for entry in result["worst"]] == [PATHS[2], PATHS[1]]
    worst = result["worst"][0]
    assert (worst["ours"], worst["theirs"]) == (SOFTMAX[2].argmax(), scores[2].argmax())
    assert result["max_abs_difference"] == pytest.approx(differences.max(), abs=1e-5)
    assert result["mean_abs_difference"] == pytest.approx(differences.mean(), abs=1e-5)
    assert result["top1_agreement"] == pytest.approx(2 / 3)
    assert compare(run_here, report, file, "--tolerance", "2")[0] == 0


@pytest.mark.parametrize("options", [[], ["--raw"]])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_beyond_every_tolerance(
    value, options, report, run_here, tmp_path, log_messages
):
    """Also if a whole row is not finite, as after an overflow of float16."""
    scores = SOFTMAX.copy()
    scores[1] = value
    file = write_scores(tmp_path / "theirs.npz", scores)
    status, result = compare(run_here, report, file, "--tolerance", "1e9", *options)
    assert (status, result["first"]["path"], result["max_abs_difference"]) == (1, PATHS[1], None)
    assert not log_messages


def test_a_name_that_is_no_text_is_printed(run_here, tmp_path):
    for name in ("ours", "theirs"):
        (tmp_path / f"{name}.csv").write_bytes(b"caf\xe9.mp4,0.5,0.5\n")
    assert compare(run_here, tmp_path / "ours.csv", tmp_path / "theirs.csv")[0] == 0


def test_raw_scores_become_probabilities(report, run_here, tmp_path, log_messages):
    file = write_scores(tmp_path / "raw.npy", RAW[0])
    assert compare(run_here, report, file, "--raw", "--tolerance", "1e-6")[0] == 0
    assert not log_messages
    assert compare(run_here, report, file)[0] == 1
    (line,) = log_messages
    assert "is it --raw?" in line


def test_raw_scores_of_several_labels_become_their_probabilities(run_here, tmp_path):
    labels = [(0, 1), (2,), (), (1,)]
    rows = np.column_stack([RAW[0], encode_label_sets(labels, 3), [1, 1, 1, 0]])
    samples = Samples(PATHS, labels, list("xyz"))
    (tmp_path / "report").mkdir()
    write_label_report(tmp_path / "report", samples, rows=rows, raw_scores=True, result={})
    file = write_scores(tmp_path / "raw.npy", RAW[0])
    words = [tmp_path / "report", file, "--tolerance", "1e-6"]
    assert compare(run_here, *words)[0] == 1
    status, result = compare(run_here, *words, "--raw")
    assert (status, result["videos"], result["unreadable"]) == (0, 3, 1)


def test_files_without_names_are_compared_row_by_row(run_here, tmp_path):
    ours = write_scores(tmp_path / "ours.npz", RAW[0], ())
    theirs = write_scores(tmp_path / "theirs.npy", RAW[0] + 0.5, ())
    status, result = compare(run_here, ours, theirs)
    assert (status, result["videos"], result["first"]["path"]) == (1, 4, "row 1")
    assert result["mean_abs_difference"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("names", "classes", "words"),
    [
        (("a.mp4", "e.mp4", "d.mp4", "bad.mp4"), 3, "video 2 is e.mp4 instead of b c.mp4"),
        (tuple(PATHS[:3]), 3, "3 videos instead of 4"),
        (tuple(PATHS), 2, "2 classes instead of 3"),
        ((), 3, "3 rows instead of 4"),
    ],
)
def test_the_first_difference_of_two_lists_is_named(
    names, classes, words, report, run_here, tmp_path
):
    file = write_scores(tmp_path / "theirs.npz", SOFTMAX[: len(names) or 3, :classes], names)
    done = run_here("scripts/analysis/compare_scores.py", report, file)
    assert_one_line_error(done, f"are not of one list: {words}")


PIPE = b"a pipe, which nobody writes"
BAD_FILES = [("none.npy", None), ("a.txt", b""), ("a.csv", b"a.mp4,1,2,3\nb.mp4,1,2\n")]
BAD_FILES += [("a.csv", b"a.mp4,much,2,3\n"), ("a.csv", b""), ("a.json", b"[[1, 2, 3]]")]
BAD_FILES += [("a.json", b'{"a.mp4": 1}'), ("a.npy", b"nonsense"), ("a.npz", b"nonsense")]
BAD_FILES += [("a.json", b'{"a": [1, 1%s]}' % (b"0" * 400)), ("a.csv", PIPE), ("a.npz", PIPE)]


@pytest.mark.parametrize(("name", "content"), BAD_FILES)
def test_a_file_of_another_form_is_one_line(name, content, report, run_here, tmp_path):
    if content == PIPE:
        os.mkfifo(tmp_path / name)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    done = run_here("scripts/analysis/compare_scores.py", report, tmp_path / name)
    assert_one_line_error(done, name)


def test_packed_zeros_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(score_files, "MAX_SCORES", 8000)
    file = write_scores(tmp_path / "a.npz", np.zeros((1001, 1)), ())
    with pytest.raises(ValueError, match="a.npz holds no scores of videos: it unpacks to more"):
        score_files.read_any_scores(file)
