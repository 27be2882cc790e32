"""Files as people have them: covers, mirrored and cut recordings, hidden frames, late starts.

The frames are those that FFmpeg decodes of the stream that it chooses, in every reader.
"""

import contextlib
import math
import struct
from fractions import Fraction

import av
import numpy as np
import pytest
from av.stream import Disposition

from scripts.data.prepare.integrity import Finding, VideoJob, examine
from tests.field_videos import write_field_video
from tests.video_server import Answer, serve
from utils.tests.video.videos import (
    BACK_ENDS,
    append_packets,
    copy_packets,
    cut,
    decode_with_stamps,
    draw,
    encode,
    picture,
    pictures,
    read_bits,
    stamp_frames,
    write,
    write_variable_rate,
)
from utils.video.decoders import open_video
from utils.video.live import StreamSource, open_address
from utils.video.packets import find_vop_types
from utils.video.reader import Segment, VideoError

HEVC = {"x265-params": "log-level=0:keyint=12:min-keyint=12:open-gop=1:bframes=3:repeat-headers=1"}
OPEN = {"x264-params": "scenecut=0:open-gop=1:keyint=12"}
REPEATED = {"x264-params": "scenecut=0:keyint=12:repeat-headers=1"}
# A segment of JPEG that says: turn it clockwise by a quarter.
EXIF = bytes.fromhex("ffe1 0022 4578696600004d4d002a0000000800010112000300000001000600000000 0000")
REFRESH = {"x264-params": "intra-refresh=1:keyint=20:bframes=0"}


def hide_frames(path, hidden):
    """A copy of a VP8 file in which frames are not shown, as an encoder hides golden frames."""

    def hide(number, data):
        return bytes([data[0] & (0xEF if number in hidden else 0xFF)]) + data[1:]

    return copy_packets(path, path.with_name(f"hidden{path.suffix}"), edit=hide)


def join(path, *seconds):
    """Copies of a file, which start at these times, one after another in one file."""
    target = path.with_name(f"joined{path.suffix}")
    target.write_bytes(b"".join(cut(path, 0, seconds=start).read_bytes() for start in seconds))
    return target


def draw_gif(path, count):
    return encode(path, frames=pictures(count, 160, 120), codec="gif", pix_fmt="rgb8")


def write_late_webm(folder):
    """A variable rate that the file does not state, and the first frame after three seconds."""
    stamps = [40 * k for k in (0, 1, 2, 5, 6, 7, 20, 21, 22, 23, 24, 40, 41, 60, 61)]
    return cut(write(folder / "a.webm", pictures(15), codec="libvpx-vp9", stamps=stamps), 0, 3)


def write_avi_without_index(folder):
    path = write(folder / "index.avi", pictures(), codec="mpeg4")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"idx1")])
    return path


def cut_bytes(path, start, end):
    """A file without its first and its last bytes, by fractions of its size."""
    data = path.read_bytes()
    path.write_bytes(data[int(start * len(data)) : int(end * len(data))])
    return path


def change_parameters(folder, codec, suffix, option, plain, other):
    """Parameter sets that change with the second of three parts, and that the third one lacks."""
    parts = []
    for number, more in enumerate(("", f":{other}:repeat-headers=1", f":{other}")):
        path = folder / f"{number}.mp4"
        parts.append(draw(path, codec, count=24, options={option: plain + more}))
    return append_packets(folder / f"joined{suffix}", *parts)


def hide_change(path):
    """No packet with other parameter sets is called a key frame."""

    def change(number, packet):
        packet.is_keyframe &= not 24 <= number < 48
        return True

    return copy_packets(path, path.with_name(f"hidden{path.suffix}"), change)


def call_all_key_frames(path):
    def change(_, packet):
        packet.is_keyframe = True
        return True

    return copy_packets(path, path.with_name("keys.mp4"), change)


def pack_b_pictures(path):
    """An AVI as of XviD: a packet has a picture and the B-picture before it, also the last one."""
    plain = draw(path.with_name("plain.avi"), "mpeg4", 21, b_frames=1, options={})
    with av.open(str(plain)) as container:
        data = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    for k in range(1, len(data) - 1):
        if find_vop_types(data[k + 1]) == [2]:
            data[k] += data[k + 1]
            data[k + 1] = b"\0\0\1\xb6\x51\xcf"
    data[0] = data[0].replace(b"\0\0\1\xb6", b"\0\0\1\xb2DivX503b1393p\0\0\1\xb6", 1)
    return copy_packets(plain, path, lambda k, _: k < len(data) - 1, edit=lambda k, _: data[k])


