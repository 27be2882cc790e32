"""Generators of damaged files: small sound ones, and what a seed makes of them."""

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


def moving_picture(number: int, side: int = 64) -> np.ndarray:
    """uint8 (side, side, 3): a gradient with some noise, and a square that moves on."""
    random_bytes = np.random.RandomState(number)
    pixels = random_bytes.randint(0, 40, (side, side, 3), np.uint8)
    pixels[..., 0] += np.linspace(0, 200, side).astype(np.uint8)
    position = number * 2 % (side - 16)
    pixels[position : position + 16, position : position + 16] = 255
    return pixels


def sound_video(path: Path, which: int, frames: int = 24) -> bytes:
    """Writes the video number `which` of VIDEOS at `path`; returns its bytes."""
    _, codec, pix_fmt, options, container_options = VIDEOS[which]
    with av.open(str(path), "w", options=container_options) as container:
        container.metadata["title"] = "a title"
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width = stream.height = 64
        stream.pix_fmt = pix_fmt
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(moving_picture(number), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def sound_image(seed: int) -> bytes:
    """A JPEG file of 64 x 64: baseline or progressive, in colour or grey."""
    picture, file = Image.fromarray(moving_picture(seed)), io.BytesIO()
    picture = picture.convert("L") if seed % 3 == 2 else picture
    picture.save(file, "JPEG", quality=80, progressive=bool(seed % 2))
    return file.getvalue()


def mutated(data: bytes, seed: int) -> bytes:
    """One to four changes at places that the seed draws, half of them near the ends."""
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
    """A damaged video for every seed, named by it; each form in its turn."""
    sound = [sound_video(folder / f"sound{each[0]}", k) for k, each in enumerate(VIDEOS)]
    for seed in seeds:
        which = seed % len(VIDEOS)
        path = folder / f"{seed:06d}{VIDEOS[which][0]}"
        path.write_bytes(mutated(sound[which], seed))
