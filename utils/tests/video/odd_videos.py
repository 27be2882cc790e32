"""Writes unusual video files for tests: variable rates, late starts, odd sizes, other codecs."""

from fractions import Fraction

import av
import numpy as np

from utils.tests.video.video_files import copy_packets, encode, picture


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
    path = folder / "late.webm"
    with av.open(str(early)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.pts += 3000
                packet.dts += 3000
                packet.stream = stream
                target.mux(packet)
    return path


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
