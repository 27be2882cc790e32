"""Makes small videos for tests; every picture shows its number."""

import contextlib
import os
from fractions import Fraction

import av
import numpy as np
from av.video.reformatter import VideoReformatter

# The readers whose pixels are equal.
BACK_ENDS = ("pyav", "decord")
BITS = 7
H264 = {"x264-params": "scenecut=0"}
MILLISECOND = Fraction(1, 1000)


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


def pictures(count=40, width=96, height=64):
    return [picture(k, width, height) for k in range(count)]


def read_bits(frames):
    """The numbers that `picture` wrote."""
    field = frames.shape[2] // BITS
    middle = frames[:, frames.shape[1] // 4, field // 2 : BITS * field : field]
    return ((middle.mean(axis=2) > 128) @ (1 << np.arange(BITS))).tolist()


def draw(path, codec="libx264", count=20, gop=12, b_frames=2, options=H264, size=(160, 120)):
    """A video of numbered pictures, 25 a second; returns its path."""
    frames = pictures(count, *size)
    return encode(
        path, frames=frames, codec=codec, options=options, gop_size=gop, max_b_frames=b_frames
    )


def write(path, pictures, codec="libx264", pix_fmt="yuv420p", stamps=None, **options):
    """Encodes pictures (H, W, 3), shown at `stamps` milliseconds, or 25 a second."""
    stamps = range(0, 40 * len(pictures), 40) if stamps is None else stamps
    frames = stamp_frames(pictures, stamps, MILLISECOND)
    options = {"crf": "20", **options}
    return encode(
        path, frames, codec=codec, options=options, pix_fmt=pix_fmt, time_base=MILLISECOND
    )


def stamp_frames(pictures, stamps, unit):
    """Frames of pictures with time stamps, in units of `unit` seconds."""
    frames = [av.VideoFrame.from_ndarray(pixels, format="rgb24") for pixels in pictures]
    for frame, stamp in zip(frames, stamps):
        frame.pts = int(stamp)
        frame.time_base = unit
    return frames


def encode(
    path,
    frames,
    codec="libx264",
    options=None,
    pix_fmt="yuv420p",
    muxer=None,
    rate=25,
    **context,
):
    """Writes frames, pictures (H, W, 3) or av.VideoFrame; returns the path.

    `options` are the encoder's, `muxer` those of the container, `context` sets further attributes.
    """
    frames = [
        frame if isinstance(frame, av.VideoFrame) else av.VideoFrame.from_ndarray(frame, "rgb24")
        for frame in frames
    ]
    with av.open(str(path), "w", options=muxer) as container:
        stream = container.add_stream(codec, rate=rate, options=options)
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


def copy_packets(source, target, change=None, edit=None, **options):
    """Copies the packets for which change(number, packet) is true; it may edit their stamps.

    `edit(number, data)` returns the new bytes of a packet. `options` are those of the container.
    """
    with av.open(str(source)) as reader, av.open(str(target), "w", options=options) as writer:
        stream = writer.add_stream_from_template(reader.streams.video[0])
        for k, packet in enumerate(p for p in reader.demux(video=0) if p.dts is not None):
            if change is None or change(k, packet):
                copy = packet if edit is None else av.Packet(edit(k, bytes(packet)))
                copy.pts = packet.pts
                copy.dts = packet.dts
                copy.time_base = packet.time_base
                copy.is_keyframe = packet.is_keyframe
                copy.stream = stream
                writer.mux(copy)
    return target


def append_packets(target, *sources):
    """One file of the packets of several ones with 25 frames per second, one after another."""
    first = 0
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(av.open(str(source))) for source in sources]
        writer = stack.enter_context(av.open(str(target), "w"))
        stream = writer.add_stream_from_template(readers[0].streams.video[0])
        for reader in readers:
            unit = float(reader.streams.video[0].time_base)
            packets = [packet for packet in reader.demux(video=0) if packet.size]
            for packet in packets:
                packet.pts = first + round(packet.pts * unit * 25)
                packet.dts = first + round(packet.dts * unit * 25)
                packet.duration = 1
                packet.time_base = Fraction(1, 25)
                packet.stream = stream
                writer.mux(packet)
            first += len(packets)
    return target


def cut(path, start, seconds=0.0, suffix=""):
    """A copy from the packet `start` on, moved by `seconds`."""

    def change(number, packet):
        shift = round(seconds / float(packet.time_base))
        packet.pts += shift
        packet.dts += shift
        return number >= start

    target = path.with_name(f"cut_{start}_{seconds}_{path.stem}{suffix or path.suffix}")
    return copy_packets(path, target, change)


def write_variable_rate(folder):
    """From 100 to 2 frames per second, as in phone and screen recordings."""
    gaps = np.random.RandomState(0).choice([10, 33, 40, 100, 500], 40)
    return write(folder / "variable.mp4", pictures(), stamps=np.cumsum(gaps))


def decode_with_stamps(path):
    """All frames that FFmpeg gives, past errors, and the time stamp of each in seconds, or None.

    Frames of another size than the first one are scaled by FFmpeg's default, SWS_BICUBIC.
    """
    to_rgb = VideoReformatter()
    frames = []
    stamps = []
    size = None
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            # The decoder refuses an empty packet; the program `ffmpeg` leaves it out.
            with contextlib.suppress(av.error.InvalidDataError, av.error.ArgumentError):
                for frame in packet.decode():
                    size = size or (frame.width, frame.height)
                    flags = None if (frame.width, frame.height) == size else 4
                    rgb = to_rgb.reformat(
                        frame, *size, format="rgb24", interpolation=flags, threads=1
                    )
                    frames.append(rgb.to_ndarray())
                    stamps.append(frame.time)
    return np.stack(frames), stamps
