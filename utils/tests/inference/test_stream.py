"""Streams: windows equal those of a file, slow networks, interruptions, captions, frame rates."""

import itertools
import time

import numpy as np
import pytest

from tests.helpers import NoNetwork, load_smoke_config
from tests.numbered_videos import write_numbered_video
from tests.toy_recipes import load_toy_config
from utils.data.annotation_file import Record
from utils.data.sampler import TrainSampler
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import Scorer
from utils.evaluate.windows import warn_of_short_window
from utils.inference.stream import ImagePredictor, Stream, StreamPredictor, Timing, WindowPredictor
from utils.networks import find_network
from utils.video.decoders import open_video
from utils.video.live import Connection, Frame, StreamSource, open_file
from utils.video.windows import Window, split_into_windows

FPS = 20.0
COUNT = 70
EVEN = list(range(0, 60, 2))


class ToyHead(LabelSpace):
    """Reads every second frame of a window; its two scores are the first and the last of them."""

    classes = 2
    names = ("first", "last")

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds
        self.windows: list[list[int]] = []

    def frame_indices(self, window: Window) -> np.ndarray:
        return np.arange(0, len(window), 2)

    def make_views(self, frames: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return frames[positions]

    def predict_probs(self, scorer: Scorer, views: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        values = views[:, 0, 0, 0].tolist()
        self.windows.append(values)
        return np.array([values[0], values[-1]], np.float64)


class ToySource(StreamSource):
    """Frames of one pixel, whose level is their number. `jumps` are numbers that are left out."""

    def __init__(self, count: int, live: bool = True, pause: float = 0.0, jumps: tuple = ()):
        super().__init__("toy", lambda: Connection(FPS, live, iter(())))
        self.count = count
        self.pause = pause
        self.jumps = jumps
        self.restarts = {0}

    def frames(self):
        for number in range(self.count):
            if number not in self.jumps:
                time.sleep(self.pause)
                pixels = np.full((2, 2, 3), number, np.uint8)
                yield Frame(number, number / FPS, pixels, number in self.restarts)


def run_stream(source: StreamSource, scorer: StreamPredictor) -> Stream:
    return Stream(source, scorer, heads=[ToyHead()])


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "numbers.mp4"
    write_numbered_video(path, COUNT, 120, 96, FPS)
    return path


NETWORKS = {
    "tsm": ["data.segments=4", "data.resize=40", "data.crop=32", "eval.crops=3"],
    "x3d": ["data.frames=4", "data.scales=[32,36]", "data.crop=32"],
    "mvit_multi": ["data.frames=4", "data.crop=32"],
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("window", "step"), [(1.0, 0.35), (0.5, 0.9), (9.0, None)])
def test_the_windows_of_a_file_have_the_views_of_a_prediction(name, window, step, video):
    """All windows, pixel for pixel; few frames are in memory, in the size of the views."""
    heads = find_network(name).list_label_spaces(load_smoke_config(name, *NETWORKS[name]))
    views = []

    def record(_, clips):
        views.append(clips)
        return np.ones(1)

    for head in heads:
        head.predict_probs = record
    source = StreamSource("numbers", lambda: open_file(open_video(video)))
    scorer = WindowPredictor(NoNetwork(), heads, Timing(source, window, step))
    sizes = []
    spans = []
    for result in run_stream(source, scorer):
        spans.append((result.start, result.end))
        sizes.append(len(scorer.frames))
    with open_video(video) as reader:
        windows = split_into_windows(reader, window, step)
        assert spans == [pytest.approx(one.span) for one in windows]
        for one, head in itertools.product(windows, heads):
            crops = reader.read(one.start + head.frame_indices(one), head.crop_frames)
            np.testing.assert_array_equal(views.pop(0), head.make_views(*crops))
    assert not views
    overlap = len(windows[0]) / ((step or window) * FPS) + 1
    needed = {k for head in heads for k in head.frame_indices(windows[0]).ravel().tolist()}
    assert max(sizes) <= overlap * len(needed)
    crops = scorer.prepare(np.zeros((96, 120, 3), np.uint8))
    assert all(array.shape[-2:] == (32, 32) for array in crops)


class PacedSource(ToySource):
    """Sends frames up to the number `limit`, then waits."""

    limit = 10
    sent = 0

    def frames(self):
        for frame in super().frames():
            while frame.number >= self.limit:
                time.sleep(0.001)
            yield frame
            self.sent = frame.number + 1


class SlowHead(ToyHead):
    """While it computes, the source sends 60 frames."""

    def __init__(self, source: PacedSource):
        super().__init__()
        self.source = source

    def predict_probs(self, scorer: Scorer, views: np.ndarray) -> np.ndarray:
        self.source.limit += 60
        while self.source.sent < min(self.source.limit, self.source.count):
            time.sleep(0.001)
        return super().predict_probs(scorer, views)


def test_a_slow_network_drops_frames_of_a_live_source_and_counts_them():
    """Its windows are the newest ones, of neighbouring frames; 16 frames wait."""
    source = PacedSource(200)
    head = SlowHead(source)
    scorer = WindowPredictor(NoNetwork(), [head], Timing(source, 0.5, 0.25))
    stream = run_stream(source, scorer)
    results = list(stream)
    starts = [0, 59, 119, 179, 189]
    assert head.windows == [list(range(start, start + 10, 2)) for start in starts]
    assert [result.start for result in results] == [pytest.approx(k / FPS) for k in starts]
    assert (stream.frames, stream.dropped, scorer.skipped) == (200 - 3 * 44, 3 * 44, 4)


@pytest.mark.parametrize(("live", "pause", "seconds"), [(True, 0.002, 0.0), (False, 0.0, 0.02)])
def test_a_fast_network_drops_nothing_and_no_frame_of_a_file_is_dropped(live, pause, seconds):
    source = ToySource(60, live=live, pause=pause)
    scorer = WindowPredictor(NoNetwork(), [ToyHead(seconds)], Timing(source, 0.5, 0.25))
    stream = run_stream(source, scorer)
    assert [result[:2] for result in stream] == [(k / 4, k / 4 + 0.5) for k in range(11)]
    assert (stream.frames, stream.dropped, stream.scorer.skipped) == (60, 0, 0)


@pytest.mark.parametrize(
    ("count", "jumps", "restarts", "windows"),
    [  # a missing frame is the one before it; an interruption or a long jump begins a window
        (40, (4, 5, *range(12, 18)), {0, 18}, [[0, 2, 3, 6, 8], EVEN[9:14], EVEN[14:19]]),
        (60, range(15, 40), {0}, [EVEN[:5], EVEN[20:25], EVEN[25:30]]),
    ],
)  # fmt: skip
def test_windows_of_a_source_with_gaps(count, jumps, restarts, windows):
    source = ToySource(count, live=False, jumps=jumps)
    source.restarts = restarts
    head = ToyHead()
    results = list(run_stream(source, WindowPredictor(NoNetwork(), [head], Timing(source, 0.5))))
    assert head.windows == windows
    assert [round(result.start * FPS) for result in results] == [window[0] for window in windows]


def test_images_are_read_at_step_or_fps():
    source = ToySource(60, live=False)

    def read(**timing) -> list[int]:
        head = ToyHead()
        predictor = ImagePredictor(NoNetwork(), head, Timing(source, **timing))
        assert all(result.start == result.end for result in run_stream(source, predictor))
        return [value for values in head.windows for value in values]

    assert read() == [0, 20, 40]
    assert read(step=0.5) == [0, 10, 20, 30, 40, 50]
    assert read(fps=8.0) == [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30, 33, 35, 38,
                             40, 43, 45, 48, 50, 53, 55, 58]  # fmt: skip
    assert read(fps=1000.0) == list(range(60))


@pytest.mark.parametrize(
    ("name", "settings", "seconds"),
    [("tsm", [], 2.0), ("x3d", ["data.frames=4", "data.stride=3", "data.fps=30"], 0.4)],
)
def test_a_window_shorter_than_a_training_clip_is_advised_against(
    name, settings, seconds, tmp_path, log_messages
):
    """A clip of TSM covers the whole video, here of 2 seconds, one of X3D a part."""
    write_numbered_video(tmp_path / "a.mp4", 60, 48, 48, 30)
    cfg = load_toy_config(name, f"data.root={tmp_path}", *settings)
    network = find_network(name)
    records = [Record(str(tmp_path / "a.mp4"), num_frames=None, label=0, line=1)]
    sampler = TrainSampler(1, batch=1, rank=0, size=1, seed=0)
    rows = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    assert rows.measure_clips() == pytest.approx(seconds, abs=0.05)
    (space,) = network.list_label_spaces(cfg)
    space.trained_seconds = rows.measure_clips()
    for part in (0.5, 0.9):
        warn_of_short_window(Window(0, round(30 * seconds * part), 30.0), [space])
    (line,) = [line for line in log_messages if "shorter than the videos" in line]
    assert f"set a window of {space.trained_seconds:.3g} s" in line
