"""Encodes videos for packs: H.264 with short groups of pictures, at a small size.

No MindSpore here: worker processes start fast and stay small.
"""

import zlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple, Optional, Union

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from scripts.data.integrity import DAMAGED, GOOD, Finding, VideoJob, examine
from utils.data.packed.format import KEY, NON_REFERENCE, REFERENCE, PacketTable
from utils.data.packed.reader import USE_FOLDERS, PackedVideo, PackLocation
from utils.video.pyav_reader import convert_format
from utils.video.reader import FrameReader, VideoError, reading
from utils.video.transforms import scale_short_side

MAX_QUALITY = 51  # of x264's constant rate factor
# x264 settings with which the same frames give the same bytes every time.
DETERMINISTIC = "rc-lookahead=0:mbtree=0:lookahead-threads=1:cpu-independent=1"
SLICE_TYPES = (1, 5)  # H.264 NAL units: a slice of a picture, and of an IDR picture


class EncodeOptions(NamedTuple):
    """How videos are encoded."""

    short_side: int  # pixels; larger videos are downscaled to it; 0: all keep their size
    gop: int  # pictures from one key frame to the next
    quality: int  # constant rate factor, 0 to 51, lower is better


def build_encode_options(
    *, codec: str = "video", short_side: int = 256, gop: int = 12, quality: int = 18
) -> EncodeOptions:
    """EncodeOptions from the command line."""
    if codec != "video":
        raise ValueError(f"--codec {codec}: packs are H.264 only; for images, {USE_FOLDERS}")
    if not 0 <= quality <= MAX_QUALITY:
        raise ValueError(f"--quality is 0 to {MAX_QUALITY}, not {quality}")
    for name, value, least in (("short_side", short_side, 0), ("gop", gop, 1)):
        if value < least:
            raise ValueError(f"--{name} must be at least {least}, not {value}")
    return EncodeOptions(short_side, gop, quality)


class EncodedVideo(NamedTuple):
    """The bytes of a packed video; `psnr` compares three frames with the original, in dB."""

    head: bytes
    payload: bytes
    frames: int
    psnr: float  # infinite for equal pixels

    @property
    def crc(self) -> int:
        return zlib.crc32(self.payload, zlib.crc32(self.head))


def pack_video(task: tuple[Any, VideoJob, EncodeOptions]) -> Union[EncodedVideo, Finding]:
    """Encodes the video of a task (key, job, options); returns the reason if it is unreadable."""
    _, job, options = task
    try:
        finding = examine(job)
        if finding.kind not in (GOOD, DAMAGED):
            return finding
        with job.open() as video, reading(job.path, video.reader):
            return encode(video, job, options)
    except VideoError as error:
        return Finding("broken", error.args[-1])


def encode(video: FrameReader, job: VideoJob, options: EncodeOptions) -> EncodedVideo:
    """Encodes all frames, then decodes three of them and compares their pixels."""
    probes: dict[int, np.ndarray] = {}
    frames = prepare_frames(video, options, probes)
    packets = list(encode_h264(frames, options))
    height, width = probes[0].shape[:2]
    numbers, kinds = (np.array(column) for column in zip(*(packet[1:] for packet in packets)))
    sizes = np.array([len(data) for data, *_ in packets])
    checksums = np.array([zlib.crc32(data) for data, *_ in packets])
    head = PacketTable(
        height,
        width=width,
        frames=len(video),
        fps=video.fps,
        sizes=sizes,
        numbers=numbers,
        kinds=kinds,
        checksums=checksums,
    ).encode()
    payload = b"".join(data for data, *_ in packets)
    psnr = compare_with_original(job, head=head, payload=payload, originals=probes)
    return EncodedVideo(head, payload=payload, frames=len(video), psnr=psnr)


