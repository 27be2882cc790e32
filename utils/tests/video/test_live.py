"""Live sources: numbers and times of frames, interruptions, web pages, dropped frames."""

import av
import numpy as np
import pytest

from tests.numbered_videos import read_number, write_numbered_video
from tests.video_server import Answer, serve, to_transport_stream
from utils.tests.video.videos import copy_packets, encode
from utils.video import live
from utils.video.reader import VideoError
from utils.video.writer import CaptionedVideo

COUNT = 50
RATE = 25.0
HTML = Answer(b"<html><body>Not here</body></html>" * 50, "text/html")


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "numbers.mp4"
    write_numbered_video(path, COUNT, 64, 48, RATE, g="5", bf="0")
    return path


@pytest.fixture
def stream(video, tmp_path) -> bytes:
    return to_transport_stream(video, tmp_path)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(live, "DELAY", 0.05)


def open_source(address: str, retry: float, lines: list, stall: float = 10.0):
    return live.StreamSource(
        "test", lambda: live.open_address(address, stall=stall), retry=retry, report=lines.append
    )


def test_a_file_at_an_address_ends_or_goes_on_where_it_broke_off(video, stream, tmp_path):
    """It states a duration, or as a transport stream a size only; a camera states neither."""
    start = copy_packets(video, tmp_path / "start.mp4", movflags="faststart").read_bytes()
    size = len(stream)
    whole = Answer(stream, length=size)
    for name, answers in (
        ("a.mp4", [Answer(video.read_bytes(), "video/mp4")]),
        ("a.mp4", [Answer(start[: len(start) * 2 // 3]), Answer(start)]),
        ("a.ts", [whole]),
        ("a.ts", [Answer(stream[: size // 2], length=size), whole]),
    ):
        lines = []
        with serve(*answers) as (address, requests):
            source = open_source(f"{address}/{name}", 5.0, lines)
            frames = list(source.frames())
        assert [read_number(frame.pixels) for frame in frames] == list(range(COUNT))
        assert [frame.restarts for frame in frames] == [True, *[False] * (COUNT - 1)]
        if name == "a.mp4":
            assert [frame.number for frame in frames] == list(range(COUNT))
        assert (source.is_live, source.fps, len(requests)) == (False, RATE, len(answers))
        assert (len(lines), source.reopened) == (len(answers) - 1, len(answers) - 1)


def test_a_live_source_that_stops_is_opened_again_until_retry_has_passed(stream):
    """The second answer is the rest of the stream, from a key frame; then only web pages come."""
    half = Answer(stream[: len(stream) // 2])
    lines = []
    frames = []
    with serve(half, Answer(stream), HTML) as (address, requests):
        source = open_source(f"{address}/live", 2.0, lines)
        assert (source.is_live, source.fps) == (True, RATE)
        with pytest.raises(VideoError, match="it broke off"):
            frames.extend(source.frames())
    shown = [read_number(frame.pixels) for frame in frames]
    second = shown.index(0, 1)
    assert shown[:second] == list(range(second))
    assert shown[second:] == list(range(COUNT))
    numbers = [frame.number for frame in frames]
    assert all(a < b for a, b in zip(numbers, numbers[1:]))
    assert [k for k, frame in enumerate(frames) if frame.restarts] == [0, second]
    assert source.reopened == 1
    assert len(lines) == 2
    assert "opened again for up to 2 s" in lines[0]
    assert len(requests) > 3


@pytest.mark.parametrize(
    ("part", "stall", "words"), [(1, False, "it broke off$"), (2, True, "no data came for 1 s")]
)
def test_without_retry_a_broken_or_stalled_source_ends_at_once(part, stall, words, stream):
    lines = []
    with serve(Answer(stream[: len(stream) // part], stall=stall)) as (address, requests):
        source = open_source(f"{address}/live", 0.0, lines, stall=1.0)
        with pytest.raises(VideoError, match=words):
            list(source.frames())
    assert (lines, len(requests)) == ([], 1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HTML, "it sends no video"),
        (Answer(b""), "it sends no video"),
        (Answer(b"#EXTM3U\nfile:///etc/passwd\n"), "it sends no video"),
        (Answer(b"", stall=True), "no data came for 0.3 s"),
        (Answer(b"", status=404), "404"),
    ],
    ids=["page", "nothing", "playlist", "silent", "missing"],
)
def test_an_address_without_a_video_is_one_line(answer, words):
    stall = 0.3 if answer.stall else 600.0
    with serve(answer) as (address, _), pytest.raises(VideoError, match=words) as error:
        live.open_address(address.replace("//", "//me:secret@"), stall=stall)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_an_mp4_with_its_index_at_the_end_needs_a_server_with_ranges(tmp_path):
    noise = np.random.RandomState(0).randint(0, 256, (10, 240, 320, 3), np.uint8)
    path = encode(tmp_path / "a.mp4", [*noise], options={"crf": "10"})
    with serve(Answer(path.read_bytes(), "video/mp4")) as (address, _):
        connection = live.open_address(f"{address}/a.mp4")
        with pytest.raises(VideoError, match="index .*ranges"):
            next(connection.frames)


def test_a_camera_above_its_stated_rate_is_thinned():
    """Its frames would otherwise get later and later times."""
    pairs = ((k / 60, np.zeros((4, 4, 3), np.uint8)) for k in range(600))
    connection = live.Connection(30.0, True, pairs)
    source = live.StreamSource("camera", lambda: connection, retry=0.0)
    numbers = [frame.number for frame in source.frames()]
    assert numbers == list(range(len(numbers)))
    assert abs(len(numbers) - 300) < 35


def test_an_address_is_recognised_or_refused_without_its_password():
    assert all(map(live.is_address, ("rtsp://a/b", "HTTP://a")))
    assert not any(map(live.is_address, ("a.mp4", "0", "C:/a")))
    with pytest.raises(ValueError, match="http, https") as error:
        live.is_address("ftp://me:secret@host/a.mp4")
    assert "secret" not in str(error.value)
    assert live.name_address("rtsp://me:secret@cam.local:554/live/1?x=2") == "cam_local_554_live_1"


def test_a_captioned_video_keeps_rate_times_and_pixels(tmp_path):
    """The frame numbered 12 comes two frames late; sides are odd; a later frame is larger."""
    path = tmp_path / "new" / "out.mp4"
    writer = CaptionedVideo(path, 30000 / 1001)
    grey = np.full((145, 201, 3), 128, np.uint8)
    writer.write(10, grey, "")
    writer.write(11, grey, "Zähne putzen  93.1 %")
    writer.write(14, np.full((290, 402, 3), 128, np.uint8), "none")
    assert not path.exists()
    writer.close()
    writer.write(15, grey, "too late")
    assert sorted(file.name for file in path.parent.iterdir()) == ["out.mp4"]
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        frames = list(container.decode(stream))
    assert [round(frame.time * 30000 / 1001) for frame in frames] == [0, 1, 4]
    pixels = [frame.to_ndarray(format="rgb24") for frame in frames]
    assert {image.shape for image in pixels} == {(144, 200, 3)}
    assert np.abs(pixels[0].astype(int) - 128).max() < 6
    assert pixels[1][:8].max() > 200
    assert pixels[1][:8, :40].min() < 40
    assert np.abs(pixels[1][40:].astype(int) - 128).max() < 6
