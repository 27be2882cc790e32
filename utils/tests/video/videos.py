"""Small videos of many kinds for tests; every picture shows its number."""

import contextlib
import os
from fractions import Fraction

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from utils.video.decoders import open_video
from utils.video.libraries import load_library
from utils.video.pyav_reader import to_array
from utils.video.reader import VideoError

# The readers that are installed: decord is optional.
BACK_ENDS = tuple(reader for reader in ("pyav", "decord") if load_library(reader))
BITS = 7
H264 = {"x264-params": "scenecut=0"}
FILES = {  # name: codec, frames, group of pictures, B-frames, options
    "gop12.mp4": ("libx264", 60, 12, 2, H264),
    "gop250.mp4": ("libx264", 60, 250, 2, H264),
    "open.mp4": ("libx264", 90, 12, 3, {"x264-params": "scenecut=0:open-gop=1:keyint=12"}),
    "h264.avi": ("libx264", 60, 12, 2, H264),
    "mpeg4.mp4": ("mpeg4", 60, 12, 2, {}),
    "mpeg4.avi": ("mpeg4", 60, 12, 2, {}),
    "mpeg2.mpg": ("mpeg2video", 60, 12, 2, {}),
    "h264.mkv": ("libx264", 60, 12, 2, H264),
}


def picture(number, width, height):
    """A picture with the bits of `number` as black and white fields at the top."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    pixels[..., 2] = number * 37 % 256
    field = width // BITS
    for bit in range(BITS):
        pixels[: height // 2, bit * field : (bit + 1) * field] = 255 * (number >> bit & 1)
    return pixels


def read_bits(frames):
    """The numbers that `picture` wrote."""
    field = frames.shape[2] // BITS
    middle = frames[:, frames.shape[1] // 4, field // 2 : BITS * field : field]
    return ((middle.mean(axis=2) > 128) @ (1 << np.arange(BITS))).tolist()


def draw(path, codec="libx264", count=20, gop=12, b_frames=2, options=H264, size=(160, 120)):
    frames = [picture(number, *size) for number in range(count)]
    return encode(
        path, frames=frames, codec=codec, options=options, gop_size=gop, max_b_frames=b_frames
    )


def encode(
    path, frames, codec="libx264", options=None, pix_fmt="yuv420p", muxer=None, title="", **context
):
    """Writes frames, pictures (H, W, 3) or av.VideoFrame, at 25 a second; returns the path.

    `options` are the encoder's, `muxer` those of the container, `context` sets further attributes.
    """
    frames = [
        frame if isinstance(frame, av.VideoFrame) else av.VideoFrame.from_ndarray(frame, "rgb24")
        for frame in frames
    ]
    with av.open(str(path), "w", options=muxer) as container:
        if title:
            container.metadata["title"] = title
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width = frames[0].width
        stream.height = frames[0].height
        stream.pix_fmt = pix_fmt
        for name, value in context.items():
            setattr(stream.codec_context, name, value)
        for frame in frames:
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    leave_real_time()
    return path


def leave_real_time() -> None:
    """Gives this thread its ordinary priority again.

    SVT-AV1, run by root, raises that of the thread which opens the encoder. Every process that it
    starts later inherits it, and keeps all others from the cores while it waits busily.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def copy_packets(source, target, change=None, **options):
    """Copies the packets for which change(number, packet) is true; it may edit them.

    `options` are those of the container.
    """
    with av.open(str(source)) as reader, av.open(str(target), "w", options=options) as writer:
        stream = writer.add_stream_from_template(reader.streams.video[0])
        for k, packet in enumerate(p for p in reader.demux(video=0) if p.dts is not None):
            if change is None or change(k, packet):
                packet.stream = stream
                writer.mux(packet)
    return target


def delay_packets(seconds):
    """A change of `copy_packets` that moves all packets."""

    def change(_, packet):
        shift = round(seconds / float(packet.time_base))
        packet.pts += shift
        packet.dts += shift
        return True

    return change


def read_all(path, reader):
    """All frames, or the VideoError."""
    try:
        with open_video(path, reader) as source:
            return source.frames(range(len(source)))
    except VideoError as error:
        return error


def read_alike(path):
    """All frames, which are equal for all readers."""
    frames, *others = (read_all(path, reader) for reader in BACK_ENDS)
    assert all(np.array_equal(frames, other) for other in others)
    return frames


def decode_most(path, index=0):
    """All frames that FFmpeg gives of a video stream, past errors."""
    to_rgb = VideoReformatter()
    frames = []
    with av.open(str(path)) as container:
        for packet in container.demux(video=index):
            with contextlib.suppress(av.error.InvalidDataError):
                frames += [to_array(to_rgb, frame) for frame in packet.decode()]
    return np.stack(frames)


