"""scripts/demo.py: its command line, and its page through Gradio's client."""

import base64
import io
import re
import shutil
import signal
import socket
import subprocess

import numpy as np
import pytest
from PIL import Image

from scripts import demo
from tests.documents import read_lines
from tests.helpers import build_env, copy_checkout, load_smoke_config, save_random_weights
from tests.numbered_videos import write_numbered_video
from tests.test_api import load_toy
from utils.files import ROOT

ADVICE = f"needs Gradio: {demo.INSTALL}"


@pytest.fixture(scope="module")
def model(data_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    for name in ("labels.txt", "test.txt", "videos"):
        (folder / name).symlink_to(data_root / name)
    return load_toy("tsm", folder)


@pytest.fixture(scope="module")
def client(model, videos, tmp_path_factory):
    """Of a page with heat maps, which takes files of 1 MB and 20 seconds."""
    pytest.importorskip("gradio", reason=ADVICE)
    patch = pytest.MonkeyPatch()
    patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
    from gradio_client import Client

    predictor = demo.Predictor(model, max_seconds=20, window=0.5, cam=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    page, address = demo.open_page(predictor, [str(videos[0])], "127.0.0.1", port, max_mb=1)
    yield Client(address, verbose=False)
    page.close(verbose=False)
    patch.undo()


def test_the_page_shows_what_the_python_interface_predicts(client, model, videos):
    """Bit for bit."""
    from gradio_client import handle_file

    bars, table, heat_map = client.predict(handle_file(videos[1]), api_name="/predict")
    ranking = model.predict(videos[1], window=0.5)
    assert [(entry["label"], entry["confidence"]) for entry in bars["confidences"]] == ranking
    windows = list(model.stream(videos[1], window=0.5, top=1))
    expected = [[w.start, w.end, w.top[0][0], w.top[0][1]] for w in windows]
    rows = table["value"]["data"]
    assert len(rows) == len(expected) > 1
    for row, (start, end, name, probability) in zip(rows, expected):
        assert row == [round(start, 2), round(end, 2), name, round(probability, 4)]
    assert f"what speaks for {ranking[0][0]}</figcaption><img " in heat_map
    data = base64.b64decode(re.search('base64,([^"]*)', heat_map)[1])
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.n_frames == 2 * 2  # clips x segments


def test_networks_of_several_data_sets_and_of_images_have_results(tmp_path, videos):
    pytest.importorskip("gradio", reason=ADVICE)
    model = load_toy("mvit_multi", tmp_path)
    *bars, table, maps = demo.Predictor(model, max_seconds=9).predict(str(videos[0]))
    assert (table["visible"], maps) == (False, "")
    for values, ranking in zip(bars, model.predict(videos[0]).values()):
        assert list(values.items()) == ranking
    images = load_toy("resnet50", tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (40, 50, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    predictor = demo.Predictor(images, max_seconds=9, cam=True)
    values, _, heat_map = predictor.predict(str(tmp_path / "image.png"))
    assert list(values.items()) == images.predict(pixels)
    assert '<img width="100%" src="data:image/webp;base64,' in heat_map


def test_uploads_are_limited(client, videos, tmp_path):
    """In size and seconds; a file of the server is not read; an error is one line."""
    import httpx
    from gradio_client import handle_file

    (tmp_path / "text.mp4").write_text("no video")
    files = {"files": ("large.mp4", bytes(2**20 + 1))}
    assert httpx.post(f"{client.src}gradio_api/upload", files=files).status_code == 413
    with pytest.raises(Exception, match="^cannot read text.mp4 with pyav"):
        client.predict(handle_file(tmp_path / "text.mp4"), api_name="/predict")
    write_numbered_video(tmp_path / "long.mp4", 110, width=64, height=48, rate=5.0)
    with pytest.raises(Exception, match="^long.mp4 has 22 s"):
        client.predict(handle_file(tmp_path / "long.mp4"), api_name="/predict")
    file = {"path": str(videos[0]), "meta": {"_type": "gradio.FileData"}}
    call = f"{client.src}gradio_api/call/predict"
    event = httpx.post(call, json={"data": [file]}).json()["event_id"]
    assert httpx.get(f"{call}/{event}").text.startswith("event: error")


def test_a_page_whose_server_gives_its_name_our_address_is_refused(client):
    import httpx

    assert httpx.get(client.src, headers={"host": "other.org"}).status_code == 400


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
    line = next(iter(read_lines(ROOT / "docs/demo.md")))
    target = folder / "out/quickstart_tsm/epoch_014.ckpt"
    target.parent.mkdir(parents=True)
    save_random_weights(load_smoke_config("tsm"), target, "tsm")
    command = ["bash", "-c", f"exec {line.command}"]
    options = {"cwd": folder, "env": {**build_env(), "TMPDIR": str(temporary)}}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
    text = next(line for line in iter(process.stderr.readline, "") if line.startswith("open "))
    assert text == "open http://127.0.0.1:7860/ in a browser; ctrl-C ends the page\n"
    client = Client("http://127.0.0.1:7860", verbose=False)
    video = handle_file(folder / "data/synthetic/videos/test/left_000.mp4")
    assert client.predict(video, api_name="/predict")[0]["label"]
    assert list(temporary.glob("zoo_demo_*/*/left_000.mp4"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 143
    assert process.stderr.read() == "terminated; nothing was lost\n"
    assert not list(temporary.glob("zoo_demo_*"))
    assert not (folder / ".gradio").exists()
