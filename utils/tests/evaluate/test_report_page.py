"""The data of a report's page: which samples it shows, links to files, frames, bounded lists."""

import base64
import hashlib
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from utils import pages
from utils.evaluate import report, report_page
from utils.evaluate.label_report import write_label_report
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.report import Samples
from utils.video.reader import Segment, VideoError

NAMES = ["u", "v", "w"]


@pytest.fixture(autouse=True)
def without_plots(monkeypatch):
    monkeypatch.setattr("utils.evaluate.report_plots.save", lambda *_: None)


def read_data(folder) -> dict:
    """The data of the page; `folder` has it."""
    text = (folder / "index.html").read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text)[1])


def read_frames(sample: int) -> np.ndarray:
    if sample == 1:
        raise VideoError("b.mp4", "pyav", "gone")
    return np.full((5, 300, 400, 3), 50 * sample, np.uint8)


def write_page(folder, paths=("a.mp4", "b.mp4", "c.mp4", "d.mp4"), **fields) -> dict:
    """Two mistakes, the second more confident, and two hits, the second less confident."""
    scores = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]])
    rows = np.column_stack([scores, [1, 2, 2, 1], np.ones(4)]).astype(np.float32)
    samples = Samples(paths, [1, 2, 2, 1], NAMES, **fields)
    predictions = report.compute_predictions(rows, samples.labels, True)
    report.write_report(folder, samples=samples, predictions=predictions, result={"top1": 0.5})
    (part,) = read_data(folder)["sets"]
    return part


def test_the_page_has_confident_mistakes_and_doubtful_hits_with_frames(tmp_path):
    part = write_page(tmp_path, read_frames=read_frames)
    assert [row[:6] for row in part["mistakes"]] == [
        ["b.mp4", "", 2, 1, 0.1, 0.8],
        ["a.mp4", "", 1, 0, 0.3, 0.5],
    ]
    assert [row[:6] for row in part["hits"]] == [
        ["d.mp4", "", 1, 0, 0.5, 0.25],
        ["c.mp4", "", 2, 1, 0.7, 0.2],
    ]
    assert [len(row[6]) for row in [*part["mistakes"], *part["hits"]]] == [0, 3, 3, 3]
    picture = Image.open(io.BytesIO(base64.b64decode(part["hits"][0][6][0].partition(",")[2])))
    assert (picture.format, picture.size) == ("JPEG", (192, 144))
    assert part["confusion"] == [[1, 1, 2, 2], [0, 1, 1, 2], [1, 1, 1, 1]]
    assert [row[:2] for row in part["classes"]] == [[0, None], [2, 0.5], [2, 0.5]]
    assert part["result"]["ece"] > 0
    assert {"scores.csv", "wrong.csv", "report.json"} <= set(part["files"])


def test_samples_of_several_labels_have_a_page_without_confusion(tmp_path):
    """The mistake of the largest loss first; the hit has its labels only."""
    probabilities = [[0.9, 0.6, 0.1], [0.2, 0.4, 0.1], [0.9, 0.2, 0.8], [0.5, 0.5, 0.5]]
    targets = [[1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]]
    rows = np.column_stack([probabilities, targets, [1, 1, 1, 0]])
    labels = [(0,), (1, 2), (0, 2), ()]
    samples = Samples(["a", "b", "c", "d"], labels, NAMES, read_frames)
    write_label_report(
        tmp_path, samples=samples, rows=rows, raw_scores=False, result={"map": 0.8, "loss": 1.0}
    )
    (part,) = read_data(tmp_path)["sets"]
    assert [row[:6] for row in part["mistakes"]] == [
        ["b", "", [1, 2], [], None, None],
        ["a", "", [0], [0, 1], None, None],
    ]
    assert [row[:6] for row in part["hits"]] == [["c", "", [0, 2], None, None, None]]
    assert [len(row[6]) for row in [*part["mistakes"], *part["hits"]]] == [0, 3, 3]
    assert "average_precision" in part["columns"]
    assert "confusion" not in part


def test_the_lists_of_the_page_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "SHOWN", 1)
    monkeypatch.setattr(report_page, "LISTED", 1)
    part = write_page(tmp_path, read_frames=read_frames)
    assert (part["wrong"], len(part["mistakes"]), len(part["hits"])) == (2, 1, 1)


def test_a_report_without_files_has_no_frames(tmp_path):
    part = write_page(tmp_path)
    assert {row[6] for row in [*part["mistakes"], *part["hits"]]} == {None}


def test_a_link_is_the_relative_address_of_an_existing_file(tmp_path):
    names = ["javascript:alert(1) #?.mp4", "b\udcff.mp4", "gone.mp4", "d.mp4"]
    for name in (names[0], names[1], names[3]):
        (tmp_path / name).touch()
    (tmp_path / "report").mkdir()
    part = write_page(
        tmp_path / "report",
        paths=names,
        find_file=lambda k: (str(tmp_path / names[k]), "#t=1.5,4" if k == 3 else ""),
    )
    links = {row[0]: row[1] for row in [*part["mistakes"], *part["hits"]]}
    assert links == {
        names[0]: "../javascript%3Aalert%281%29%20%23%3F.mp4",
        "b\\xff.mp4": "../b%FF.mp4",
        "gone.mp4": "",
        "d.mp4": "../d.mp4#t=1.5,4",
    }


def test_a_segment_has_its_times_in_the_link():
    class Record:
        path = "/data/a.mp4"
        segment = Segment(1.25, 60.0)

    class Videos:
        records = (Record(), Record())

    assert report.find_video(Videos(), 1) == ("/data/a.mp4", "#t=1.25,60")
    Record.segment = None
    assert report.find_video(Videos(), 1) == ("/data/a.mp4", "")


@pytest.mark.parametrize(
    ("clips", "frames", "expected"), [(1, 8, [0, 4, 7]), (3, 4, [0, 6, 11]), (1, 1, [0])]
)
def test_frames_of_a_preview_are_from_the_start_to_the_end(clips, frames, expected):
    class Rows:
        records = (None,)

        def make_views(self, record, sample):
            return np.arange(clips * frames).reshape(clips, 1, frames, 1, 1)

    class Views(LabelSpace):
        frame_indices = make_views = None

    head = Views()
    head.clips = clips
    chosen = report.read_preview(Rows(), head, 0)
    assert chosen.ravel().tolist() == expected


def test_a_page_permits_its_own_script_only_and_has_no_markup_in_its_data(tmp_path):
    script = tmp_path / "show.js"
    script.write_text("show();")
    data = {"title": "</title><b>", "names": ["</script><script>alert(1)", "@SCRIPT@"]}
    data["loss"] = float("nan")
    pages.write_page(tmp_path / "index.html", script=script, data=data, option="--report")
    text = (tmp_path / "index.html").read_text()
    assert "<title>&lt;/title&gt;&lt;b&gt;</title>" in text
    assert text.count("<script") == text.count("</script>") == 2
    assert read_data(tmp_path) == {**data, "loss": None}
    code = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert code.endswith("show();")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = re.search(r'Policy" content="(.*?)"', text)[1].split("; ")
    assert {"default-src 'none'", "img-src data:", f"script-src 'sha256-{digest}'"} < set(policy)
    with pytest.raises(ValueError, match="--report: cannot write"):
        pages.write_page(script / "a.html", script=script, data=data, option="--report")