def probe_frames(length: int) -> list[int]:
    """The frames by which a copy is compared with its original."""
    return sorted({0, length // 2, length - 1})


def prepare_frames(
    video: FrameReader, options: EncodeOptions, probes: dict[int, np.ndarray]
) -> Iterator[np.ndarray]:
    """All frames, downscaled, `probe_frames` also in `probes`; VideoError for several sizes."""
    shape = None
    probed = probe_frames(len(video))
    for number, frame in enumerate(video.in_order()):
        shape = shape or frame.shape
        if frame.shape != shape:
            raise VideoError(video.path, video.reader, f"frames {shape} and {frame.shape}")
        frame = downscale(frame, options.short_side)
        if number in probed:
            probes[number] = frame
        yield frame


def downscale(frame: np.ndarray, short_side: int, even: bool = True) -> np.ndarray:
    """A frame with this short side, if it is larger; 0 keeps its size. H.264 needs even sides."""
    height, width = frame.shape[:2]
    if not short_side or min(width, height) <= short_side:
        return frame
    size = scale_short_side(width, height, short_side)
    if even:
        size = [side + side % 2 for side in size]
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


def encode_h264(
    frames: Iterator[np.ndarray], options: EncodeOptions
) -> Iterator[tuple[bytes, int, int]]:
    """(packet, frame number, kind) in decoding order.

    Every group of pictures is closed. Between two reference frames are two non-reference frames,
    which a reader can leave out. The tuning for fast decoding turns off arithmetic coding and the
    loop filter; psychovisual optimisation (psy) is off.
    """
    encoder = None
    for number, frame in enumerate(frames):
        height, width = frame.shape[:2]
        encoder = encoder or open_encoder(width, height, options)
        if encoder.pix_fmt == "yuv420p":
            video_frame = to_yuv420p(frame)
        else:
            rgb = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            video_frame = convert_format(VideoReformatter(), rgb, encoder.pix_fmt)
        video_frame.pts = number
        video_frame.time_base = encoder.time_base
        yield from map(describe_packet, encoder.encode(video_frame))
    yield from map(describe_packet, encoder.encode(None))


def to_yuv420p(frame: np.ndarray) -> av.VideoFrame:
    """A picture of RGB pixels, always the same: FFmpeg's scaler reads past narrow frames' edges."""
    planes = cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420)
    return av.VideoFrame.from_ndarray(planes, format="yuv420p")


def open_encoder(width: int, height: int, options: EncodeOptions) -> av.VideoCodecContext:
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width = width
    encoder.height = height
    # yuv420p halves the resolution of colours, so it needs even sides.
    encoder.pix_fmt = "yuv444p" if width % 2 or height % 2 else "yuv420p"
    # Only the order counts
    encoder.framerate = Fraction(25)
    encoder.time_base = Fraction(1, 25)
    encoder.thread_count = 1  # many workers encode at once
    groups = f"keyint={options.gop}:min-keyint={options.gop}:scenecut=0:open-gop=0"
    encoder.options = {
        "preset": "veryfast",
        "tune": "fastdecode",
        "crf": str(options.quality),
        "bf": "2",
        "b_strategy": "0",
        "x264-params": f"{groups}:b-pyramid=none:ref=1:psy=0:{DETERMINISTIC}",
    }
    return encoder


def describe_packet(packet: av.Packet) -> tuple[bytes, int, int]:
    data = bytes(packet)
    kind = REFERENCE if is_reference(data) else NON_REFERENCE
    return data, packet.pts, KEY if packet.is_keyframe else kind


def is_reference(data: bytes) -> bool:
    """Whether other pictures refer to this one, by the header of its first slice."""
    position = data.find(b"\0\0\1") + 3
    while data[position] & 31 not in SLICE_TYPES:
        position = data.index(b"\0\0\1", position) + 3
    return bool(data[position] & 0x60)


def compare_with_original(
    job: VideoJob, head: bytes, payload: bytes, originals: dict[int, np.ndarray]
) -> float:
    """The PSNR in dB of frames of a packed video, compared with `originals`."""
    numbers = sorted(originals)
    with PackedVideo(job.path, MemoryLocation(head, payload), job.max_pixels) as copy:
        return compute_psnr(copy.frames(numbers), np.stack([originals[k] for k in numbers]))


def compute_psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of uint8 frames in dB; infinite for equal ones."""
    error = np.mean((a.astype(np.float32) - b) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


class MemoryLocation(PackLocation):
    """The location of a packed video that is not yet in a shard."""

    data: bytes

    def __new__(cls, head: bytes, payload: bytes):
        location = super().__new__(cls, "memory", 0, len(head), len(head) + len(payload), 0)
        location.data = head + payload
        return location

    def read(self, start: int = 0, length: Optional[int] = None) -> bytes:
        return self.data[start : self.size if length is None else start + length]
