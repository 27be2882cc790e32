"""The exact reader with PyAV: decodes only the packets that the requested frames depend on.

It first reads all packets without decoding them. Their sorted time stamps give the presentation
order: which packet is frame k. For a requested frame, decoding starts at the last random-access
point before it, a key frame after which no frame refers to an earlier one. It ends at the last
requested frame that uses the same random-access point. Non-reference frames between them are
skipped, and only requested frames are converted to RGB.

If a file has no reliable time stamps (`is_indexed`), or if a frame does not arrive as predicted,
all frames are decoded in order instead.

Of a segment, only the packets from the last random-access point before its start are read.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import VideoReformatter

from utils.video.reader import (
    HALF_MILLISECOND,
    MAX_FILE_BYTES,
    MAX_PIXELS,
    NO_VIDEO,
    EmptySegmentError,
    Segment,
    VideoError,
    VideoFile,
    WrongContentError,
    check_size,
    describe_empty,
    plain_path,
    reading,
)

# FFmpeg's formats of a single file, with audio formats, so that these can be reported as audio.
# Playlists (hls, concat, dash) are not among them: they name other files, and opening one may wait
# for these for ever. Nor are images and text files.
FORMATS = (
    "asf,av1,avi,dirac,dv,flic,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mpeg,"
    "mpegts,mpegvideo,mxf,nut,obu,ogg,rm,swf,vc1,vvc,wtv,yuv4mpegpipe,"
    "aac,ac3,aiff,amr,au,flac,mp3,wav"
)
# Formats in which a packet is one picture and its time stamp gives the presentation order.
CONTAINERS = {"mov", "mp4", "matroska", "webm"}
CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9"}
# From PyAV 17 on, a converter starts one thread per core by default. The shorthands of PyAV
# (`frame.reformat`, `to_ndarray(format)`) keep these threads in a converter of the frame, and a
# process that is forked later waits for them for ever. So this module makes its own converters.
ONE_THREAD = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
MAX_KEPT_PACKETS = 2**19  # packets of a file kept in memory: half a kB each beside their bytes
IDR = 5  # H.264 slice type: no later picture refers to a picture before an IDR picture


class ExactVideo(VideoFile):
    """Frames of a video file by PyAV."""

    def __init__(self, path: Path, max_pixels: int = MAX_PIXELS):
        self._handle = None
        super().__init__(path, "pyav", max_pixels)
        self._next = len(self)  # reading in order opens the file again

    def _open(self) -> int:
        """Opens the container; the first time it reads the index, later it starts at frame 0."""
        try:
            if self._handle is not None:
                self._handle.close()
            self._handle = open_container(self.path, self._max_pixels)
            stream = self._handle.streams.video[0]
            context = stream.codec_context
            if context is None:
                raise self._error("this FFmpeg has no decoder for its codec")
            check_size(context.width, context.height, self._max_pixels)
            context.thread_count = 1  # many workers decode at once
            # Also for frames after a change of size.
            context.options = {"max_pixels": str(self._max_pixels)}
            if self._length:
                self._frames = self._decode_all(stream)
                return self._length
            self._to_rgb = VideoReformatter()
            return self._read_index(stream)
        except av.error.FFmpegError:
            raise self._error(NO_VIDEO) from None
        except IndexError:
            raise self._error("it has no video frames") from None

    def _read_index(self, stream) -> int:
        """Reads all packets; returns the number of frames. Keeps the packets if it can use them."""
        keep = self.path.stat().st_size <= MAX_FILE_BYTES
        self.fps = float(stream.average_rate or 0)
        packets = []
        count = 0
        for packet in self._handle.demux(stream):
            if packet.size:
                count += not packet.is_discard  # an edit list hides such a frame
                packets += [packet] if keep else []
                keep = keep and len(packets) < MAX_KEPT_PACKETS
        self._packets = []
        if keep and self.is_indexed(stream, packets) and packets[0] is min(packets, key=get_stamp):
            self._keep_packets(stream, packets)
        if not count:
            raise self._error("it has no video frames")
        return count

    def _keep_packets(self, stream, packets: list) -> np.ndarray:
        """Makes the index of the packets; returns their time stamps, sorted."""
        self._packets = packets
        stamps = np.array([packet.pts for packet in packets])
        self._packet_of_frame = np.argsort(stamps)  # frame -> packet, in decoding order
        self._starts = [i for i, p in enumerate(packets) if is_random_access_point(stream, p)]
        return stamps[self._packet_of_frame]

    def is_indexed(self, stream, packets: list) -> bool:
        """Whether every packet is one picture and time stamps give the presentation order."""
        stamps = [packet.pts for packet in packets]
        return (
            self.has_time_stamps(stream)
            and None not in stamps
            and len(set(stamps)) == len(stamps)
            and not any(packet.is_discard or packet.is_corrupt for packet in packets)
            and is_random_access_point(stream, packets[0])
        )

    def has_time_stamps(self, stream) -> bool:
        """Whether time stamps are reliable in files of this format and codec."""
        names = set(self._handle.format.name.split(","))
        return bool(names & CONTAINERS) and stream.codec_context.name in CODECS

    def _decode_all(self, stream) -> Iterator[av.VideoFrame]:
        """All frames in order; decoding has not begun."""
        return self._handle.decode(stream)

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        with reading(self.path, self.reader):
            result = self._decode_parts(indices) if self._packets else None
        return super()._decode(indices) if result is None else iter(result)

    def in_order(self) -> Iterator[np.ndarray]:
        return super()._decode(list(range(len(self))))

    def _decode_parts(self, indices: list[int]) -> Optional[list[np.ndarray]]:
        """The requested frames by the index; None if one does not arrive."""
        numbers = {self._packets[self._packet_of_frame[k]].pts: k for k in indices}
        context = self._handle.streams.video[0].codec_context
        result: dict[int, np.ndarray] = {}
        try:
            for start, needed in self._parts(indices):
                for frame in decode_part(
                    context, packets=self._packets, start=start, needed=needed
                ):
                    if frame.pts in numbers:
                        result[numbers[frame.pts]] = self._pixels(frame)
        except av.error.FFmpegError:
            result = {}
        self._next = len(self)  # decoding in order must start again
        return [result[k] for k in indices] if len(result) == len(indices) else None

    def _parts(self, indices: list[int]) -> list[tuple[int, list[int]]]:
        """(random-access point, ascending requested packets that start there), for all points."""
        parts: dict[int, list[int]] = {}
        for packet in sorted(int(self._packet_of_frame[k]) for k in indices):
            # A picture presented before the key frame it follows may refer to earlier ones.
            stamp = self._packets[packet].pts
            before = (i for i in reversed(self._starts) if i <= packet)
            start = next(i for i in before if self._packets[i].pts <= stamp)
            parts.setdefault(start, []).append(packet)
        return list(parts.items())

    def _read(self, keep: bool) -> Optional[np.ndarray]:
        try:
            frame = next(self._frames)
        except av.error.FFmpegError as error:
            raise self._error(f"frame {self._next}: {error.strerror or error}") from None
        except StopIteration:
            raise self._error(f"frame {self._next} of {len(self)} cannot be decoded") from None
        return self._pixels(frame) if keep else None

    def _pixels(self, frame: av.VideoFrame) -> np.ndarray:
        """(H, W, 3), rotated upright as the file specifies."""
        self.damaged += frame.is_corrupt
        pixels = to_array(self._to_rgb, frame)
        return np.rot90(pixels, frame.rotation // 90) if frame.rotation else pixels

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._packets = []
        self._frames = iter(())
        super().close()

    def __del__(self):
        """PyAV's objects refer to each other: without this, the file stays open for long."""
        self.close()


