"""Makes packed videos: short groups of pictures, or JPEG files, at a small size.

No MindSpore here: worker processes start fast and stay small.
"""

import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Optional, Union

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from utils.data.annotation_file import AnnotationFile, Record
from utils.data.packed.format import EXTRA, KEY, REFERENCE, Table
from utils.data.packed.reader import PackedVideo, PackLocation
from utils.video.decoders import FrameFolder, open_video
from utils.video.integrity import DAMAGED, GOOD, Finding, Job, examine
from utils.video.pyav_reader import converted
from utils.video.reader import FrameSource, VideoError, reading
from utils.video.transforms import scaled

CRF, JPEG = 18, 90  # the qualities unless others are asked for
STEADY = "rc-lookahead=0:mbtree=0:lookahead-threads=1:cpu-independent=1"  # the same every time
SLICES = (1, 5)  # H.264: a picture, and one that forgets all before it


class Form(NamedTuple):
    """What videos are turned into."""

    codec: str  # of pack_format.CODECS
    short_side: int  # larger videos are made smaller; 0: all keep their size
    gop: int  # H.264: pictures from a key frame to the next
    quality: int  # H.264: the constant rate factor, 0 to 51, lower is better; JPEG: 1 to 100


def form_of(
    flow: bool,
    *,
    codec: Literal["video", "jpeg"] = "video",
    short_side: int = 256,
    gop: int = 12,
    quality: Optional[int] = None,
) -> Form:
    """The form that options on a command line ask for, of optical flow or of pictures."""
    if codec == "video" and flow:
        raise ValueError("--codec video: optical flow is no video; take --codec jpeg")
    lowest, highest, usual = (0, 51, CRF) if codec == "video" else (1, 100, JPEG)
    quality = usual if quality is None else quality
    if not lowest <= quality <= highest:
        raise ValueError(f"--quality of {codec} is {lowest} to {highest}, not {quality}")
    for name, value, least in (("short_side", short_side, 0), ("gop", gop, 1)):
        if value < least:
            raise ValueError(f"--{name} must be at least {least}, not {value}")
    return Form(codec, short_side, gop if codec == "video" else 1, quality)


class Packed(NamedTuple):
    """A packed video, and how near its copy is."""

    head: bytes
    payload: bytes
    frames: int
    psnr: float  # dB over three frames; infinite for the same pixels

    @property
    def crc(self) -> int:
        return zlib.crc32(self.payload, zlib.crc32(self.head))


def pack(task: tuple[Any, Job, Form]) -> Union[Packed, Finding]:
    """Packs the video of a key; of one that cannot be read, says what is wrong with it."""
    _, job, form = task
    try:
        finding = examine(job)
        if finding.kind not in (GOOD, DAMAGED):
            return finding
        with open_job(job) as source, reading(job.path, source.reader):
            return encode(source, job, form)
    except VideoError as error:
        return Finding("broken", error.args[-1])


def job_of(record: Record, file: AnnotationFile, reader: str) -> Job:
    """How the video of a line is read."""
    frames = record.num_frames if file.source == "frames" else 0
    form = (frames, file.image_tmpl, file.flow, file.max_pixels)
    return Job(record.path, reader, "ends", *form)


def open_job(job: Job) -> FrameSource:
    if job.num_frames:
        form = (job.num_frames, job.image_tmpl, job.flow, job.max_pixels)
        return FrameFolder(job.path, *form)
    return open_video(job.path, job.reader, job.max_pixels)


def encode(source: FrameSource, job: Job, form: Form) -> Packed:
    """Encodes all frames, and compares three of the copy with what they were made from."""
    seen: dict[int, np.ndarray] = {}
    frames = watched(sized(source, form), looked_at(len(source)), seen)
    if form.codec == "video":
        packets = list(h264(frames, form))
    else:
        packets = list(jpegs(frames, form, source, job))
    height, width = seen[0].shape[:2]
    shown, kinds = (np.array(column) for column in zip(*(packet[1:] for packet in packets)))
    sizes = np.array([len(data) for data, *_ in packets])
    checksums = np.array([zlib.crc32(data) for data, *_ in packets])
    about = form.codec, height, width, len(source), source.fps
    table = Table(*about, sizes, shown, kinds, checksums)
    head, payload = table.encode(), b"".join(data for data, *_ in packets)
    return Packed(head, payload, len(source), compare(job, head + payload, head, seen))


