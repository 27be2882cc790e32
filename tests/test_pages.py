"""Pages of reports in Chromium: numbers, sorting, hover, escaping, speed."""

import numpy as np
import pytest

from tests.browser import MISSING, Browser
from utils.evaluate import report, report_page
from utils.evaluate.metrics import Counts
from utils.evaluate.report import write_label_report
from utils.evaluate.report_page import Samples
from utils.video.reader import VideoError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
EVIL = "<script>document.title='evil'</script><img src=x onerror=document.title='evil'>"


@pytest.fixture(scope="module")
def browser():
    """A browser for all tests of a worker."""
    browser = Browser()
    yield browser
    browser.close()


def read_frames(sample: int) -> np.ndarray:
    if sample % 5 == 0:
        raise VideoError("gone.mp4", "pyav", "gone")
    return np.full((4, 60, 80, 3), sample % 256, np.uint8)


def write_report(folder, classes: int, videos: int, first: str = "first", **fields) -> tuple:
    """The report of random scores; returns what its page shows, and the metrics."""
    rng = np.random.RandomState(classes)
    labels = np.arange(videos) % classes
    scores = rng.randn(videos, classes).astype(np.float32)
    scores[np.arange(videos), labels] += 2.5
    rows = np.column_stack([scores, labels, np.ones(videos)]).astype(np.float32)
    names = [first, *(f"class {k:03d}" for k in range(1, classes))]
    paths = [f"{names[label]}/{k}.mp4" for k, label in enumerate(labels)]
    samples = Samples(paths, labels.tolist(), names, **fields)
    predictions = report.compute_predictions(rows, samples.labels, True)
    counts = Counts(classes, True)
    counts.add(scores, labels)
    result = {**counts.accuracies(), "unreadable": 0, "checkpoint": f"out/{first}.ckpt"}
    folder.mkdir(parents=True, exist_ok=True)
    part = report.write_report(folder, samples=samples, predictions=predictions, result=result)
    return part, result


def read_column(browser: Browser, table: str, column: int) -> list[str]:
    """The texts of the rows that are shown."""
    rows = f".set:not([hidden]) .{table} tbody tr:not([hidden]) > :nth-child({column})"
    cells = f"[...document.querySelectorAll('{rows}')]"
    return browser.run(f"{cells}.map((cell) => cell.textContent.trim())")


def test_a_report_shows_numbers_sorts_classes_and_loads_nothing(browser, tmp_path):
    (tmp_path / "0.mp4").touch()
    fields = {"read_frames": read_frames, "find_file": lambda _: (str(tmp_path / "0.mp4"), "")}
    part, result = write_report(tmp_path / "out", classes=8, videos=64, first=EVIL, **fields)
    browser.open(tmp_path / "out" / "index.html")
    text = browser.run("document.querySelector('.tile').textContent")
    low, high = (f"{100 * result[f'top1_{end}']:.1f}" for end in ("low", "high"))
    assert text.startswith(f"Top-1 accuracy{100 * result['top1']:.1f}")
    assert f"{low} to {high}" in text
    assert EVIL in browser.run("document.body.innerText")
    assert browser.run("document.querySelectorAll('script').length") == 2
    recalls = [float(cell.split("\u202f")[0]) for cell in read_column(browser, "classes", 4)]
    assert recalls == sorted(recalls)
    rows = part["rows"]
    for column, values in (
        (6, [100 * row["precision"] for row in rows]),
        (7, [100 * row["f1"] for row in rows]),
        (3, [row["videos"] for row in rows]),
    ):
        for reverse in (False, True):
            browser.run(f"document.querySelectorAll('.classes th button')[{column - 1}].click()")
            cells = [float(c.split("\u202f")[0]) for c in read_column(browser, "classes", column)]
            assert cells == pytest.approx(sorted(values, reverse=reverse), abs=0.051)
    cell = "document.querySelector('.cells tbody tr:nth-child(2) td:nth-child(3)').title"
    assert browser.run(cell).startswith("true: class 001\npredicted: class 001\n")
    count = "(node) => node.querySelectorAll('img').length"
    pictures = browser.run(f"[...document.querySelectorAll('.sample')].map({count})")
    shown = [*part["mistakes"][: part["shown"]], *part["hits"]]
    assert pictures == [len(sample["pictures"]) for sample in shown]
    assert set(pictures) == {0, 3}
    assert browser.run("[...document.images].every((image) => image.naturalWidth === 80)")
    assert browser.run("document.querySelector('.sample a').getAttribute('href')") == "../0.mp4"
    browser.run("document.querySelector('.cells td.pick[style*=orange]').click()")
    listed = read_column(browser, "videos", 2)
    assert 0 < len(listed) < len(part["mistakes"])
    assert len(set(listed)) == 1
    browser.run("document.querySelector('.chosen').click()")
    assert len(read_column(browser, "videos", 2)) == len(part["mistakes"])
    outside = [address for address in browser.requests if not address.startswith("data:")]
    assert outside == [(tmp_path / "out" / "index.html").as_uri()]
    assert browser.errors == []
    assert browser.run("document.title").endswith(".ckpt · Evaluation report")


def test_one_page_has_all_data_sets(browser, tmp_path):
    parts = {}
    for name, classes in {"kinetics": 12, "own <b>videos": 3}.items():
        parts[name], _ = write_report(tmp_path / name, classes, videos=24, first=name)
    report_page.write_index(tmp_path, parts, {"top1": 0.51, "top5": None})
    browser.open(tmp_path / "index.html")
    overview = "document.querySelector('section table').innerText"
    assert "own <b>videos" in browser.run(overview)
    assert "average" in browser.run(overview)
    assert len(read_column(browser, "classes", 1)) == 12
    browser.run("document.querySelectorAll('.choices button')[1].click()")
    assert len(read_column(browser, "classes", 1)) == 3
    files = "document.querySelectorAll('.set:not([hidden]) .files a')"
    links = browser.run(f"[...{files}].map((link) => link.getAttribute('href'))")
    assert "own%20%3Cb%3Evideos/wrong.csv" in links
    assert browser.errors == []


def test_samples_of_several_labels_have_a_page(browser, tmp_path):
    rows = np.array([[0.9, 0.6, 1, 0, 1], [0.2, 0.4, 1, 1, 1], [0.9, 0.2, 1, 0, 1]])
    samples = Samples(["a", "b", "c"], [(0,), (0, 1), (0,)], ["run", "jump"], read_frames)
    result = {"map": 0.75, "top1": 0.5, "loss": 0.3, "videos": 3}
    write_label_report(tmp_path, samples=samples, rows=rows, raw_scores=False, result=result)
    browser.open(tmp_path / "index.html")
    assert browser.run("document.getElementById('tile-map').textContent") == "75.0\u202f%"
    titles = browser.run("[...document.querySelectorAll('h2')].map((node) => node.textContent)")
    assert titles[:3] == ["Classes", "Most confident mistakes", "Least confident hits"]
    assert read_column(browser, "videos", 2) == ["run, jump", "run"]
    assert read_column(browser, "videos", 3) == ["no label", "run, jump"]
    browser.run("document.querySelector('.classes tbody tr:first-child').click()")
    name = read_column(browser, "classes", 1)[0].split()[0]
    assert all(name in cell for cell in read_column(browser, "videos", 2))
    assert browser.errors == []