class NoTimeStampsError(VideoError):
    """A video file whose time stamps do not tell which packets a segment needs."""


class ExactSegment(ExactVideo):
    """The frames of a segment of a video file, by their time stamps.

    Raises NoTimeStampsError if the file has to be decoded in order, and VideoError if no frame
    lies in the segment.
    """

    def __init__(self, path: Path, max_pixels: int, segment: Segment):
        self._segment = segment
        super().__init__(path, max_pixels)

    def _read_index(self, stream) -> int:
        self.fps = float(stream.average_rate or 0)
        start = stream.start_time
        if not self.has_time_stamps(stream) or start is None:
            raise self._no_time_stamps()
        second = 1 / stream.time_base
        self._limits = [start + math.ceil((t - HALF_MILLISECOND) * second) for t in self._segment]
        self._limits[0] = max(self._limits[0], start)
        # A key frame up to a millisecond later is the first frame of the segment.
        self._latest_start = self._limits[0] + int(2 * HALF_MILLISECOND * second)
        packets, is_last = self._read_part(stream)
        if not self.is_indexed(stream, packets):
            raise self._no_time_stamps()
        stamps = self._keep_packets(stream, packets)
        frames = slice(*np.searchsorted(stamps, self._limits))
        self._packet_of_frame = self._packet_of_frame[frames]
        length = 1 / self.fps if self.fps else 0.0  # of a frame, in seconds
        end = float((stamps[-1] - start) / second) + length if is_last else math.inf
        self.shortened = self._segment.end > end + length
        if not len(self._packet_of_frame):
            reason = describe_empty(self._segment, end)
            raise EmptySegmentError(self.path, self.reader, reason)
        return len(self._packet_of_frame)

    def _read_part(self, stream) -> tuple[list, bool]:
        """The packets that the segment needs, and whether the last is the last of the video."""
        back = 0  # time units
        while True:
            self._seek_stamp = max(self._latest_start - back, stream.start_time)
            self._handle.seek(self._seek_stamp, stream=stream)
            packets = []
            size = 0
            for packet in self._handle.demux(stream):
                if packet.dts is not None and packet.dts >= self._limits[1]:
                    return packets, False
                if not packets and not self._can_start(stream, packet):
                    break
                packets += [packet] if packet.size else []
                size += packet.size
                if size > MAX_FILE_BYTES or len(packets) == MAX_KEPT_PACKETS:
                    raise self._no_time_stamps()
            if packets:
                return packets, True
            if self._seek_stamp == stream.start_time:
                raise self._no_time_stamps()
            back = 2 * back or math.ceil(1 / stream.time_base)

    def _can_start(self, stream, packet: av.Packet) -> bool:
        """Whether all frames of the segment can be decoded from this packet on."""
        is_before = packet.pts is not None and packet.pts <= self._latest_start
        return is_before and is_random_access_point(stream, packet)

    def _decode_all(self, stream) -> Iterator[av.VideoFrame]:
        self._handle.seek(self._seek_stamp, stream=stream)
        low, high = self._limits
        return (f for f in self._handle.decode(stream) if f.pts is not None and low <= f.pts < high)

    def _no_time_stamps(self) -> NoTimeStampsError:
        return NoTimeStampsError(self.path, self.reader, "its time stamps are not reliable")


