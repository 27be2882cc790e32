"""Frames are cropped while a video is decoded: memory does not follow their size."""

import tracemalloc

import numpy as np
import pytest

from tests.helpers import load_smoke_config
from tests.test_frame_folders import SET
from utils.evaluate.windows import read_windows
from utils.networks import find_network
from utils.runtime import Runtime
from utils.tests.video.videos import encode
from utils.video import reader
from utils.video.decoders import open_video
from utils.video.windows import split_into_windows

COUNT = 48
ROWS = 2**20  # bytes for everything besides the frames
SETTINGS = {
    "tsm": ["data.segments=24", "data.resize=32", "data.crop=32", "data.batch=1", "eval.crops=3"],
    "x3d": ["data.frames=24", "data.stride=2", "data.scales=[32,36]", "data.crop=32"],
    "mvit_multi": ["data.frames=24", "data.stride=2", "data.crop=32", "data.repeated_aug=2"]
    + [f"data.sets=[{SET}]"],
}


def draw_video(path, width, height):
    """Noise that a copy of another frame, part or size would change."""
    rng = np.random.RandomState(3)
    frames = [
        np.kron(rng.randint(0, 256, (4, 8, 3)), np.ones((height // 4, width // 8, 1)))
        for _ in range(COUNT)
    ]
    options = {"preset": "ultrafast", "x264-params": "ref=1:bframes=0"}
    (path.parent / "lists").mkdir(parents=True)
    for name in ("train.txt", "test.txt", "lists/train.csv", "lists/test.csv"):
        (path.parent / name).write_text(f"{path.name} 0\n" * 2)
    return encode(path, [frame.astype(np.uint8) for frame in frames], options=options)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    sizes = {"square": (512, 512), "narrow": (2048, 128), "high": (128, 2048)}
    return {name: draw_video(folder / name / "a.mp4", *size) for name, size in sizes.items()}


def make_rows(name, path):
    """All that a network makes of a video: training rows, evaluation rows, views of windows."""
    network = find_network(name)
    lists = ["data.train_list=train.txt", "data.test_list=test.txt"] if name != "mvit_multi" else []
    lists += [f"data.root={path.parent}", "data.batch=1"]
    cfg = load_smoke_config(name, *SETTINGS[name], *lists)
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, Runtime())
    train = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    yield from train[0]
    yield from train[1]
    yield from network.build_eval_rows(cfg, Runtime())[0][0]
    with open_video(path) as source:
        windows = split_into_windows(source, 1.2, 0.6)
        for _, views in read_windows(source, windows, network.list_label_spaces(cfg)):
            yield from views


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("shape", ["square", "narrow", "high"])
def test_memory_holds_a_few_large_frames(name, shape, videos, monkeypatch):
    """And the rows are those of all frames at once, bit for bit."""
    whole = list(make_rows(name, videos[shape]))
    monkeypatch.setattr(reader, "PART_BYTES", 1)
    list(make_rows(name, videos[shape]))  # imports
    with open_video(videos[shape]) as video:
        frame_bytes = video.frames([0]).nbytes
    rows = iter(make_rows(name, videos[shape]))
    tracemalloc.start()
    try:
        for expected in whole:
            np.testing.assert_array_equal(next(rows), expected)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A frame, its copy in float32, and what the network reads; 24 or more frames would be 24.
    assert peak < 12 * frame_bytes + ROWS