def looked_at(length: int) -> list[int]:
    """The frames that speak for a video where its copy is compared."""
    return sorted({0, length // 2, length - 1})


def sized(source: FrameSource, form: Form) -> Iterator[np.ndarray]:
    """All frames, of one size."""
    shape = None
    for frame in source.in_order():
        shape = shape or frame.shape
        if frame.shape != shape:
            raise VideoError(source.path, source.reader, f"frames {shape} and {frame.shape}")
        yield shrunk(frame, form)


def shrunk(frame: np.ndarray, form: Form) -> np.ndarray:
    """A frame with the short side asked for, where it is larger; even sides for H.264."""
    height, width = frame.shape[:2]
    if not form.short_side or min(width, height) <= form.short_side:
        return frame
    size = scaled(width, height, form.short_side)
    if form.codec == "video":
        size = [side + side % 2 for side in size]
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


def watched(
    frames: Iterator[np.ndarray], numbers: list[int], seen: dict[int, np.ndarray]
) -> Iterator[np.ndarray]:
    """The same frames; those of the numbers are put into `seen`."""
    for number, frame in enumerate(frames):
        if number in numbers:
            seen[number] = frame
        yield frame


def h264(frames: Iterator[np.ndarray], form: Form) -> Iterator[tuple[bytes, int, int]]:
    """(packet, number of the frame, kind) in decoding order.

    Every group of pictures is closed, and between two that others are made from stand two that are
    made only to be shown, so that a reader can leave them out. The tuning for fast decoding drops
    the arithmetic coder and the loop filter; nothing is done for the eye alone (psy).
    """
    encoder = None
    for number, frame in enumerate(frames):
        height, width = frame.shape[:2]
        encoder = encoder or open_encoder(width, height, form)
        shown = picture(frame, encoder.pix_fmt)
        shown.pts, shown.time_base = number, encoder.time_base
        yield from map(described, encoder.encode(shown))
    yield from map(described, encoder.encode(None))


def picture(frame: np.ndarray, pix_fmt: str) -> av.VideoFrame:
    if pix_fmt == "yuv420p":  # FFmpeg's scaler reads past the right edge of narrow frames
        planes = cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420)
        return av.VideoFrame.from_ndarray(planes, format=pix_fmt)
    whole = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
    return converted(VideoReformatter(), whole, pix_fmt)


def open_encoder(width: int, height: int, form: Form) -> av.VideoCodecContext:
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height = width, height
    # Half as many colours as pixels need even sides.
    encoder.pix_fmt = "yuv444p" if width % 2 or height % 2 else "yuv420p"
    encoder.framerate, encoder.time_base = Fraction(25), Fraction(1, 25)  # only the order counts
    encoder.thread_count = 1  # many workers encode at once
    groups = f"keyint={form.gop}:min-keyint={form.gop}:scenecut=0:open-gop=0"
    encoder.options = {
        "preset": "veryfast",
        "tune": "fastdecode",
        "crf": str(form.quality),
        "bf": "2",
        "b_strategy": "0",
        "x264-params": f"{groups}:b-pyramid=none:ref=1:psy=0:{STEADY}",
    }
    return encoder


def described(packet: av.Packet) -> tuple[bytes, int, int]:
    data = bytes(packet)
    kind = KEY if packet.is_keyframe else REFERENCE if is_reference(data) else EXTRA
    return data, packet.pts, kind


def is_reference(data: bytes) -> bool:
    """Whether other pictures are made from this one, by the head of its first slice."""
    position = data.find(b"\0\0\1") + 3
    while data[position] & 31 not in SLICES:
        position = data.index(b"\0\0\1", position) + 3
    return bool(data[position] & 0x60)


def jpegs(
    frames: Iterator[np.ndarray], form: Form, source: FrameSource, job: Job
) -> Iterator[tuple[bytes, int, int]]:
    """(file, number of the frame, kind); files that keep their size are taken as they are."""
    for number, frame in enumerate(frames):
        kept = kept_file(source, job, number, frame)
        flow = frame.shape[2] == 2
        planes = [frame[..., k] for k in range(2)] if flow else [frame[..., ::-1]]
        for data in [kept] if kept else [to_jpeg(plane, form.quality) for plane in planes]:
            yield data, number, KEY


def kept_file(source: FrameSource, job: Job, number: int, frame: np.ndarray) -> Optional[bytes]:
    """The file a frame was read from, where it is a JPEG file of that very frame."""
    if not job.num_frames or job.flow:
        return None
    data = (source.path / job.image_tmpl.format(number + 1)).read_bytes()
    if data[:2] != b"\xff\xd8":
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_IGNORE_ORIENTATION | 1)
    return data if pixels is not None and pixels.shape == frame.shape else None


def to_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    """(H, W, 3) BGR or (H, W) grey."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    return cv2.imencode(".jpg", np.ascontiguousarray(pixels), options)[1].tobytes()


def compare(job: Job, data: bytes, head: bytes, seen: dict[int, np.ndarray]) -> float:
    """The peak signal-to-noise ratio of the seen frames in the copy, in dB."""
    numbers = sorted(seen)
    with PackedVideo(job.path, InMemory(data, len(head)), job.max_pixels) as copy:
        return psnr(copy.frames(numbers), np.stack([seen[number] for number in numbers]))


def psnr(a: np.ndarray, b: Union[np.ndarray, Sequence[np.ndarray]]) -> float:
    error = np.mean((a.astype(np.float32) - b) ** 2)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


class InMemory(PackLocation):
    """A packed video that is not in a shard yet."""

    data: bytes

    def __new__(cls, data: bytes, head: int):
        position = super().__new__(cls, "memory", 0, head, len(data), 0)
        position.data = data
        return position

    def read(self, start: int = 0, length: Optional[int] = None) -> bytes:
        return self.data[start : self.size if length is None else start + length]
