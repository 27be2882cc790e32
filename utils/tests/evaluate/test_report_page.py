"""The data of a report's page: which samples it shows, links to files, bounded lists."""

import base64
import hashlib
import io
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.helpers import load_smoke_config
from utils.evaluate import report, report_page
from utils.evaluate.report_page import Samples
from utils.inference.evaluate import describe_origin
from utils.video.reader import Segment, VideoError
from utils.weights.description import VERSION

NAMES = ["u", "v", "w"]


def make_views(record: SimpleNamespace, sample: int) -> np.ndarray:
    if sample == 1:
        raise VideoError("b.mp4", "pyav", "gone")
    return np.full((1, 5, 300, 400, 3), 50 * sample, np.uint8)


def describe_files(*paths) -> dict:
    """The rows and the label space of files that exist or not; the last one is a segment."""
    records = [SimpleNamespace(path=str(path), segment=None) for path in paths]
    records[-1].segment = Segment(1.5, 4)
    rows = SimpleNamespace(records=records, make_views=make_views)
    return {"rows": rows, "space": SimpleNamespace(preview_frames=lambda views: views)}


def write_page(folder, paths=("a.mp4", "b.mp4", "c.mp4", "d.mp4"), origin=(), **fields) -> dict:
    """Two mistakes, the second more confident, and two hits, the second less confident."""
    scores = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7], [0.25, 0.5, 0.25]])
    rows = np.column_stack([scores, [1, 2, 2, 1], np.ones(4)]).astype(np.float32)
    samples = Samples(paths, [1, 2, 2, 1], NAMES, **fields)
    result = {"top1": 0.5, **dict(origin)}
    return report.write_report(folder, samples, rows, raw_scores=True, result=result)


def read_entries(page: dict) -> list[tuple]:
    keys = ("path", "true", "other", "true_probability", "other_probability")
    return [tuple(row[key] for key in keys) for row in (*page["mistakes"], *page["hits"])]


def test_the_page_has_confident_mistakes_and_doubtful_hits_with_frames(tmp_path):
    page = write_page(tmp_path, **describe_files("a", "b", "c", "d"))
    assert read_entries(page) == [
        ("b.mp4", "w", "v", 0.1, 0.8),
        ("a.mp4", "v", "u", 0.3, 0.5),
        ("d.mp4", "v", "u", 0.5, 0.25),
        ("c.mp4", "w", "v", 0.7, 0.2),
    ]
    assert [len(row["pictures"]) for row in [*page["mistakes"], *page["hits"]]] == [0, 3, 3, 3]
    picture = Image.open(io.BytesIO(base64.b64decode(page["hits"][0]["pictures"][0].split(",")[1])))
    assert (picture.format, picture.size) == ("JPEG", (192, 144))
    assert page["counts"].tolist() == [[0, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert page["pairs"] == [[1, 0, 1, 0.5], [2, 1, 1, 0.5]]
    assert [(row["name"], row["videos"], row["cells"][0]) for row in page["rows"]] == [
        ("v", 2, 0.5), ("w", 2, 0.5), ("u", 0, None),
    ]  # fmt: skip
    assert {"scores.csv", "wrong.csv", "report.json"} <= set(page["files"])


def test_a_page_names_its_origin_without_folders_above(tmp_path):
    settings = ["run.out=/root/out/tsm_own", "data.root=/root/own", "data.val_list=val.txt"]
    origin = describe_origin(load_smoke_config("tsm", *settings), "")
    page = write_page(tmp_path, origin={**origin, "checkpoint": "/root/x/run/b.ckpt"})
    text = re.sub("<wbr>", "", (tmp_path / "index.html").read_text())
    assert "<title>tsm_own · b.ckpt · Evaluation report</title>" in text
    assert "/root" not in text
    for fact in (">own/test.txt<", ">run/b.ckpt<", f">{VERSION}", time.strftime(">%Y-%m-%d ")):
        assert f'<dd class="word"{fact}' in text
    assert {row["pictures"] for row in page["mistakes"]} == {None}  # without files


@pytest.mark.parametrize(("hits", "is_at_chance"), [(15, True), (30, False)])
def test_a_result_is_at_chance_if_its_interval_has_chance(hits, is_at_chance):
    """10 classes, 100 videos: 15 hits have the interval 9.3 to 23.3 %."""
    result = {"top1": hits / 100, "top5": None, "videos": 100}
    assert report_page.compute_chance(result, [10] * 10) == {"top1": (0.1, is_at_chance)}
    of_labels = {"map": hits / 100, "videos": 100}
    assert report_page.compute_chance(of_labels, [30, 10, 0]) == {"map": (0.2, is_at_chance)}


def test_the_lists_of_the_page_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "SHOWN", 1)
    monkeypatch.setattr(report_page, "LISTED", 1)
    page = write_page(tmp_path, **describe_files("a", "b", "c", "d"))
    assert (len(page["mistakes"]), len(page["hits"])) == (1, 1)
    assert "1 most confident of 2" in (tmp_path / "index.html").read_text()


def test_a_link_is_the_relative_address_of_an_existing_file(tmp_path):
    names = ["javascript:alert(1) #?.mp4", "b\udcff.mp4", "gone.mp4", "d.mp4"]
    for name in (names[0], names[1], names[3]):
        (tmp_path / name).touch()
    (tmp_path / "report").mkdir()
    files = describe_files(*(tmp_path / name for name in names))
    part = write_page(tmp_path / "report", paths=names, **files)
    links = {row["path"]: row["link"] for row in [*part["mistakes"], *part["hits"]]}
    assert links == {
        names[0]: "../javascript%3Aalert%281%29%20%23%3F.mp4",
        "b\\xff.mp4": "../b%FF.mp4",
        "gone.mp4": "",
        "d.mp4": "../d.mp4#t=1.5,4",
    }


def test_a_page_permits_its_own_script_only_and_escapes_texts(tmp_path):
    page = write_page(tmp_path, paths=["</td><b>a", "</script><script>alert(1)", "c", "d"])
    report_page.write_index(tmp_path, {"<i>x": page}, {})
    text = (tmp_path / "index.html").read_text()
    assert text.count("<script") == text.count("</script>") == 2
    assert "<b>" not in text
    assert "<i>" not in text
    code = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = re.search(r'Policy" content="(.*?)"', text)[1].split("; ")
    assert {"default-src 'none'", "img-src data:", f"script-src 'sha256-{digest}'"} < set(policy)
    with pytest.raises(ValueError, match="--report: cannot write"):
        report_page.write_index(tmp_path / "index.html", {"": page})
