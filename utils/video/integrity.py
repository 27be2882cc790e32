"""What is wrong with a video. No MindSpore here: worker processes start fast and stay small."""

import os
import string
import struct
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, Optional

import av
from av.container import InputContainer

from utils.video.decoders import FrameFolder, open_video
from utils.video.pyav_reader import open_container
from utils.video.reader import (
    MAX_PIXELS,
    FrameSource,
    VideoError,
    WrongContent,
    check_size,
    refuse_playlist,
)

GOOD, DAMAGED = "good", "damaged"
KINDS = (
    "missing",  # no such file or folder
    "empty",  # a file of no bytes
    "wrong extension",  # an image, a text, ...; or a name that no video has
    "audio only",
    "no frames",  # a video in name and form, with nothing to see
    "truncated",  # ends before it says it does
    "broken",  # cannot be decoded, or is larger than data.max_pixels
    DAMAGED,  # can be decoded, and FFmpeg marks some of the frames as damaged
    "bad line",  # of the list: its label, its number of frames, its form
)
# fmt: off
SUFFIXES = (
    ".3gp", ".asf", ".avi", ".f4v", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4",
    ".mpeg", ".mpg", ".mts", ".ogv", ".rm", ".rmvb", ".ts", ".vob", ".webm", ".wmv", ".y4m",
)
# fmt: on
SLACK = 0.5  # seconds a stream may end before the container says
MARGIN = 60  # seconds that a frame may be decoded before the first is shown


class Job(NamedTuple):
    """One line of a list, and how its video is read."""

    path: str
    reader: str = "auto"
    depth: str = "all"  # or "ends": the first frame, one in the middle, the last ones
    num_frames: int = 0  # of a folder of images; 0: a video file
    image_tmpl: str = ""
    flow: bool = False
    max_pixels: int = MAX_PIXELS


class Finding(NamedTuple):
    kind: str  # GOOD or one of KINDS
    reason: str = ""
    frames: int = 0


def table_row(number: int, finding: Finding, location: str) -> str:
    """A row of `NAME.bad.tsv`: line number, kind, path or line, reason."""
    return f"{number}\t{finding.kind}\t{location}\t{finding.reason}"


def read_table(path: Path) -> dict[str, Finding]:
    """{path or line: finding} of such rows."""
    result = {}
    for row in path.read_text("utf-8", "surrogateescape").split("\n"):
        if row:
            _, kind, rest = row.split("\t", 2)  # a bad line may have tabs of its own
            position, _, reason = rest.rpartition("\t")
            result[position] = Finding(kind, reason)
    return result


class _Found(Exception):
    """Carries a Finding out of the checks."""


def examine(job: Job) -> Finding:
    """Reads a video, or a folder of frames, as a run would, and says what is wrong with it."""
    try:
        return Finding(GOOD, "", check_folder(job) if job.num_frames else check_file(job))
    except _Found as found:
        return found.args[0]
    except Exception as error:  # no file may end the scan of all others
        return bad("broken", f"{type(error).__name__}: {error}").args[0]


def bad(kind: str, reason: object) -> _Found:
    return _Found(Finding(kind, " ".join(str(reason).split())))


def check_file(job: Job) -> int:
    """The number of frames of a good video file."""
    path = Path(job.path)
    if not path.is_file():
        raise bad("missing", "no such file")
    if not path.stat().st_size:
        raise bad("empty", "0 bytes")
    try:
        refuse_playlist(path, job.reader)
        with open_container(path, job.max_pixels) as container:
            if path.suffix.lower() not in SUFFIXES:
                content = f"{path.suffix or 'no extension'}, the content is {container.format.name}"
                raise bad("wrong extension", content)
            check_streams(container, job.max_pixels)
            check_length(path, container)
        return decode_all(job) if job.depth == "all" else decode_ends(job)
    except (av.error.FFmpegError, OSError, ValueError) as error:  # also VideoError
        raise unreadable(path, error) from None


def check_streams(container: InputContainer, max_pixels: int) -> None:
    stream = video_stream(container)
    if stream is None:
        if container.streams.audio:
            raise bad("audio only", f"{len(container.streams.audio)} audio streams, no video")
        raise bad("no frames", "no video stream")
    if stream.codec_context is None:
        raise bad("broken", "this FFmpeg has no decoder for its codec")
    check_size(stream.codec_context.width, stream.codec_context.height, max_pixels)


def video_stream(container: InputContainer):
    """The first that is no picture attached to a song."""
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            return stream
    return None


def check_length(path: Path, container: InputContainer) -> None:
    """Compares the packets there are with what the container promises."""
    stream, packets, end = video_stream(container), 0, 0.0
    for packet in container.demux():
        if packet.size and packet.stream is stream:
            packets += 1
        if packet.pts is not None:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    cut = ends_early(path)
    if cut:
        raise bad("truncated", cut)
    if not packets:
        raise bad("no frames", "the video stream is empty")
    # An AVI counts frames that were dropped in recording; FFmpeg gives no packets for them.
    if stream.frames > packets and container.format.name != "avi":
        raise bad("truncated", f"{packets} of {stream.frames} frames are there")
    start = (container.start_time or 0) / av.time_base
    promised = (container.duration or 0) / av.time_base
    if promised - (end - start) > max(SLACK, 0.05 * promised):
        raise bad("truncated", f"{end - start:.1f} of {promised:.1f} seconds are there")