def write(path, pictures, codec="libx264", pix_fmt="yuv420p", stamps=None, **options):
    """Encodes pictures (H, W, 3), shown at `stamps` milliseconds, or 25 a second."""
    frames = [av.VideoFrame.from_ndarray(pixels, format="rgb24") for pixels in pictures]
    for k, frame in enumerate(frames):
        frame.pts = 40 * k if stamps is None else stamps[k]
        frame.time_base = Fraction(1, 1000)
    options = {"crf": "20", **options}
    return encode(
        path,
        frames=frames,
        codec=codec,
        options=options,
        pix_fmt=pix_fmt,
        time_base=Fraction(1, 1000),
    )


def pictures(count=40, width=96, height=64):
    return [picture(k, width, height) for k in range(count)]


def write_variable_rate(folder):
    """From 100 to 2 frames per second, as in phone and screen recordings."""
    gaps = np.random.RandomState(0).choice([10, 33, 40, 100, 500], 40)
    return write(folder / "variable.mp4", pictures(), stamps=[int(s) for s in np.cumsum(gaps)])


def write_late_webm(folder):
    """A variable rate that the file does not state, and the first frame after three seconds."""
    stamps = [40 * k for k in (0, 1, 2, 5, 6, 7, 20, 21, 22, 23, 24, 40, 41, 60, 61)]
    early = write(folder / "early.webm", pictures(len(stamps)), codec="libvpx-vp9", stamps=stamps)
    return copy_packets(early, folder / "late.webm", delay_packets(3))


def write_ten_hours(folder):
    """Three frames with hours between them: the header declares nine hundred thousand."""
    return write(folder / "long.mp4", pictures(3), stamps=[0, 18_000_000, 36_000_000])


def write_fragmented(folder):
    """Fragments without an index of frames, as live streams are stored."""
    muxer = {"movflags": "frag_keyframe+empty_moov"}
    return encode(folder / "fragments.mp4", frames=pictures(), muxer=muxer, gop_size=10)


def write_avi_without_index(folder):
    path = write(folder / "index.avi", pictures(), codec="mpeg4")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"idx1")])
    return path


def write_cut_open_group(folder):
    """Begins with pictures that refer to pictures before the cut."""
    whole = write(folder / "whole.mkv", pictures(60), **{"x264-params": "open-gop=1:keyint=12"})
    with av.open(str(whole)) as source:
        keys = [k for k, packet in enumerate(source.demux(video=0)) if packet.is_keyframe]
    return copy_packets(whole, folder / "cut.mkv", lambda k, packet: k >= keys[1])


def write_intra_refresh(folder):
    """Recovery points instead of IDR frames: the picture is refreshed column by column."""
    options = {"x264-params": "intra-refresh=1:keyint=20:bframes=0"}
    return write(folder / "refresh.mp4", pictures(60), **options)


ODD_VIDEOS = {
    "variable rate": write_variable_rate,
    "ten hours": write_ten_hours,
    "fragments": write_fragmented,
    "avi without index": write_avi_without_index,
    "intra refresh": write_intra_refresh,
    "odd size": lambda f: write(f / "odd.mp4", pictures(20, 97, 65), pix_fmt="yuv444p"),
    "one frame": lambda f: write(f / "one.mp4", pictures(1)),
    "two frames": lambda f: write(f / "two.mp4", pictures(2)),
    "grey": lambda f: write(f / "grey.mp4", pictures(20), pix_fmt="gray"),
    "full range": lambda f: write(f / "range.mp4", pictures(20), pix_fmt="yuvj420p"),
    "interlaced": lambda f: write(
        f / "fields.mp4", pictures(20, 96, 64), **{"x264-params": "tff=1:bframes=2"}
    ),
    "no B-frames": lambda f: write(f / "plain.mp4", pictures=pictures(), bf="0", g="8"),
    "pyramid": lambda f: write(
        f / "tree.mp4", pictures(), **{"x264-params": "b-pyramid=2:bframes=5"}
    ),
    "hevc": lambda f: write(
        f / "hevc.mp4", pictures(), "libx265", **{"x265-params": "log-level=0"}
    ),
    "vp9": lambda f: write(f / "vp9.webm", pictures=pictures(), codec="libvpx-vp9", g="10"),
    "vp8": lambda f: write(f / "vp8.webm", pictures=pictures(), codec="libvpx", g="10"),
    "late and variable": write_late_webm,
    "spaces and letters": lambda f: write(f / "ein Bär – 熊 (1).mp4", pictures(20)),
    "ten bits": lambda f: write(f / "ten.mp4", pictures(20), pix_fmt="yuv420p10le"),
}
