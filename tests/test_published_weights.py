"""Published weights by name: the table, downloads from a local server, conversion, commands."""

import hashlib
import re
import shlex
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.golden_cases import get_shapes
from tests.helpers import find_smoke_yaml, read_result
from tests.test_conversion import SETTINGS
from tests.test_conversion import SOURCE as SOURCE_FILE
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import Network, find_network
from utils.tests.parity import without_values
from utils.weights import checkpoint_file, preparation, published

CONTENT = SOURCE_FILE.read_bytes()  # a file of real PyTorch
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HASHED = f"tsm-{DIGEST[:8]}.pth"
OTHER = CONTENT[:5000] + bytes(5000) + CONTENT[10000:]
TABLE = """
local:
  page: http://localhost/page
  licence: MIT
  folder: ADDRESS/
  weights:
    tsm_small: {file: models/tsm.pth, recipe: tsm/configs/tsm_smoke.yaml, settings: [SETTINGS]}
    tsm_hashed: {file: HASHED, recipe: tsm/configs/tsm_smoke.yaml, settings: [SETTINGS]}
    tsm_start: {file: HASHED, recipe: tsm/configs/tsm_smoke.yaml, settings: [SETTINGS], start: true}
    tsm_clicked: {file: clicked.pth, recipe: tsm/configs/tsm_smoke.yaml, link: the blue button}
"""