def unreadable(path: Path, error: Exception) -> _Found:
    """Truncated where the file itself says so, else of a wrong kind, else broken."""
    cut = ends_early(path)
    if cut:
        return bad("truncated", cut)
    if isinstance(error, WrongContent):
        return bad("wrong extension", error.args[-1])
    if path.suffix.lower() not in SUFFIXES:
        return bad("wrong extension", f"{path.suffix or 'no extension'}, and no video inside")
    reason = error.args[-1] if isinstance(error, VideoError) else ""
    return bad("broken", reason or getattr(error, "strerror", "") or error)


def ends_early(path: Path) -> str:
    """A line where the outermost boxes of an MP4, or an AVI's frame, run past the end of the file.

    An MP4 cut before its index is found by nothing else.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(16)
        if head[:4] == b"RIFF" and len(head) >= 8:
            messages = struct.unpack("<I", head[4:8])[0] + 8
            return f"{size} of {messages} bytes are there" if messages > size else ""
        if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
            return ""
        position, kinds = 0, set()
        while position < size:
            file.seek(position)
            box = next_box(file.read(16), size - position)
            if box is None:
                break
            kinds.add(box[0])
            position += box[1]
    if position > size:
        return f"{size} of at least {position} bytes are there"
    return "" if kinds & {"moov", "moof"} else f"it ends after {size} bytes, before its index"


def next_box(head: bytes, left: int) -> Optional[tuple[str, int]]:
    """Kind and size of an MP4 box; None for what is none."""
    if len(head) < 8:
        return None
    size, kind = struct.unpack(">I4s", head[:8])
    name = kind.decode("latin-1")
    if not set(name) <= set(string.ascii_letters + string.digits + " "):
        return None
    if size == 1 and len(head) == 16:
        size = struct.unpack(">Q", head[8:])[0]
    elif size == 0:
        size = left
    return (name, size) if size >= 8 else None


def decode_all(job: Job) -> int:
    """Every frame, by the reader of the run."""
    with open_video(job.path, job.reader, job.max_pixels) as video:
        return read_all(video)


def read_all(source: FrameSource) -> int:
    shapes = {frame.shape for frame in source.in_order()}
    if len(shapes) > 1:
        raise VideoError(source.path, source.reader, f"frames of several sizes: {sorted(shapes)}")
    check_damaged(source.damaged, len(source))
    return len(source)


def check_damaged(damaged: int, frames: int) -> None:
    if damaged:
        raise bad(DAMAGED, f"the decoder marks {damaged} of {frames} frames as damaged")


def decode_ends(job: Job) -> int:
    """The first frame, one in the middle, and all from the last key frame on."""
    marks = []
    with open_container(Path(job.path), job.max_pixels) as container:
        stream = video_stream(container)
        stream.codec_context.options = {"max_pixels": str(job.max_pixels)}
        length = stream.duration or 0
        for fraction in (0.0, 0.5, 1.0):
            stamp = (
                (stream.start_time or 0) + int(fraction * length) if fraction and length else None
            )
            first, count = len(marks), None if fraction == 1.0 else 1
            marks += islice(read_marks(container, stream, stamp), count)
            if len(marks) == first:
                raise bad("broken", f"no frame can be decoded at {fraction:.0%}")
        check_damaged(sum(marks), len(marks))
        return stream.frames


def read_marks(container: InputContainer, stream, stamp: Optional[int]) -> Iterator[bool]:
    """Whether frames are damaged: of those from the last key frame before a time stamp on.

    An MPEG stream has no index: a seek lands on any packet, and where no key frame follows, an
    earlier stamp is tried. Without a stamp: the frames from where the container stands.
    """
    packets = container.demux(stream)
    if stamp is not None:
        packets = packets_from_key(container, stream, stamp)
    return (frame.is_corrupt for packet in packets for frame in packet.decode())


def packets_from_key(container: InputContainer, stream, stamp: int) -> Iterator[av.Packet]:
    second, back = max(1, round(1 / stream.time_base)), 0
    lowest = (stream.start_time or 0) - MARGIN * second
    while True:
        container.seek(stamp - back, stream=stream)
        packets = container.demux(stream)
        for packet in packets:
            if packet.is_keyframe:
                return chain([packet], packets)
        if stamp - back < lowest:
            return iter(())
        back = 4 * back or second


def check_folder(job: Job) -> int:
    """The number of frames of a good folder of images."""
    path = Path(job.path)
    if not path.is_dir():
        raise bad("missing", "no such folder")
    source = FrameFolder(path, job.num_frames, job.image_tmpl, job.flow, job.max_pixels)
    if not any(path.iterdir()) and "/" not in job.image_tmpl:
        raise bad("no frames", "an empty folder")
    try:
        if job.depth == "ends":
            source.frames({0, job.num_frames // 2, job.num_frames - 1})
        else:
            read_all(source)
    except VideoError as error:
        missing = not Path(error.args[0]).exists()
        raise bad("truncated" if missing else "broken", error.args[-1]) from None
    return job.num_frames