def get_stamp(packet: av.Packet) -> int:
    return packet.pts


def open_container(path: Path, max_pixels: int = MAX_PIXELS) -> InputContainer:
    """Opens a video file with FFmpeg.

    Raises WrongContentError if the file is a playlist or not a video, else FFmpeg's errors.
    """
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    options["max_pixels"] = str(max_pixels)  # FFmpeg may decode to find the size
    try:
        with plain_path(path) as plain:
            return av.open(plain, metadata_errors="replace", options=options)
    except av.error.ArgumentError:  # FFmpeg's error for a format that is not allowed
        raise WrongContentError(path, "pyav", "its content is not one video in one file") from None


def decode_part(context, packets: list, start: int, needed: list[int]) -> Iterator[av.VideoFrame]:
    """Decodes the packets from `start` to the last of `needed`, without non-reference frames.

    Frames of other packets may come as well.
    """
    requested = set(needed)
    context.flush_buffers()
    for i in range(start, needed[-1] + 1):
        context.skip_frame = "DEFAULT" if i in requested else "NONREF"
        yield from context.decode(packets[i])
    context.skip_frame = "DEFAULT"
    yield from context.decode(None)


def decode_h264(
    packets: Iterable[tuple[int, bytes]], indices: list[int], max_pixels: int
) -> Iterator[np.ndarray]:
    """Decodes (frame number, packet) in decoding order; yields the frames of `indices`, ascending.

    A frame is RGB (H, W, 3); only these are converted. Raises ValueError if one does not arrive or
    is larger than `max_pixels`.
    """
    decoder = av.CodecContext.create("h264", "r")
    to_rgb = VideoReformatter()
    decoder.thread_count = 1
    decoder.options = {"max_pixels": str(max_pixels)}
    numbers = set(indices)
    missing = iter(indices)
    result = {}
    expected = next(missing)
    try:
        for picture in decode_packets(decoder, packets):
            if picture.pts in numbers:
                result[picture.pts] = to_array(to_rgb, picture)
            while expected in result:
                yield result.pop(expected)
                expected = next(missing, None)
    except av.error.FFmpegError as error:
        check_size(decoder.width, decoder.height, max_pixels)
        raise ValueError(error.strerror or str(error)) from None
    if expected is not None:
        raise ValueError(f"frame {expected} cannot be decoded")


def decode_packets(decoder, packets: Iterable[tuple[int, bytes]]) -> Iterator[av.VideoFrame]:
    for number, data in packets:
        packet = av.Packet(data)
        packet.pts = packet.dts = number
        yield from decoder.decode(packet)
    yield from decoder.decode(None)


def to_array(to_rgb: VideoReformatter, frame: av.VideoFrame) -> np.ndarray:
    return convert_format(to_rgb, frame, "rgb24").to_ndarray()


def convert_format(
    converter: VideoReformatter, frame: av.VideoFrame, pix_fmt: str
) -> av.VideoFrame:
    return converter.reformat(frame, format=pix_fmt, **ONE_THREAD)


def is_random_access_point(stream, packet: av.Packet) -> bool:
    """Whether all frames presented from this packet on can be decoded from here.

    H.264 also marks recovery points as key frames, where a picture builds up gradually; only an IDR
    picture is a random-access point.
    """
    if not packet.is_keyframe:
        return False
    extra = stream.codec_context.extradata or b""
    if stream.codec_context.name != "h264":
        return True
    if extra[:1] != b"\x01":  # start codes instead of lengths
        return False
    return IDR in read_nal_types(bytes(packet), 1 + (extra[4] & 3))


def read_nal_types(data: bytes, size: int) -> set[int]:
    """The types of a packet's NAL units, each after its length in `size` bytes."""
    types = set()
    position = 0
    while position + size < len(data):
        types.add(data[position + size] & 31)
        position += size + int.from_bytes(data[position : position + size], "big")
    return types
