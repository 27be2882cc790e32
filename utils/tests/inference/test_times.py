"""Videos of a variable rate: windows, streams, saved videos and segments go by time."""

import numpy as np
import pytest

from scripts.prediction.records import PredictOptions, Predictor
from tests.helpers import FileModel, NoNetwork
from tests.test_predict import NumberReader
from utils.evaluate.windows import read_windows
from utils.inference.stream import ImagePredictor, Timing, WindowPredictor
from utils.tests.inference.test_stream import ToyHead, run_stream
from utils.tests.video.videos import BACK_ENDS, copy_packets, draw, read_bits
from utils.video.decoders import open_video
from utils.video.live import StreamSource, open_file
from utils.video.reader import Segment, find_time, measure_times
from utils.video.windows import split_into_windows

# Milliseconds: 30 frames in the first second, then one every half second, the last for 2 seconds.
STAMPS = [*(k * 1000 // 30 for k in range(30)), *range(1000, 6000, 500), 8000]
END = 10.0


@pytest.fixture(scope="module", params=["mkv", "mp4"])
def video(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("times")
    plain = draw(folder / "plain.mp4", count=len(STAMPS), b_frames=0)

    def move(k, packet):
        unit = float(packet.time_base)
        packet.pts = packet.dts = round(STAMPS[k] / 1000 / unit)
        end = STAMPS[k + 1] if k + 1 < len(STAMPS) else END * 1000
        packet.duration = round((end - STAMPS[k]) / 1000 / unit)
        return True

    return copy_packets(plain, folder / f"times.{request.param}", move)


@pytest.mark.parametrize("reader", BACK_ENDS)
def test_times_are_those_of_the_file(video, reader):
    with open_video(video, reader) as source:
        assert source.times == pytest.approx([*np.array(STAMPS) / 1000, END], abs=2e-3)
        assert source.fps == pytest.approx(len(STAMPS) / END, rel=1e-3)
        for segment, count in ((Segment(0.5, 2.25), 18), (Segment(5.5, 9), 2)):
            with open_video(video, reader, segment=segment) as part:
                assert len(part) == count
        with open_video(video, reader, segment=Segment(1, 6)) as part:
            assert (len(part), part.times) == (10, None), "its own rate is constant"
            assert part.fps == pytest.approx(2)
            assert find_time(part, np.array([0, 3])) == pytest.approx([0, 1.5])


class BitReader(ToyHead):
    """Reads every frame of a window, whose views are their numbers."""

    def frame_indices(self, window):
        return np.arange(len(window))

    def make_views(self, crops, positions):
        return np.array(read_bits(crops))[positions]


def test_windows_have_the_frames_that_begin_in_them(video):
    with open_video(video) as source:
        windows = split_into_windows(source, 1.0)
        assert [window.span for window in windows] == [(k, k + 1) for k in range(10)]
        numbers = {
            window.start: views.tolist()
            for window, (views,) in read_windows(source, windows, [BitReader()])
        }
        rates = [window.fps for window in windows[:5]]
    assert numbers[0] == list(range(30))
    assert numbers[30] == [30, 31]
    assert numbers[38] == [38, 39]
    assert numbers[39] == [39], "the frame that is shown at 6 and 7 seconds"
    assert numbers[40] == [40]
    assert rates == pytest.approx([30, 2, 2, 2, 2], rel=2e-3)
    with open_video(video) as source:
        (whole,) = split_into_windows(source, 0.0)
        assert (len(whole), whole.span) == (len(STAMPS), pytest.approx((0, END)))
        assert whole.find_time(np.arange(len(STAMPS))) == pytest.approx(
            np.array(STAMPS) / 1000, abs=2e-3
        )
        spans = [window.span for window in split_into_windows(source, 4.0, 2.5)]
        assert spans == [pytest.approx(span) for span in ((0, 4), (2.5, 6.5), (5, 9), (6, 10))]
        assert len(split_into_windows(source, 9.0, 0.001)) < 10, "at least a frame between them"


def test_a_stream_of_a_file_has_the_windows_of_a_prediction(video):
    source = StreamSource("times", lambda: open_file(open_video(video)))
    head = BitReader()
    views = []
    head.predict_probs = lambda scorer, numbers: views.append(numbers.tolist()) or np.ones(1)
    stream = run_stream(source, WindowPredictor(NoNetwork(), [head], Timing(source, 2.0, 1.0)))
    spans = [(result.start, result.end) for result in stream]
    with open_video(video) as reader:
        windows = split_into_windows(reader, 2.0, 1.0)
        expected = [numbers.tolist() for _, (numbers,) in read_windows(reader, windows, [head])]
    assert spans == [pytest.approx(window.span) for window in windows]
    assert views == expected
    assert stream.frames == len(STAMPS)


def test_frames_of_a_stream_are_chosen_by_time(video):
    source = StreamSource("times", lambda: open_file(open_video(video)))
    scorer = ImagePredictor(NoNetwork(), ToyHead(), Timing(source, fps=1.0))
    times = [result.start for result in run_stream(source, scorer)]
    assert times == pytest.approx([0, 1, 2, 3, 4, 5, 8], abs=2e-3)


def test_a_prediction_writes_and_saves_times(video, tmp_path):
    head = NumberReader(1)
    head.clips = 1
    head.make_views = lambda crops, positions: crops[:1, None]
    head.preview_frames = lambda views: views.transpose(1, 0, 2, 3, 4)
    options = PredictOptions(tmp_path, top=2, window=1.0, save=tmp_path / "saved.mp4")
    record = Predictor(FileModel(NoNetwork(), [head]), options).predict(str(video), "times")
    spans = [(window["start"], window["end"]) for window in record["windows"]]
    assert spans == [(k, k + 1) for k in range(10)]
    with open_video(tmp_path / "saved.mp4") as saved, open_video(video) as source:
        np.testing.assert_allclose(saved.times[:-1], source.times[:-1], atol=0.01)


@pytest.mark.parametrize(
    ("stamps", "fps", "expected"),
    [
        ([0, 0.033, 0.067, 0.1], 30.0, (30.0, None)),
        ([0, 0.1, 0.2], 25.0, (10.0, None)),
        ([0], 25.0, (25.0, None)),
        ([0, 0.1, 0.1], 25.0, (15.0, [0, 0.1, 0.1, 0.2])),
        ([0, 0.1, 0.05], 25.0, (25.0, None)),
        ([0, 0.1, 1.1, 1.2, 1.3], 25.0, (5 / 1.4, [0, 0.1, 1.1, 1.2, 1.3, 1.4])),
    ],
)
def test_a_rate_is_constant_if_each_frame_is_within_half_a_frame(stamps, fps, expected):
    rate, times = measure_times(np.array(stamps, np.float64), fps, last=0.1)
    assert rate == pytest.approx(expected[0])
    assert (times is None) == (expected[1] is None)
    if times is not None:
        assert times == pytest.approx(expected[1])
