"""Plots of predictions and evaluations: pixels, times and numbers."""

import numpy as np
import pytest
from PIL import Image

from scripts.prediction import plots
from scripts.prediction.records import preview_times
from utils.evaluate.label_space import LabelSpace
from utils.video.windows import Window

ENTRIES = [{"label": k, "name": f"a ${k}", "probability": 0.5 - 0.1 * k} for k in range(3)]


@pytest.mark.parametrize(("side", "factor"), [(64, 2), (32, 5)])
def test_frames_are_enlarged_pixel_by_pixel(tmp_path, side, factor):
    frames = np.random.RandomState(0).randint(0, 256, (2, 8, side, side, 3)).astype(np.uint8)
    times = np.arange(16).reshape(2, 8) / 4
    row = plots.PreviewRow("", frames=frames, entries=ENTRIES, times=times)
    plots.draw_preview(tmp_path / "a.png", "a$b$ $", [row])
    result = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    left = plots.MARGIN + (factor * side + plots.GAP)  # of the second frame
    drawn_pixels = result[2 * plots.TEXT_HEIGHT :, left:][: factor * side, : factor * side]
    np.testing.assert_array_equal(drawn_pixels, frames[0, 1].repeat(factor, 0).repeat(factor, 1))
    below = result[2 * plots.TEXT_HEIGHT + factor * side :, left : left + factor * side]
    assert below[: plots.TIME_HEIGHT].min() < 100, "the frame's time"


class TwoClips(LabelSpace):
    clips = 2

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.array([0, 1, 10, 11, 20, 21, 30, 31])  # two of two frames in each clip

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return frames


def test_times_are_positions_in_the_video():
    times = preview_times(TwoClips(), Window(50, 40, 10.0), (2, 2))
    np.testing.assert_allclose(times, [[5, 6], [7, 8]])
    assert preview_times(TwoClips(), Window(50, 40, 0.0), (2, 2)) is None
