"""The Python interface keeps no memory for what it has computed."""

import gc
from pathlib import Path
from typing import Callable

import psutil
import pytest

from tests.numbered_videos import write_numbered_video
from tests.separate_process import in_separate_process
from tests.test_api import FRAMES, load_toy
from utils.inference import model as api
from utils.inference.cam import GradCam

CALLS = 30
WARM_UP = 10
GROWTH = 15e6  # bytes of all calls; heat maps once took 8 MB each
RATE = 20  # frames per second


def draw_heat_maps(model: api.Model, folder: Path) -> Callable[[], object]:
    cam = GradCam(model.load_cell(), model.heads)
    ((_, views),) = model.read(FRAMES, window=None, fps=RATE)
    clip = model.heads[0].select_middle_crops(views[0])[0]
    return lambda: cam.compute(clip, head=0, label=2)


def predict(model: api.Model, folder: Path) -> Callable[[], object]:
    return lambda: model.predict(write_video(folder))


def compute_features(model: api.Model, folder: Path) -> Callable[[], object]:
    return lambda: model.features(write_video(folder))


def read_stream(model: api.Model, folder: Path) -> Callable[[], object]:
    """One window at each call, of 64."""
    results = model.stream(write_video(folder, seconds=32), window=0.5, step=0.5)
    return lambda: next(iter(results))


def write_video(folder: Path, seconds: int = 1) -> Path:
    path = folder / f"{seconds}.mp4"
    if not path.exists():
        write_numbered_video(path, seconds * RATE, width=64, height=48, rate=RATE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mindspore", "auto"])
@in_separate_process
def test_calls_keep_no_memory(engine, tmp_path):
    """Heat maps are computed by MindSpore in any case."""
    model = load_toy("tsm", tmp_path, f"run.engine={engine}")
    heat_maps = [draw_heat_maps] if engine == "mindspore" else []
    for use in (predict, compute_features, read_stream, *heat_maps):
        call = use(model, tmp_path)
        for _ in range(WARM_UP):
            call()
        before = measure_memory()
        for _ in range(CALLS):
            call()
        assert measure_memory() - before < GROWTH, use.__name__


def measure_memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss
