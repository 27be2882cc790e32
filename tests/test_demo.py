"""scripts/demo.py: its command line, and its page through Gradio's client and in Chromium."""

import base64
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import av
import numpy as np
import pytest
from PIL import Image

import tests.browser
from scripts import demo
from tests.browser import MISSING, Browser
from tests.helpers import build_env, copy_checkout
from tests.numbered_videos import write_numbered_video
from tests.test_api import load_toy
from tests.test_documents import read_lines, save_random_weights
from utils.files import ROOT

ADVICE = f"needs Gradio: {demo.INSTALL}"
SMOKE = "tsm/configs/tsm_smoke.yaml"


def test_a_second_config_file_or_checkpoint_begins_the_next_model():
    models, options = demo.parse(
        shlex.split(
            "--run.device=CPU --cam --config_path a.yaml --checkpoint_path out/a/1.ckpt "
            "--model.shift_div=0 --checkpoint_path out/b/1.ckpt --config_path=a.yaml "
            "--labels names.txt --checkpoint_path x3d_s --port 80"
        )
    )
    assert options == {"cam": True, "port": 80}
    first, second, third = models
    assert first.pop("settings") == ["run.device=CPU", "model.shift_div=0"]
    assert second.pop("settings") == third.pop("settings") == ["run.device=CPU"]
    assert first == {"config_path": "a.yaml", "checkpoint_path": "out/a/1.ckpt"}
    assert second == {**first, "checkpoint_path": "out/b/1.ckpt", "labels": "names.txt"}
    assert third == {"config_path": "", "checkpoint_path": "x3d_s"}
    assert demo.name_models([first, third]) == ["a", "x3d_s"]
    assert demo.name_models([first, second]) == ["a", "b"]
    first["checkpoint_path"] = "out/b/2.ckpt"
    assert demo.name_models([first, second]) == ["out_b_2_ckpt", "out_b_1_ckpt"]


def test_the_quickstart_ends_with_a_command_of_both_networks(monkeypatch):
    monkeypatch.chdir(ROOT)
    quickstart = runpy.run_path(str(ROOT / "scripts/quickstart.py"))
    checkpoints = {"TSM": str(ROOT / "out/tsm/a.ckpt"), "TSN": str(ROOT / "out/tsn/b.ckpt")}
    command = quickstart["format_demo"](checkpoints)
    assert command.startswith("python scripts/demo.py --examples data/synthetic/videos/test ")
    models, _ = demo.parse(shlex.split(command)[2:])
    tsm = {"config_path": SMOKE, "checkpoint_path": "out/tsm/a.ckpt", "settings": []}
    tsn = {**tsm, "checkpoint_path": "out/tsn/b.ckpt", "settings": ["model.shift_div=0"]}
    assert models == [tsm, tsn]
    for name in ("scripts/quickstart.py", "scripts/run_tests.sh", "docs/demo.md"):
        assert demo.INSTALL in (ROOT / name).read_text()
    gradio, numpy = re.findall("'(.+?)'", demo.INSTALL)
    text = (ROOT / "pyproject.toml").read_text()
    assert f'"{gradio}"' in text
    assert f",{numpy.removeprefix('numpy')}" in re.search('"numpy.+"', text)[0]


def test_without_gradio_one_line_has_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--checkpoint_path", "x3d_s"])
    with pytest.raises(ValueError, match=re.escape(demo.INSTALL)):
        demo.run()


def test_an_address_in_use_and_an_unknown_one_are_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port}: .*in use; choose others"):
            demo.check_address("127.0.0.1", port)
    demo.check_address("127.0.0.1", port)
    with pytest.raises(ValueError, match="--host 256.0.0.1 --port"):
        demo.check_address("256.0.0.1", port)
    with pytest.raises(ValueError, match="--port: must be an integer from 1 to 65535"):
        demo.parse(["--checkpoint_path", "x3d_s", "--port", "70000"])