def change_size(path, codec):
    parts = (
        draw(path.with_name(f"{width}{path.suffix}"), codec, b_frames=0, options={}, size=size)
        for width, *size in ((160, 160, 120), (96, 96, 64))
    )
    return append_packets(path, *parts)


X264 = ("libx264", ".mp4", "x264-params", "scenecut=0", "chroma-qp-offset=9:cabac=0")
X265 = ("libx265", ".mkv", "x265-params", "log-level=0:bframes=2", "cbqpoffs=9:sao=0")
VP8 = {"g": "12"}
UNSTEADY = [40 * k - 12 * (k in range(5, 40, 5)) for k in range(40)]  # by less than half a frame
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
SLICED = {"threads": "2"}  # on any machine: with one thread the copied stamps are refused
KINDS = {
    "inside a group, MP4": lambda f: cut(draw(f / "a.mp4", count=40), 3),
    "inside a group, MPEG-TS": lambda f: cut(draw(f / "a.ts", count=40, options=REPEATED), 3),
    "inside a group, MPEG-2": lambda f: cut(draw(f / "a.mpg", "mpeg2video", 40, options=SLICED), 4),
    "inside a group, AVI": lambda f: cut(draw(f / "a.avi", "mpeg4", 40, options={}), 5),
    "cut MPEG-2": lambda f: cut_bytes(draw(f / "a.mpg", "mpeg2video", 60, options={}), 0.3, 1),
    "open group": lambda f: draw(f / "a.mp4", count=40, b_frames=3, options=OPEN),
    "open group, HEVC": lambda f: cut(draw(f / "a.mkv", "libx265", 40, options=HEVC), 11),
    "open group, MPEG-2": lambda f: cut(draw(f / "a.mkv", "mpeg2video", 40, options={}), 10),
    "hidden VP8": lambda f: hide_frames(draw(f / "a.webm", "libvpx", 40, options=VP8), {5, 17, 38}),
    "hidden by an edit list": lambda f: cut(draw(f / "a.mp4", count=40), 0, seconds=-5 / 25),
    "late Matroska": lambda f: cut(draw(f / "a.mkv", count=40), 0, seconds=2),
    "late MPEG-TS": lambda f: cut(draw(f / "a.ts", count=40), 0, seconds=20_000),
    "late and variable": write_late_webm,
    "early Ogg": lambda f: cut(
        draw(f / "a.webm", "libvpx", 60, options=VP8), 0, seconds=-1, suffix=".ogv"
    ),
    "variable rate": write_variable_rate,
    "unsteady rate": lambda f: write(f / "a.flv", pictures(), stamps=UNSTEADY),
    "ten hours": lambda f: write(f / "a.mp4", pictures(3), stamps=[0, 18_000_000, 36_000_000]),
    "GIF": lambda f: draw_gif(f / "a.gif", 5),
    "AVI with times of decoding": lambda f: draw(f / "a.avi", count=40),
    "AVI without an index": write_avi_without_index,
    "AVI with dropped frames": lambda f: write(
        f / "a.avi", pictures(4), "mpeg4", stamps=[0, 400, 800, 1560]
    ),
    "ASF with times of decoding": lambda f: draw(f / "a.asf", count=40),
    "joined MPEG-TS": lambda f: join(draw(f / "a.ts", count=20), 0, 300),
    "joined MPEG-TS, back in time": lambda f: join(draw(f / "a.ts", count=20), 300, 0),
    "parameter sets change, H.264": lambda f: change_parameters(f, *X264),
    "parameter sets change, HEVC": lambda f: change_parameters(f, *X265),
    "parameter sets change unmarked": lambda f: hide_change(
        change_parameters(f, "libx265", ".mp4", *X265[2:])
    ),
    "all key frames, MPEG-4": lambda f: call_all_key_frames(draw(f / "a.mp4", "mpeg4", options={})),
    "all key frames, HEVC": lambda f: call_all_key_frames(
        draw(f / "a.mp4", "libx265", 40, options=HEVC)
    ),
    "packed AVI": lambda f: pack_b_pictures(f / "a.avi"),
    "size changes, VP8": lambda f: change_size(f / "a.webm", "libvpx"),
    "size changes, MPEG-4": lambda f: change_size(f / "a.avi", "mpeg4"),
    "fields, MP4": lambda f: write_field_video(f / "a.mp4", 24),
    "fields and frames, MP4": lambda f: write_field_video(f / "a.mp4", 24, whole=3),
    "interlaced": lambda f: write(f / "a.mp4", pictures(20), **{"x264-params": "tff=1:bframes=2"}),
    "fragments": lambda f: encode(f / "a.mp4", pictures(), muxer=FRAGMENTS, gop_size=10),
    "intra refresh": lambda f: write(f / "a.mp4", pictures(60), **REFRESH),
    "pyramid": lambda f: write(f / "a.mp4", pictures(), **{"x264-params": "b-pyramid=2:bframes=5"}),
    "odd size": lambda f: write(f / "a.mp4", pictures(20, 97, 65), pix_fmt="yuv444p"),
    "one frame": lambda f: write(f / "a.mp4", pictures(1)),
    "grey": lambda f: write(f / "a.mp4", pictures(20), pix_fmt="gray"),
    "full range": lambda f: write(f / "a.mp4", pictures(20), pix_fmt="yuvj420p"),
    "ten bits": lambda f: write(f / "a.mp4", pictures(20), pix_fmt="yuv420p10le"),
    "spaces and letters": lambda f: write(f / "ein Bär – 熊 (1).mp4", pictures(20)),
    "MPEG-4": lambda f: draw(f / "a.mp4", "mpeg4", 40, options={}),
    "VP9": lambda f: write(f / "a.webm", pictures(), "libvpx-vp9", g="10"),
    "AV1": lambda f: draw(f / "a.mkv", "libsvtav1", 20, options={"preset": "12"}),
}
for _size in ((144, 176), (48, 50), (34, 34)):  # decord pads their rows
    KINDS[f"{_size}"] = lambda f, size=_size: draw(f / "a.mp4", count=3, size=size)
