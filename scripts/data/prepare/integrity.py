"""Finds out whether a video can be read, and why not.

No MindSpore here: worker processes start fast and stay small.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import av
import numpy as np
from av.container import InputContainer

from utils.data.annotation_file import AnnotationFile, Record
from utils.files import read_text, write_text
from utils.messages import print_line
from utils.video.decoders import check_header, open_path, read_boxes
from utils.video.media_files import VIDEO_SUFFIXES
from utils.video.packets import choose_stream, measure_missing
from utils.video.pyav_reader import open_container, open_stream
from utils.video.reader import MAX_PIXELS, FrameReader, Segment, VideoError

GOOD = "good"
DAMAGED = "damaged"
KINDS = (
    "missing",  # no such file or folder
    "empty",  # a file of no bytes
    "wrong extension",  # none of a video
    "audio only",
    "no frames",  # a video format without any frame
    "truncated",  # ends before the end that its header declares
    "broken",  # cannot be decoded, or is larger than data.max_pixels
    DAMAGED,  # can be decoded, and FFmpeg marks some of the frames as damaged
    "bad line",  # of the list: its label, its number of frames, its format
)
BAD_LINE = rf"\d+\t({'|'.join(KINDS)})\t|\Z"  # of `write_list`, or an empty table
MAX_SHOWN = 5  # names on stderr
MAX_REORDER = 3  # pictures from a packet without presentation time to its picture's place
ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
DURATION_TOLERANCE = 0.5  # seconds by which a stream may end before the container's duration


class VideoJob(NamedTuple):
    """One line of a list, and how its video is read: the record and the settings of its data."""

    path: str
    reader: str = "auto"
    depth: str = "all"  # or "ends": the first frame, one in the middle, the last ones
    num_frames: int = 0  # of a folder of images
    image_tmpl: str = ""  # of a folder of images; "": a video file
    is_flow: bool = False
    max_pixels: int = MAX_PIXELS
    folder_fps: float = 0.0
    segment: Optional[Segment] = None

    def open(self) -> FrameReader:
        is_folder = bool(self.image_tmpl)
        return open_path(self.path, self, is_folder, self.num_frames, self.segment)


def make_job(record: Record, file: AnnotationFile, reader: str, depth: str = "ends") -> VideoJob:
    is_folder = file.source == "frames"
    return VideoJob(
        record.path,
        reader=reader,
        depth=depth,
        num_frames=(record.num_frames or 0) if is_folder else 0,
        image_tmpl=file.image_tmpl if is_folder else "",
        is_flow=file.flow,
        max_pixels=file.max_pixels,
        folder_fps=file.folder_fps,
        segment=record.segment,
    )


class Finding(NamedTuple):
    kind: str  # GOOD or one of KINDS
    reason: str = ""
    frames: int = 0


def write_list(
    file: AnnotationFile,
    target: Path,
    texts: Sequence[str],
    bad: Sequence[tuple[int, str, Finding]],
    kept: Sequence[str] = (),
) -> None:
    """Writes the lines `texts` of a new list, the table of bad lines beside it, and labels.txt.

    `bad` are (line number, path or line, finding). Prints the first of them that are left out: not
    of the kinds `kept`.
    """
    write_text(target, "".join(f"{text}\n" for text in texts))
    lines = (f"{number}\t{found.kind}\t{name}\t{found.reason}\n" for number, name, found in bad)
    write_text(target.with_name(f"{target.name}.bad.tsv"), "".join(lines))
    left_out = [(name, *found) for _, name, found in bad if found.kind not in kept]
    for name, kind, reason, _ in left_out[:MAX_SHOWN]:
        print_line(f"left out: {name}: {kind}, {reason}")
    if left_out:
        print_line(f"{len(left_out)} lines left out; the reasons are in {target}.bad.tsv")
    names = file.path.with_name("labels.txt")
    if names.is_file():
        text = read_text(names, str(names), "surrogateescape")
        write_text(target.with_name("labels.txt"), text)


class BadVideoError(Exception):
    """Ends the checks of a video, with the kind and the reason of its Finding."""


def examine(job: VideoJob) -> Finding:
    """Reads a video, or a folder of frames, as a run does; returns what is wrong with it."""
    try:
        return Finding(GOOD, "", check_folder(job) if job.image_tmpl else check_file(job))
    except BadVideoError as bad:
        kind, reason = bad.args
    except Exception as error:  # one file must not end the scan of all others
        kind, reason = "broken", f"{type(error).__name__}: {error}"
    return Finding(kind, " ".join(str(reason).split()))


def check_file(job: VideoJob) -> int:
    """The number of frames of a good video file; raises BadVideoError for a bad one."""
    path = Path(job.path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise BadVideoError("missing", "no such file")
    if not path.stat().st_size:
        raise BadVideoError("empty", "0 bytes")
    try:
        check_header(path, job.reader)
        with open_container(path, job.max_pixels) as container:
            if suffix not in VIDEO_SUFFIXES:
                content = f"{suffix or 'no extension'}, the content is {container.format.name}"
                raise BadVideoError("wrong extension", content)
            try:
                choose_stream(container)
            except ValueError as error:
                kind = "audio only" if container.streams.audio else "no frames"
                raise BadVideoError(kind, error) from None
            stream = open_stream(container, job.max_pixels)
            if job.segment is None:
                check_length(path, container, stream)
        with job.open() as video:
            return read_frames(video, job.depth)
    except (av.error.FFmpegError, OSError, ValueError) as error:  # also VideoError
        # Truncated if the file's own sizes show it; else a wrong kind of file; else broken
        reason = error.args[-1] if isinstance(error, VideoError) else error
        if truncation := find_truncation(path):
            raise BadVideoError("truncated", truncation) from None
        kind = "broken" if suffix in VIDEO_SUFFIXES else "wrong extension"
        raise BadVideoError(kind, reason) from None


def check_length(path: Path, container: InputContainer, stream: Any) -> None:
    """Compares the packets with the duration that the header declares.

    It may declare more frames: an AVI those that were dropped in recording, an MP4 those that an
    edit list hides. In files without presentation times, the last packets are up to two pictures
    late; and the duration of a last packet may be unknown. ASF declares its end in bytes as well,
    and how long its last pictures are shown is in no packet: only the bytes are compared.
    """
    packets = 0
    end = 0.0
    stamps = []
    for packet in container.demux():
        if packet.size and packet.stream is stream:
            packets += 1
            stamps += [packet.dts * float(packet.time_base)] if packet.dts is not None else []
        if packet.pts is not None:
            end = max(end, (packet.pts + (packet.duration or 0)) * float(packet.time_base))
    if truncation := find_truncation(path):
        raise BadVideoError("truncated", truncation)
    if not packets:
        raise BadVideoError("no frames", "the video stream is empty")
    if container.format.name == "asf":
        return
    duration = (container.duration or 0) / av.time_base
    missing = measure_missing(container, end)
    pictures = MAX_REORDER if stream.codec_context.has_b_frames else 1
    late = pictures * max(np.diff(stamps), default=0.0)
    if missing > max(DURATION_TOLERANCE, 0.05 * duration, late):
        reason = f"{duration - missing:.1f} of {duration:.1f} seconds are there"
        raise BadVideoError("truncated", reason)


def read_frames(video: FrameReader, depth: str) -> int:
    """Decodes every frame, or the ends, with the reader of the run; returns their number."""
    if depth == "ends":
        video.frames({0, len(video) // 2, len(video) - 1})
    else:
        shapes = {frame.shape for frame in video.in_order()}
        if len(shapes) > 1:
            raise VideoError(video.path, video.reader, f"frames of several sizes: {sorted(shapes)}")
    if video.damaged:
        marked = f"{video.damaged} of {len(video)} frames"
        raise BadVideoError(DAMAGED, f"the decoder marks {marked} as damaged")
    return len(video)


def find_truncation(path: Path) -> str:
    """How an MP4, AVI or ASF is cut short, by the sizes of its outermost boxes; "" if it is not.

    Only this finds an MP4 that is cut before its index. An object of an ASF is an ID of 16 bytes, a
    size, and content; the data of a broadcast, which has no end, have the size 0.
    """
    size = os.path.getsize(path)
    declared = 0
    with open(path, "rb") as file:
        head = file.read(16)
        if head[:4] == b"RIFF" and len(head) >= 8:
            declared = struct.unpack("<I", head[4:8])[0] + 8
        while head == ASF_HEADER and declared < size:
            file.seek(declared + 16)
            length = int.from_bytes(file.read(8), "little")
            if length < 24:
                break
            declared += length
        if declared:
            return f"{size} of {declared} bytes are there" if declared > size else ""
        if head[4:8] not in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
            return ""
        boxes = list(read_boxes(file, 0, size))
    _, _, end = boxes[-1] if boxes else ("", 0, 0)
    if end > size:
        return f"{size} of at least {end} bytes are there"
    has_index = {kind for kind, *_ in boxes} & {"moov", "moof"}
    return "" if has_index else f"it ends after {size} bytes, before its index"


def check_folder(job: VideoJob) -> int:
    """The number of frames of a good folder of images; raises BadVideoError for a bad one."""
    path = Path(job.path)
    if not path.is_dir():
        raise BadVideoError("missing", "no such folder")
    try:
        return read_frames(job.open(), job.depth)
    except VideoError as error:
        path, _, reason = error.args
        kind = "broken" if Path(path).exists() else "truncated"
        raise BadVideoError(kind, f"{os.path.basename(path)}: {reason}") from None
