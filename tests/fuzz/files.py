"""Small intact videos and JPEG files, and mutations of the videos by seed."""

import io
from pathlib import Path

import av
import numpy as np
from PIL import Image

from tests.fuzz.damage import mutate

# Suffix of the file, codec, pixel format, options of the encoder and of the container.
VIDEOS = (
    (".mp4", "libx264", "yuv420p", {"g": "8"}, {}),
    (".mov", "libx264", "yuv420p", {"g": "250"}, {"movflags": "faststart"}),
    (".mkv", "libx265", "yuv420p", {"x265-params": "log-level=0:keyint=8"}, {}),
    (".avi", "mpeg4", "yuv420p", {"g": "8", "bf": "2"}, {}),
    (".webm", "libvpx-vp9", "yuv420p", {"g": "8", "cpu-used": "8"}, {}),
    (".ts", "mpeg2video", "yuv420p", {"g": "8", "bf": "2"}, {}),
    (".flv", "flv", "yuv420p", {"g": "8"}, {}),
    (".gif", "gif", "rgb8", {}, {}),
)


def draw_frame(number: int, side: int = 64) -> np.ndarray:
    """uint8 (side, side, 3): a gradient with noise, and a square that moves with `number`."""
    random_bytes = np.random.RandomState(number)
    pixels = random_bytes.randint(0, 40, (side, side, 3), np.uint8)
    pixels[..., 0] += np.linspace(0, 200, side).astype(np.uint8)
    position = number * 2 % (side - 16)
    pixels[position : position + 16, position : position + 16] = 255
    return pixels


def write_intact_video(path: Path, index: int, frames: int = 24) -> bytes:
    """Writes the video number `index` of VIDEOS at `path`; returns its bytes."""
    _, codec, pix_fmt, options, container_options = VIDEOS[index]
    with av.open(str(path), "w", options=container_options) as container:
        container.metadata["title"] = "a title"
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width = stream.height = 64
        stream.pix_fmt = pix_fmt
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(draw_frame(number), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def encode_intact_jpeg(seed: int) -> bytes:
    """Encodes a JPEG file of 64 x 64: baseline or progressive, in colour or grey."""
    picture = Image.fromarray(draw_frame(seed))
    file = io.BytesIO()
    picture = picture.convert("L") if seed % 3 == 2 else picture
    picture.save(file, "JPEG", quality=80, progressive=bool(seed % 2))
    return file.getvalue()


def write_mutated_videos(folder: Path, seeds: range) -> None:
    """Writes a damaged video for every seed, named by it, and an intact video of every form."""
    intact = [write_intact_video(folder / f"intact{v[0]}", k) for k, v in enumerate(VIDEOS)]
    for seed in seeds:
        index = seed % len(VIDEOS)
        path = folder / f"{seed:06d}{VIDEOS[index][0]}"
        path.write_bytes(mutate(intact[index], seed))
