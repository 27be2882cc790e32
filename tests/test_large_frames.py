"""Frames are cropped while a video is decoded: memory does not follow their size."""

import tracemalloc

import numpy as np
import pytest

from mvit_multi.dataset import EvalVideos
from tests.helpers import load_smoke_config
from utils.data.annotation_file import Record
from utils.data.sampler import TrainSampler
from utils.evaluate.windows import read_windows
from utils.networks import find_network
from utils.runtime import Runtime
from utils.tests.video.videos import encode
from utils.video import reader
from utils.video.decoders import open_video
from utils.video.windows import split_into_windows
from x3d import dataset as x3d_dataset

from tsm import dataset as tsm_dataset  # isort: skip

COUNT = 48
ROWS = 2**20  # bytes for everything besides the frames
SETTINGS = {
    "tsm": ["data.segments=24", "data.resize=32", "data.crop=32", "data.batch=1", "eval.crops=3"],
    "x3d": ["data.frames=24", "data.stride=2", "data.scales=[32,36]", "data.crop=32"],
    "mvit_multi": ["data.frames=24", "data.stride=2", "data.crop=32", "data.repeated_aug=2"],
}


def draw_video(path, width, height):
    """Noise that a copy of another frame, part or size would change."""
    rng = np.random.RandomState(3)
    frames = [
        np.kron(rng.randint(0, 256, (4, 8, 3)), np.ones((height // 4, width // 8, 1)))
        for _ in range(COUNT)
    ]
    options = {"preset": "ultrafast", "x264-params": "ref=1:bframes=0"}
    return encode(path, [frame.astype(np.uint8) for frame in frames], options=options)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    sizes = {"square": (512, 512), "narrow": (2048, 128), "high": (128, 2048)}
    return {name: draw_video(folder / f"{name}.mp4", *size) for name, size in sizes.items()}


def make_rows(name, path):
    """All that a network makes of a video: training rows, evaluation rows, views of windows."""
    network = find_network(name)
    cfg = load_smoke_config(name, *SETTINGS[name])
    record = Record(str(path), num_frames=None, label=0, line=1)
    sampler = TrainSampler(1, batch=1, rank=0, size=1, seed=0)
    train = network.train_rows([record], cfg=cfg, sampler=sampler, epochs=2, skip=0)
    yield from train[0]
    yield from train[1]
    if name != "mvit_multi":
        module = {"tsm": tsm_dataset, "x3d": x3d_dataset}[name]
        yield from module.EvalVideos([record], cfg=cfg, rt=Runtime())[0]
    else:
        rows = EvalVideos.__new__(EvalVideos)
        rows.cfg = cfg
        rows.settings = cfg.data.sets[0]
        rows.clips = rows.settings.clips
        rows.crops = rows.settings.crops
        super(EvalVideos, rows).__init__([record], cfg=cfg, rt=Runtime(), clip_shape=())
        yield rows.make_views(record, 0)
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