# The FFmpeg versions of both libraries give different colours for these.
COLOURS = {"interlaced", "ten bits"}
# Their time stamps wrap around, or are not those of 25 frames a second; or a segment, which reads
# key frames only, does not see that parameter sets changed before it.
UNSURE = {"early Ogg", "AVI with dropped frames", "parameter sets change unmarked"}


def assert_frames(frames, expected, tolerance):
    assert frames.shape == expected.shape
    assert np.abs(frames.astype(int) - expected).mean(axis=(1, 2, 3)).max(initial=0) <= tolerance


def find_times(path, stamps):
    """Seconds at which frames are shown; 25 a second if the file has no such stamps."""
    is_timed = path.suffix not in (".avi", ".asf") and None not in stamps
    steps = np.diff(stamps) if is_timed else np.empty(0)
    is_joined = path.suffix == ".ts" and steps.max(initial=0) > 10
    if not is_timed or is_joined or steps.min(initial=1) <= 0:
        return np.arange(len(stamps)) / 25
    return np.array(stamps) - stamps[0]


@pytest.mark.parametrize("name", KINDS)
def test_frames_and_their_number_are_those_that_ffmpeg_gives(name, tmp_path):
    if name == "ten hours" and av.library_versions["libavformat"] < (62,):
        pytest.skip("FFmpeg 7 misreads such a file itself")
    path = KINDS[name](tmp_path)
    expected, stamps = decode_with_stamps(path)
    times = find_times(path, stamps)
    count = len(expected)
    rng = np.random.RandomState(1)
    draws = [rng.randint(count, size=9), np.sort(rng.randint(count, size=5))]
    limits = np.sort(rng.uniform(0, times[-1] + 0.04, (3, 2)))
    for reader in BACK_ENDS:
        tolerance = 2 if name in COLOURS and reader != "pyav" else 0
        with open_video(path, reader) as video:
            assert len(video) == count
            for numbers in ([count - 1], [count - 1, 0, count // 2], *draws):
                assert_frames(video.frames(numbers), expected[numbers], tolerance)
            assert_frames(np.stack(list(video.in_order())), expected, tolerance)
            if video.times is None and count > 1 and name not in UNSURE:
                assert video.fps == pytest.approx((count - 1) / times[-1], rel=0.1)
        finding = ("truncated", 0) if name == "AVI without an index" else ("good", count)
        for depth in ("all", "ends"):
            assert examine(VideoJob(str(path), reader, depth))[::2] == finding
        for start, end in ((0.2, 0.4), *limits) if name not in UNSURE else ():
            inside = (times >= start - 0.0005) & (times < end - 0.0005)
            with contextlib.suppress(VideoError):
                with open_video(path, reader, segment=Segment(start, end)) as video:
                    frames = video.frames(range(len(video)))
                assert_frames(frames, expected[inside], tolerance)
                continue
            assert not inside.any()
    with serve(Answer(path.read_bytes(), "video/x")) as (address, _):
        source = StreamSource("a", lambda: open_address(f"{address}/a"), retry=0.0)
        frames = []
        with contextlib.suppress(VideoError):  # the end, if the duration is unknown
            frames.extend(source.frames())
    np.testing.assert_array_equal(np.stack([frame.pixels for frame in frames]), expected)
    if name not in UNSURE:
        np.testing.assert_allclose([frame.seconds for frame in frames], times, atol=0.002)


def test_a_video_without_a_key_frame_is_refused(tmp_path):
    path = cut(draw(tmp_path / "b.mp4", count=20, gop=250), 3)
    for reader in BACK_ENDS:
        with pytest.raises(VideoError, match="none of its frames"):
            open_video(path, reader)
    assert examine(VideoJob(str(path))).kind == "broken"


def rotate(degrees, mirror=1):
    angle = math.radians(degrees)
    sine = math.sin(angle)
    cosine = math.cos(angle)
    return mirror * cosine, mirror * sine, -sine, cosine


MATRICES = {  # (a, b, c, d), whether it mirrors, quarters clockwise
    "none": ((1, 0, 0, 1), False, 0),
    "90": ((0, 1, -1, 0), False, 1),
    "180": ((-1, 0, 0, -1), False, 2),
    "270": ((0, -1, 1, 0), False, 3),
    "left and right": ((-1, 0, 0, 1), True, 0),
    "up and down": ((1, 0, 0, -1), True, 2),
    "transposed": ((0, 1, 1, 0), True, 3),
    "transversed": ((0, -1, -1, 0), True, 1),
    "2": (rotate(2), False, 0),
    "88": (rotate(88), False, 1),
    "mirrored 2": (rotate(2, -1), True, 0),
    "zero": ((0, 0, 0, 0), False, 0),
    "a line": ((1, 0, 0, 0), False, 0),
}


def write_matrix(path, matrix, target):
    """A copy of an MP4 with another matrix in its track header."""
    data = bytearray(path.read_bytes())
    a, b, c, d = (round(value * 2**16) for value in matrix)
    struct.pack_into(">5i", data, data.index(b"tkhd") + 44, a, b, 0, c, d)
    target.write_bytes(data)
    return target


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("plain") / "plain.mp4", count=4, b_frames=0)


@pytest.mark.parametrize("name", MATRICES)
def test_a_display_matrix_mirrors_and_turns_by_quarters(name, plain, tmp_path):
    """In MP4 and Matroska, in files and at addresses."""
    matrix, mirrored, turns = MATRICES[name]
    path = write_matrix(plain, matrix, tmp_path / "turned.mp4")
    frames, _ = decode_with_stamps(plain)
    frames = np.rot90(frames[:, :, ::-1] if mirrored else frames, -turns, axes=(1, 2))
    copy = copy_packets(path, tmp_path / "turned.mkv")
    for file in (path, copy):
        for reader in BACK_ENDS:
            with open_video(file, reader) as video:
                np.testing.assert_array_equal(video.frames([0, 3]), frames[[0, 3]])
    with serve(Answer(path.read_bytes(), "video/mp4")) as (address, _):
        source = StreamSource("turned", lambda: open_address(f"{address}/a.mp4"), retry=0.0)
        shown = np.stack([frame.pixels for frame in source.frames()])
    np.testing.assert_array_equal(shown, frames)


def test_an_orientation_in_the_h264_stream_is_followed_too(plain, tmp_path):
    path = tmp_path / "sei.mp4"
    with av.open(str(plain)) as source, av.open(str(path), "w") as new:
        stream = new.add_stream_from_template(source.streams.video[0])
        change = "h264_metadata=display_orientation=insert:rotate=0:flip=horizontal"
        bits = av.bitstream.BitStreamFilterContext(change, source.streams.video[0])
        for packet in source.demux(video=0):
            for changed in bits.filter(packet if packet.size else None):
                changed.stream = stream
                new.mux(changed)
    expected = decode_with_stamps(plain)[0][[0, 3], :, ::-1]
    for reader in BACK_ENDS:
        with open_video(path, reader) as video:
            np.testing.assert_array_equal(video.frames([0, 3]), expected)
            np.testing.assert_array_equal(video.frames([2, 3])[1], expected[1])


def test_an_orientation_in_the_exif_data_of_motion_jpeg_is_followed(tmp_path):
    """FFmpeg gives EXIF data with each frame, of a kind that PyAV does not know."""
    path = encode(tmp_path / "plain.avi", pictures(4), codec="mjpeg", pix_fmt="yuvj420p")
    turned = tmp_path / "exif.avi"
    copy_packets(path, turned, edit=lambda number, data: data[:2] + EXIF + data[2:])
    expected = np.rot90(decode_with_stamps(path)[0], -1, axes=(1, 2))
    for reader in BACK_ENDS:
        with open_video(turned, reader) as video:
            np.testing.assert_array_equal(video.frames(range(4)), expected)


VIDEO = ("libx264", (160, 120), 20, 0, None)
SMALL = ("libx264", (80, 60), 10, 30, None)
COVER = ("mjpeg", (320, 240), 1, 99, Disposition.attached_pic)
STILL = ("mjpeg", (320, 240), 1, 99, None)
THUMBNAILS = ("mjpeg", (320, 240), 5, 99, None)
STREAMS = {
    "cover first": ("mp4", [COVER, VIDEO]),
    "a still": ("mkv", [STILL, VIDEO]),
    "thumbnails": ("mov", [THUMBNAILS, VIDEO]),
    "the larger one": ("mkv", [SMALL, VIDEO]),
    "the default one": ("mkv", [(*SMALL[:4], 0), (*VIDEO[:4], Disposition.default)]),
}


def write_streams(path, streams):
    """`streams` are (codec, size, frames, first number, disposition)."""
    with av.open(str(path), "w") as container:
        made = []
        for codec, (width, height), *_, disposition in streams:
            stream = container.add_stream(codec, rate=25)
            stream.width = width
            stream.height = height
            stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            if disposition is not None:
                stream.disposition = disposition
            made.append(stream)
        for stream, (_, size, count, first, _) in zip(made, streams):
            for number in range(first, first + count):
                frame = av.VideoFrame.from_ndarray(picture(number, *size), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return path


@pytest.mark.parametrize("name", STREAMS)
def test_the_video_stream_is_no_picture(name, tmp_path):
    suffix, streams = STREAMS[name]
    path = write_streams(tmp_path / f"a.{suffix}", streams)
    for reader in BACK_ENDS:
        with open_video(path, reader) as video:
            assert read_bits(video.frames(range(len(video)))) == list(range(20))
        with open_video(path, reader, segment=Segment(0.2, 0.4)) as video:
            assert read_bits(video.frames([0, 4])) == [5, 9]
        for depth in ("all", "ends"):
            assert examine(VideoJob(str(path), reader, depth))[::2] == ("good", 20)
    with serve(Answer(path.read_bytes(), "video/x")) as (address, _):
        source = StreamSource("a", lambda: open_address(f"{address}/a"), retry=0.0)
        frames = np.stack([frame.pixels for frame in source.frames()])
    assert read_bits(frames) == list(range(20))


RARE = [*range(25), *range(25, 650, 25)]  # times in 1/25 second: 25 frames a second, then one
LONG_END = [*range(30), 130]  # the gap is before the last frame


@pytest.mark.parametrize("times", [RARE, LONG_END], ids=["rare", "long end"])
@pytest.mark.parametrize("suffix", [".wmv", ".avi", ".mkv", ".mp4", ".ts"])
def test_a_video_whose_frames_become_rare_is_complete(suffix, times, tmp_path):
    """In ASF, the times in the last packets are those of earlier pictures."""
    source = tmp_path / f"rare{suffix}"
    frames = stamp_frames(pictures(len(times), 64, 64), times, Fraction(1, 25))
    encode(source, frames, time_base=Fraction(1, 25))
    assert examine(VideoJob(str(source))) == Finding("good", "", len(times))
    content = source.read_bytes()
    source.write_bytes(content[: len(content) // 2])
    if suffix != ".ts":  # which declares no duration
        assert examine(VideoJob(str(source))).kind in ("truncated", "damaged")
