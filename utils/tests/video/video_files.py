"""Writes small video files for tests: pictures that show their number, in many containers."""

import av
import numpy as np

from utils.video.libraries import load_library

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
    return path


def copy_packets(source, target, change):
    """Copies the packets for which change(number, packet) is true; it may edit them."""
    with av.open(str(source)) as reader, av.open(str(target), "w") as writer:
        stream = writer.add_stream_from_template(reader.streams.video[0])
        for k, packet in enumerate(p for p in reader.demux(video=0) if p.dts is not None):
            if change(k, packet):
                packet.stream = stream
                writer.mux(packet)
    return target