def test_examples_are_taken_evenly(tmp_path):
    for name in (f"{motion}/{k:02d}.mp4" for motion in "ab" for k in range(12)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    examples = demo.choose_examples(str(tmp_path), [".mp4"])
    assert [name for name, _ in examples][::4] == ["a/00", "b/00"]
    assert len(examples) == demo.EXAMPLES
    assert examples[1] == ("a/03", str(tmp_path / "a" / "03.mp4"))
    assert demo.choose_examples("", [".mp4"]) == []
    with pytest.raises(ValueError, match="has no file that ends in .jpg"):
        demo.choose_examples(str(tmp_path), [".jpg"])


@pytest.fixture(scope="module")
def models(data_root, tmp_path_factory) -> dict:
    """A toy of TSM, and the same network without the shift."""
    folder = tmp_path_factory.mktemp("demo")
    for name in ("labels.txt", "test.txt", "videos"):
        (folder / name).symlink_to(data_root / name)
    settings = {"tsm": [], "tsn": ["model.shift_div=0"]}
    return {
        name: load_toy("tsm", folder, *more, checkpoint=f"{name}.ckpt")
        for name, more in settings.items()
    }


def test_models_of_images_and_of_videos_need_two_pages(models, tmp_path):
    assert demo.check_models(models)
    images = load_toy("resnet50", tmp_path)
    assert not demo.check_models({"images": images})
    with pytest.raises(ValueError, match="images reads images, the others videos: open two pages"):
        demo.check_models({**models, "images": images})


def test_heat_maps_need_a_checkpoint(models):
    model = models["tsm"]
    model.scorer.name, name = "net.onnx", model.scorer.name
    with pytest.raises(ValueError, match="--cam: net.onnx has no gradients"):
        demo.build_cam(model)
    model.scorer.name = name


@pytest.fixture(scope="module")
def videos(data_root) -> list[Path]:
    return sorted((data_root / "videos" / "test").glob("*.mp4"))


@pytest.fixture(scope="module")
def address(models, videos, tmp_path_factory):
    """A page of both models with heat maps, which takes files of 1 MB and 20 seconds."""
    pytest.importorskip("gradio", reason=ADVICE)
    patch = pytest.MonkeyPatch()
    patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
    from scripts.prediction import demo_page

    panels = [
        demo_page.Panel(name, model=model, max_seconds=20, window=0.5, cam=demo.build_cam(model))
        for name, model in models.items()
    ]
    patch.setattr(demo_page, "KEEP", 40)
    page = demo_page.build_page(panels, [("one", str(videos[0]))], max_mb=1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield demo_page.launch(page, host="127.0.0.1", port=port, max_mb=1)
    page.close(verbose=False)
    patch.undo()


@pytest.fixture(scope="module")
def client(address):
    from gradio_client import Client

    return Client(address, verbose=False)


def assert_shows(labels: dict, ranking: list) -> None:
    """The bars of a page are the prediction, bit for bit."""
    pairs = [(entry["label"], entry["confidence"]) for entry in labels["confidences"]]
    assert pairs == ranking


@pytest.mark.parametrize("name", ["tsm", "tsn"])
def test_the_page_shows_what_the_python_interface_predicts(client, models, videos, name):
    from gradio_client import handle_file

    model = models[name]
    result = client.predict(handle_file(videos[1]), api_name=f"/{name}")
    status, bars, timeline, heat_map = result
    assert_shows(bars, model.predict(videos[1], window=0.5))
    windows = list(model.stream(videos[1], window=0.5, top=8))
    assert re.match(f"{len(windows)} windows, 2 x 3 views, ", status)
    assert timeline["visible"]
    expected = {
        (round((window.start + window.end) / 2, 3), label): probability
        for window in windows
        for label, probability in window.top
    }
    rows = timeline["value"]["data"]
    assert len(rows) == 3 * len(windows) > 3
    for seconds, label, probability in rows:
        assert probability == pytest.approx(expected[round(seconds, 3), label], abs=1e-6)
    label = model.predict(videos[1], window=0.5)[0][0]
    assert f"what speaks for {label}</figcaption><video " in heat_map["value"]
    data = base64.b64decode(re.search('base64,([^"]*)', heat_map["value"])[1])
    with av.open(io.BytesIO(data)) as video:
        assert len(list(video.decode(video=0))) == 2 * 2  # clips x segments


def test_networks_of_several_data_sets_and_of_images_have_a_page(tmp_path, videos):
    pytest.importorskip("gradio", reason=ADVICE)
    from scripts.prediction import demo_page

    model = load_toy("mvit_multi", tmp_path)
    panel = demo_page.Panel("mvit", model=model, max_seconds=9)
    demo_page.build_page([panel], [], max_mb=1)
    _, *bars, timeline = panel.show(str(videos[0]))
    assert not timeline["visible"]
    for values, ranking in zip(bars, model.predict(videos[0]).values()):
        assert list(values.items()) == ranking
    assert panel.show(None)[1] == {"value": None, "visible": True, "__type__": "update"}
    images = load_toy("resnet50", tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (40, 50, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    panel = demo_page.Panel("net", model=images, max_seconds=9, cam=demo.build_cam(images))
    demo_page.build_page([panel], [], max_mb=1)
    _, values, _, heat_map = panel.show(str(tmp_path / "image.png"))
    assert list(values.items()) == images.predict(pixels)
    assert '<img width="100%" src="data:image/png;base64,' in heat_map["value"]


def test_uploads_are_limited(client, videos, tmp_path):
    """In size and seconds; a file of the server is not read; an error is one line."""
    import httpx
    from gradio_client import handle_file

    (tmp_path / "text.mp4").write_text("no video")
    files = {"files": ("large.mp4", bytes(2**20 + 1))}
    assert httpx.post(f"{client.src}gradio_api/upload", files=files).status_code == 413
    with pytest.raises(Exception, match="^cannot read text.mp4 with pyav: it does not open"):
        client.predict(handle_file(tmp_path / "text.mp4"), api_name="/tsm")
    write_numbered_video(tmp_path / "long.mp4", 110, width=64, height=48, rate=5.0)
    with pytest.raises(Exception, match="^long.mp4 has 22 s; this page takes at most 20 s"):
        client.predict(handle_file(tmp_path / "long.mp4"), api_name="/tsm")
    file = {"path": str(videos[0]), "meta": {"_type": "gradio.FileData"}}
    call = f"{client.src}gradio_api/call/tsm"
    event = httpx.post(call, json={"data": [file]}).json()["event_id"]
    assert httpx.get(f"{call}/{event}").text.startswith("event: error")


@pytest.mark.slow
def test_uploads_are_deleted_and_examples_stay(client, videos):
    import httpx

    files = {"files": ("clip.mp4", videos[2].read_bytes())}
    (path,) = httpx.post(f"{client.src}gradio_api/upload", files=files).json()
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    assert folder in Path(path).parents
    assert Path(path).read_bytes() == videos[2].read_bytes()
    end = time.monotonic() + 600
    while len(list(folder.rglob("*.mp4"))) > 1:
        assert time.monotonic() < end
        time.sleep(1)
    (example,) = folder.rglob("*.mp4")
    assert example.name == videos[0].name


@pytest.fixture(scope="module")
def browser():
    """With a camera that shows a test picture, and may be used."""
    if MISSING:
        pytest.skip(MISSING)
    with pytest.MonkeyPatch.context() as patch:
        camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        patch.setattr(tests.browser, "OPTIONS", [*tests.browser.OPTIONS, *camera])
        browser = Browser()
    yield browser
    browser.close()


def open_page(browser: Browser, address: str, folder: Path, width: int, dark: bool) -> None:
    """Opens an empty file in a window of this width, then the address."""
    (folder / "empty.html").touch()
    browser.open(folder / "empty.html", width=width, dark=dark)
    browser.send("Page.navigate", url=address)


def wait_for(browser: Browser, expression: str) -> None:
    end = time.monotonic() + 600
    while not browser.run(expression):
        assert time.monotonic() < end, browser.run("document.body.innerText")
        time.sleep(0.3)


BUTTON = "[...document.querySelectorAll('button')].find(b => {}.test(b.ariaLabel + b.innerText))"


def click(browser: Browser, pattern: str) -> None:
    button = BUTTON.format(pattern)
    wait_for(browser, f"Boolean({button})")
    browser.run(f"{button}.click()")


RESULTS = "(document.body.innerText.match(/2 x 3 views/g) || []).length"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_the_page_works_in_a_browser(address, models, videos, browser, tmp_path, width, dark):
    """Without a request to another server."""
    open_page(browser, address, tmp_path, width=width, dark=dark)
    click(browser, "/^(null)?one/")
    wait_for(browser, f"{RESULTS} == 2")
    text = browser.run("document.body.innerText")
    for model in models.values():
        for label, probability in model.predict(videos[0], window=0.5):
            assert re.search(rf"{label}\s+{100 * probability:.0f}%", text)
    assert browser.run("document.documentElement.scrollWidth") == width
    loaded = "[...document.querySelectorAll('figure video')].filter(v => v.videoWidth).length"
    wait_for(browser, f"{loaded} == 2")
    hosts = {urlsplit(url).netloc for url in browser.requests if url.startswith("http")}
    assert hosts == {urlsplit(address).netloc}
    assert browser.errors == []


# Counts the bytes that the page has got of its recording: a busy machine gives the first ones late.
COUNT_RECORDED = """
window.recorded = 0;
const start = MediaRecorder.prototype.start;
MediaRecorder.prototype.start = function (...values) {
    this.addEventListener("dataavailable", event => { window.recorded += event.data.size; });
    return start.apply(this, values);
};
"""


@pytest.mark.slow
def test_a_camera_is_recorded(address, browser, tmp_path):
    browser.send("Page.addScriptToEvaluateOnNewDocument", source=COUNT_RECORDED)
    open_page(browser, address, tmp_path, width=1280, dark=False)
    click(browser, "/Capture from camera/")
    click(browser, "/Click to Access/")
    click(browser, "/start recording/")
    wait_for(browser, "window.recorded > 4000")
    click(browser, r"/recording\s*Stop/")
    wait_for(browser, f"{RESULTS} == 2")


@pytest.mark.slow
def test_the_command_of_the_guide_serves_until_sigterm(data_root, tmp_path):
    """And then its temporary files are gone; it writes no others."""
    pytest.importorskip("gradio", reason=ADVICE)
    from gradio_client import Client, handle_file

    folder = tmp_path / "zoo"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    copy_checkout(folder)
    shutil.copytree(data_root, folder / "data" / "synthetic")
    (line,) = [line for line in read_lines(ROOT / "docs/demo.md") if "shift_div" in line.command]
    for name in ("tsm", "tsn"):
        words = ["--model.shift_div=0"] if name == "tsn" else []
        checkpoint = folder / f"out/quickstart_{name}/epoch_014.ckpt"
        save_random_weights(checkpoint, folder / SMOKE, words)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line.command}"],
        cwd=folder,
        env={**build_env(), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(process.stderr.readline, "")
    text = next(line for line in lines if line.startswith("open "))
    assert text == "open http://127.0.0.1:7860/ in a browser; ctrl-C ends the page\n"
    client = Client("http://127.0.0.1:7860", verbose=False)
    video = handle_file(folder / "data/synthetic/videos/test/left_000.mp4")
    tsm = client.predict(video, api_name="/quickstart_tsm")
    tsn = client.predict(video, api_name="/quickstart_tsn")
    assert tsm[1] != tsn[1]
    assert list(temporary.glob("zoo_demo_*/*/left_000.mp4"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 143
    assert process.stderr.read() == "terminated; nothing was lost\n"
    assert not list(temporary.glob("zoo_demo_*"))
    assert not (folder / ".gradio").exists()
