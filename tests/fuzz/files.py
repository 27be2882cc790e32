"""Small intact videos and JPEG files, and mutations of them by seed."""

import io
import random
from pathlib import Path

import av
import numpy as np
from PIL import Image

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
NUMBERS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 65535, 65500 << 16, 1 << 24)


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
    picture, file = Image.fromarray(draw_frame(seed)), io.BytesIO()
    picture = picture.convert("L") if seed % 3 == 2 else picture
    picture.save(file, "JPEG", quality=80, progressive=bool(seed % 2))
    return file.getvalue()


def mutate_media(data: bytes, seed: int) -> bytes:
    """Makes one to four changes at random positions, half of them near the ends."""
    rng, changed = random.Random(seed), bytearray(data)
    for _ in range(rng.randint(1, 4)):
        size = len(changed)
        near = rng.choice((size, min(size, 1024)))
        position = rng.randrange(near)
        position = size - 1 - position if rng.random() < 0.3 else position
        length = min(rng.choice((1, 2, 8, 64, 512)), size - position)
        kind = rng.randrange(7)
        if kind == 0:
            changed[position] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[position : position + length] = rng.randbytes(length)
        elif kind == 2:
            changed[position : position + length] = bytes(length)
        elif kind == 3:
            changed[position : position + 4] = rng.choice(NUMBERS).to_bytes(4, "big")
        elif kind == 4:
            changed[position : position + 4] = rng.choice(NUMBERS).to_bytes(4, "little")
        elif kind == 5:
            changed[position:position] = changed[position : position + length]
        else:
            del changed[max(position, 64) :]
    return bytes(changed)


def write_mutated_videos(folder: Path, seeds: range) -> None:
    """Writes a damaged video for every seed, named by it, and an intact video of every form."""
    intact = [write_intact_video(folder / f"intact{v[0]}", k) for k, v in enumerate(VIDEOS)]
    for seed in seeds:
        index = seed % len(VIDEOS)
        path = folder / f"{seed:06d}{VIDEOS[index][0]}"
        path.write_bytes(mutate_media(intact[index], seed))