class Server(ThreadingHTTPServer):
    """Serves `files`, {name: content}, and records {header: value} of every request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"tsm.pth": CONTENT, HASHED: CONTENT}
        self.cuts: list[int] = []  # bytes after which the next connections end
        self.validator = True
        self.length = "own"
        self.delay = 0.0
        self.pause = 0.0  # before the last bytes
        self.requests: list[dict] = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        server.requests.append({"path": self.path, **self.headers})
        time.sleep(server.delay)
        content = server.files.get(self.path.rpartition("/")[2])
        if content is None:
            self.send_error(404)
            return
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        if self.headers.get("If-Range", tag) != tag:
            start = 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.validator:
            self.send_header("ETag", tag)
        length = str(len(content) - start) if server.length == "own" else server.length
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        end = server.cuts.pop(0) if server.cuts else len(content)
        sent = content[start:end]
        self.wfile.write(sent[:-1])
        time.sleep(server.pause)
        self.wfile.write(sent[-1:])

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv(published.MIRROR, raising=False)
    with Server() as instance:
        thread = threading.Thread(target=instance.serve_forever, args=(0.02,))
        thread.start()
        yield instance
        instance.shutdown()
        thread.join()


@pytest.fixture
def folder(monkeypatch, server, tmp_path) -> Path:
    """The folder of downloads; the table has small networks of the local server."""
    settings = ", ".join(f'"{setting}"' for setting in SETTINGS)
    text = TABLE.replace("ADDRESS", server.address).replace("SETTINGS", settings)
    (tmp_path / "table.yaml").write_text(text.replace("HASHED", HASHED))
    monkeypatch.setattr(published, "TABLE", tmp_path / "table.yaml")
    monkeypatch.setattr(published, "get_base_folder", lambda: tmp_path)
    return tmp_path / "weights" / "downloads"


def list_visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def assert_refused(name: str, *words: str, hidden: tuple[str, ...] = ()) -> None:
    with pytest.raises(ValueError) as caught:
        preparation.prepare(name)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []
    assert [word for word in hidden if word in message] == []


def test_the_command_downloads_converts_and_prints_the_evaluation(
    server, folder, run_here, data_root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = run_here("scripts/download_weights.py", "tsm_small")
    checkpoint = tmp_path / "weights" / "tsm_small.ckpt"
    assert read_result(done) == {"tsm_small": str(checkpoint)}
    command = shlex.split(done.stdout.splitlines()[-2])
    assert command[:4] == ["python", "tsm/eval.py", "--config_path", "tsm/configs/tsm_smoke.yaml"]
    assert command[-2:] == ["--checkpoint_path", "weights/tsm_small.ckpt"]
    assert list_visible(folder) == ["tsm.pth"]
    lines = [line for line in (data_root / "test.txt").read_text().splitlines() if line[-1] != "7"]
    (tmp_path / "seven.txt").write_text("\n".join(lines) + "\n")
    data = [f"--data.root={data_root}", f"--data.test_list={tmp_path / 'seven.txt'}"]
    arguments = ["--config_path", find_smoke_yaml("tsm"), *SETTINGS, *data]
    arguments += ["--run.engine=mindspore", "--checkpoint_path", "tsm_small"]
    result = read_result(run_here("tsm/eval.py", *arguments))
    assert (result["checkpoint"], result["videos"]) == (str(checkpoint), 7)
    assert len(server.requests) == 1, "it is downloaded once"


def test_a_start_of_a_training_has_no_classifier(server, folder):
    path = preparation.prepare("tsm_start")
    assert "new_fc.weight" not in checkpoint_file.read(path)
    use = preparation.describe_use(published.find_published("tsm_start"))
    assert use.startswith("python tsm/train.py --config_path tsm/configs/tsm_smoke.yaml")
    assert use.endswith(f"--train.pretrained={path}")


def mkdir(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("validator", [True, False])
def test_a_file_that_changes_meanwhile_is_downloaded_from_its_beginning(
    server, folder, validator, monkeypatch
):
    server.validator = validator
    server.cuts = [20_000]
    changed = OTHER if validator else OTHER + b"longer"
    change = lambda line: "ended" in line and server.files.update({"tsm.pth": changed})  # noqa: E731
    monkeypatch.setattr(preparation, "print_line", change)
    file = preparation.fetch(published.find_published("tsm_small"), mkdir(folder))
    assert file.read_bytes() == changed
    assert list_visible(folder) == ["tsm.pth"]


def test_a_connection_that_ends_is_continued(server, folder, monkeypatch):
    """Also if the next one fails."""
    connect = preparation.open_address
    works = iter([True, False, True, True])

    def open_address(*words):
        if next(works):
            return connect(*words)
        raise ValueError("cannot be reached")

    monkeypatch.setattr(preparation, "open_address", open_address)
    monkeypatch.setattr(preparation, "PAUSE", 0)
    server.cuts = [25_000, 40_000]
    file = preparation.fetch(published.find_published("tsm_hashed"), mkdir(folder))
    assert file.read_bytes() == CONTENT
    assert list_visible(folder) == [HASHED]
    ranges = [request.get("Range") for request in server.requests]
    assert ranges == [None, "bytes=25000-", "bytes=40000-"]
    assert "If-Range" in server.requests[-1]


def test_a_server_that_never_sends_all_leaves_nothing(server, folder):
    server.cuts = [20_000] * preparation.ATTEMPTS
    assert_refused("tsm_hashed", HASHED, f"ended after 20000 of {len(CONTENT)} bytes")
    assert list_visible(folder) == []


HTML = b"\n<!DOCTYPE html><html>Please log in</html>"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"files": {}}, ("/models/tsm.pth: the server answers 404",)),
        ({"files": {"tsm.pth": HTML}}, ("tsm.pth: ", "HTML page")),
        *[({"length": text}, ("more than 50000 bytes",)) for text in (None, "own")],
        ({"delay": 3.0}, ("cannot be reached: timed out",)),
        ({"pause": 3.0, "files": {"tsm.pth": CONTENT[:4000]}}, ("timed out",)),
    ],
)
def test_a_server_without_the_file_is_named(answer, words, server, folder, monkeypatch):
    monkeypatch.setattr(preparation, "LARGEST", 50_000)
    monkeypatch.setattr(preparation, "CHUNK", 5_000)
    monkeypatch.setattr(preparation, "ATTEMPTS", 2)
    monkeypatch.setattr(preparation, "TIMEOUT", 1 if "timed out" in words[-1] else 600)
    for key, value in answer.items():
        setattr(server, key, value)
    assert_refused("tsm_small", server.address, *words)


def test_a_truncated_file_of_the_publisher_is_refused(server, folder, tmp_path):
    server.files["tsm.pth"] = CONTENT[:-30_000]
    assert_refused("tsm_small", str(folder / "tsm.pth"))
    assert list_visible(tmp_path / "weights") == ["downloads"]


def test_a_damaged_file_of_the_user_is_refused_and_stays(server, folder):
    (mkdir(folder) / HASHED).write_bytes(OTHER)
    assert_refused("tsm_hashed", str(folder / HASHED), "SHA-256", DIGEST[:8])
    assert (folder / HASHED).read_bytes() == OTHER


MIRRORS = (
    "http://plugh:xyzzy@127.0.0.1:9",
    "http://plugh:se@xyzzy@127.0.0.1:9",
    "http://plugh:se/xyzzy@127.0.0.1:9",
    "http://127.0.0.1:9/a?user=plugh&password=xyzzy",
    "htp://plugh:xyzzy@127.0.0.1:9",
)


def test_secrets_of_a_mirror_or_a_proxy_are_not_printed(folder, monkeypatch, capfd):
    for mirror in MIRRORS:
        monkeypatch.setenv(published.MIRROR, mirror)
        assert_refused("tsm_small", "cannot be reached", hidden=("xyzzy", "plugh"))
    output = "".join(capfd.readouterr())
    assert output.count("tsm_small") == len(MIRRORS)
    assert "xyzzy" not in output
    assert "plugh" not in output
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv(published.MIRROR, "http://mirror.example")
    for proxy in MIRRORS[0], MIRRORS[2]:
        monkeypatch.setenv("http_proxy", proxy)
        assert_refused("tsm_small", "http://mirror.example/tsm.pth", hidden=("xyzzy",))
    assert "xyzzy" not in "".join(capfd.readouterr())


def test_a_mirror_has_all_files_in_one_folder(server, folder, monkeypatch, tmp_path):
    monkeypatch.setenv(published.MIRROR, f"{server.address}/mirror/")
    preparation.fetch(published.find_published("tsm_small"), mkdir(folder))
    assert server.requests[0]["path"] == "/mirror/tsm.pth"
    (tmp_path / "clicked.pth").write_bytes(CONTENT)
    monkeypatch.setenv(published.MIRROR, tmp_path.as_uri())
    file = preparation.fetch(published.find_published("tsm_clicked"), folder)
    assert file.read_bytes() == CONTENT


def test_two_calls_at_a_time_download_once(server, folder, tmp_path, monkeypatch, capfd):
    """A lock of a file, which processes wait for as threads do."""
    monkeypatch.setattr(preparation, "convert", lambda entry, file: entry.checkpoint.touch())
    server.delay = 0.3
    with ThreadPoolExecutor(2) as threads:
        results = [*threads.map(preparation.prepare, ["tsm_small", "tsm_small"])]
    assert results == [tmp_path / "weights" / "tsm_small.ckpt"] * 2
    assert capfd.readouterr().err.count("waiting for another process") == 1
    assert len(server.requests) == 1


def test_a_file_of_that_name_wins(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tsm_small").touch()
    assert preparation.resolve_checkpoint("tsm_small") == "tsm_small"
    assert preparation.resolve_checkpoint("tsm_smal") == "tsm_smal"


PUBLISHED = published.list_published()
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {}  # of the networks that a test has built


def test_the_table_has_all_files_of_the_sources(run_here):
    files = {(entry.source, entry.file) for entry in PUBLISHED.values()}
    assert Counter(source for source, _ in files) == {
        "mit-han-lab": 14,
        "mmaction2": 12,
        "mmaction2 0.x": 18,
        "mindcv": 6,
        "mindcv, 910B": 1,
        "PySlowFast": 10,
        "pytorchvideo": 4,
        "torchvision": 11,
        "MultiTrain": 2,
    }
    page = (ROOT / "docs" / "weights.md").read_text()
    assert {name for name in re.findall(r"`(\w+)`", page) if "." not in name} >= {*PUBLISHED}
    lines = run_here("scripts/download_weights.py").stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(PUBLISHED) + 1]] == ["name", *PUBLISHED]
    # Files of all sources are in one folder, of a mirror or of the downloads.
    addresses = {entry.folder + entry.file for entry in PUBLISHED.values()}
    assert len({entry.file_name for entry in PUBLISHED.values()}) == len(addresses)


@pytest.mark.parametrize(
    "entry", [e for e in PUBLISHED.values() if not e.unused], ids=lambda e: e.name
)
def test_published_weights_have_a_recipe(entry):
    overrides = [setting.removeprefix("--") for setting in entry.settings]
    cfg = load_config(find_network(entry.network).config, ROOT / entry.recipe, overrides)
    assert cfg.train.new_head or not entry.start
    if entry.source in ("mmaction2", "mmaction2 0.x", "torchvision", "mindcv", "mindcv, 910B"):
        assert preparation.HASH.search(entry.file_name)
    views = re.search(r", (\d+) x (\d+) of (\d+)$", entry.published)
    if views:  # the printed command tests the views of the published number
        one = cfg.data.sets[0] if entry.network == "mvit_multi" else cfg.eval
        crop = getattr(cfg, "test_crop", 0) or getattr(one, "crop", 0) or cfg.data.crop
        assert [one.clips, one.crops, crop] == [*map(int, views.groups())]


def test_the_accuracy_of_published_weights_stands_beside_that_of_an_evaluation(tmp_path):
    result = {"top1": 0.7312, "top5": 0.905}
    line = published.compare_accuracy(Path("weights/tsm_r50_k400_8f_mmaction2.ckpt"), result)
    assert "73.18 / 90.56, 1 x 10 of 224" in line
    assert line.endswith("here: 73.12 / 90.50")
    none = published.compare_accuracy(Path("weights/x3d_s.ckpt"), {"top1": 0.0, "top5": 0.5})
    assert none.endswith("here: 0.00 / 50.00")
    for other in ("out/x3d_s.ckpt", "weights/own.ckpt", "weights/resnet50_imagenet.ckpt"):
        assert not published.compare_accuracy(Path(other), result)


def test_the_start_of_every_recipe_is_published_and_fits():
    """Every weight but those of the classifier is in the file, under the same name."""
    recipes = 0
    for recipe in sorted(ROOT.glob("*/configs/*.yaml")):
        for name in re.findall(r"pretrained: weights/(\w+)\.ckpt", recipe.read_text()):
            entry = PUBLISHED[name]
            assert list_trunk(recipe, ()) == list_trunk(ROOT / entry.recipe, entry.settings), recipe
            recipes += 1
    assert recipes > 25


def list_trunk(recipe: Path, settings: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the weights before the classifier."""
    network = find_network(recipe.parent.parent.name)
    cfg = load_config(network.config, recipe, [setting[2:] for setting in settings])
    settings = cfg.model_arguments()
    key = repr(settings)
    if key not in SHAPES:
        SHAPES[key] = build_shapes(network, settings)
    return {n: shape for n, shape in SHAPES[key].items() if not re.search(network.classifier, n)}


@without_values
def build_shapes(network: Network, settings: dict) -> dict[str, tuple[int, ...]]:
    return get_shapes(network.build_model(**settings))
