"""The exact reader over PyAV: decodes only what the wanted frames depend on.

A file's packets are read first, undecoded: their time stamps, sorted, say which one is shown as
frame k. For a wanted frame the decoder is given the packets from the last clean start before it on,
a key frame that nothing later looks behind; up to the last wanted frame that starts there; and of
the others only those that more pictures are made from. Only wanted frames become RGB.

Where a file does not say all that reliably (`is_indexed`), and where a frame does not come as
foretold, everything is decoded in order instead.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import VideoReformatter

from utils.video.reader import (
    LARGEST,
    MAX_PIXELS,
    NO_VIDEO,
    VideoFile,
    WrongContent,
    check_size,
    plain_path,
    reading,
)

# FFmpeg's formats of one file; songs too, so that they are known as such. Playlists (hls, concat,
# dash) name other files and may wait for them without an end, so they are not among them; nor are
# pictures and texts.
FORMATS = (
    "asf,av1,avi,dirac,dv,flic,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,mjpeg,mov,mpeg,"
    "mpegts,mpegvideo,mxf,nut,obu,ogg,rm,swf,vc1,vvc,wtv,yuv4mpegpipe,"
    "aac,ac3,aiff,amr,au,flac,mp3,wav"
)
# Where one packet is one picture, in time stamps as they are shown.
CONTAINERS = {"mov", "mp4", "matroska", "webm"}
CODECS = {"h264", "hevc", "mpeg4", "vp8", "vp9"}
# From PyAV 17 on, colours would be converted by as many threads as there are cores. PyAV's short
# forms (`frame.reformat`, `to_ndarray(format)`) keep such threads for later, and a process forked
# after that waits for them for ever: the converter here is always one's own.
ONE_THREAD = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
IDR = 5  # the H.264 slice that forgets all pictures before it


class ExactVideo(VideoFile):
    """A `FrameSource`; raises VideoError as the others do."""

    def __init__(self, path: Path, max_pixels: int = MAX_PIXELS):
        self._handle = None
        super().__init__(path, "pyav", max_pixels)
        self._next = len(self)  # reading in order begins with opening the file again

    def _open(self) -> int:
        """Puts the container into `_handle`: at first to read the index, then before frame 0."""
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
            # Also where the size changes later on.
            context.options = {"max_pixels": str(self._max_pixels)}
            if self._length:
                self._frames = self._handle.decode(stream)
                return self._length
            self._to_rgb = VideoReformatter()
            return self._read_index(stream)
        except av.error.FFmpegError:
            raise self._error(NO_VIDEO) from None
        except IndexError:
            raise self._error("it has no video frames") from None

    def _read_index(self, stream) -> int:
        """Reads all packets; returns their number and keeps them if they tell what is where."""
        keep = self.path.stat().st_size <= LARGEST
        self.fps = float(stream.average_rate or 0)
        packets, count = [], 0
        for packet in self._handle.demux(stream):
            if packet.size:
                count += not packet.is_discard  # decoded, but not shown: an edit list says so
                packets += [packet] if keep else []
        self._packets = packets if keep and self.is_indexed(stream, packets) else []
        if self._packets:
            stamps = np.array([packet.pts for packet in packets])
            self._shown = np.argsort(stamps)  # frame -> packet, which come in decoding order
            self._starts = [i for i, p in enumerate(packets) if is_clean_start(stream, p)]
        if not count:
            raise self._error("it has no video frames")
        return count

    def is_indexed(self, stream, packets: list) -> bool:
        """Whether every packet is one picture, shown in the order of the time stamps."""
        names = set(self._handle.format.name.split(","))
        stamps = [packet.pts for packet in packets]
        return (
            bool(names & CONTAINERS)
            and stream.codec_context.name in CODECS
            and None not in stamps
            and len(set(stamps)) == len(stamps)
            and not any(packet.is_discard or packet.is_corrupt for packet in packets)
            and packets[0].pts == min(stamps)
            and is_clean_start(stream, packets[0])
        )

    def _decode(self, wanted: list[int]) -> Iterator[np.ndarray]:
        if self._handle is None:
            raise ValueError(f"{self.path} was closed")
        with reading(self.path, self.reader):
            result = self._decode_parts(wanted) if self._packets else None
        if result is None:  # each frame in its turn
            return super()._decode(wanted)
        return iter(result)

    def in_order(self) -> Iterator[np.ndarray]:
        return super()._decode(list(range(len(self))))

    def _decode_parts(self, wanted: list[int]) -> Optional[list[np.ndarray]]:
        """The wanted frames by way of the index; None where one does not come."""
        numbers = {self._packets[self._shown[k]].pts: k for k in wanted}
        context = self._handle.streams.video[0].codec_context
        result: dict[int, np.ndarray] = {}
        try:
            for start, needed in self._parts(wanted):
                for frame in decode_part(context, self._packets, start, needed):
                    if frame.pts in numbers:
                        result[numbers[frame.pts]] = self._pixels(frame)
        except av.error.FFmpegError:
            result = {}
        self._next = len(self)  # the decoder stands nowhere: a decoding in order begins anew
        return [result[k] for k in wanted] if len(result) == len(wanted) else None

    def _parts(self, wanted: list[int]) -> list[tuple[int, list[int]]]:
        """(start, wanted packets from there on, ascending), of every start that is needed."""
        parts: dict[int, list[int]] = {}
        for packet in sorted(int(self._shown[k]) for k in wanted):
            # A picture shown before the key frame it follows may be made from earlier ones.
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
        """(H, W, 3), turned upright as the file asks for."""
        self.damaged += frame.is_corrupt
        pixels = to_array(self._to_rgb, frame)
        return np.rot90(pixels, frame.rotation // 90) if frame.rotation else pixels

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._packets, self._frames = [], iter(())
        super().close()

    def __del__(self):
        """PyAV's objects hold each other: left to themselves, they keep the file open for long."""
        self.close()


def open_container(path: Path, max_pixels: int = MAX_PIXELS) -> InputContainer:
    """Opens a video file with FFmpeg.

    Raises WrongContent where the file is no video or names other files, else what FFmpeg raises.
    """
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    options["max_pixels"] = str(max_pixels)  # where FFmpeg decodes to learn the size
    try:
        with plain_path(path) as plain:
            return av.open(plain, metadata_errors="replace", options=options)
    except av.error.ArgumentError:  # what FFmpeg says of a format that is not allowed
        raise WrongContent(path, "pyav", "its content is no video in one file") from None


def decode_part(context, packets: list, start: int, needed: list[int]) -> Iterator[av.VideoFrame]:
    """What comes of the packets from `start` to the last needed one.

    Of those that are not needed, what nothing else is made from is left out.
    """
    wanted = set(needed)
    context.flush_buffers()
    for i in range(start, needed[-1] + 1):
        context.skip_frame = "DEFAULT" if i in wanted else "NONREF"
        yield from context.decode(packets[i])
    context.skip_frame = "DEFAULT"
    yield from context.decode(None)


def decode_h264(
    packets: Iterable[tuple[int, bytes]], wanted: list[int], max_pixels: int
) -> Iterator[np.ndarray]:
    """The wanted frames, ascending, of (number, packet) in decoding order: RGB (H, W, 3).

    Only wanted ones are converted. Raises ValueError where one does not come, or is larger.
    """
    decoder, to_rgb = av.CodecContext.create("h264", "r"), VideoReformatter()
    decoder.thread_count, decoder.options = 1, {"max_pixels": str(max_pixels)}
    numbers, missing, result = set(wanted), iter(wanted), {}
    expected = next(missing)
    try:
        for picture in decode_all(decoder, packets):
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


def decode_all(decoder, packets: Iterable[tuple[int, bytes]]) -> Iterator[av.VideoFrame]:
    for number, data in packets:
        packet = av.Packet(data)
        packet.pts = packet.dts = number
        yield from decoder.decode(packet)
    yield from decoder.decode(None)


def to_array(to_rgb: VideoReformatter, frame: av.VideoFrame) -> np.ndarray:
    return converted(to_rgb, frame, "rgb24").to_ndarray()


def converted(converter: VideoReformatter, frame: av.VideoFrame, pix_fmt: str) -> av.VideoFrame:
    return converter.reformat(frame, format=pix_fmt, **ONE_THREAD)


def is_clean_start(stream, packet: av.Packet) -> bool:
    """Whether decoding may begin here for all that is shown from here on.

    H.264 also marks as key frames where a picture is built up little by little; only an IDR
    picture forgets everything.
    """
    if not packet.is_keyframe:
        return False
    extra = stream.codec_context.extradata or b""
    if stream.codec_context.name != "h264":
        return True
    if extra[:1] != b"\x01":  # no lengths, but start codes
        return False
    return IDR in slice_kinds(bytes(packet), 1 + (extra[4] & 3))


def slice_kinds(data: bytes, size: int) -> set[int]:
    """The types of a packet's NAL units, each behind its length in `size` bytes."""
    kinds, position = set(), 0
    while position + size < len(data):
        kinds.add(data[position + size] & 31)
        position += size + int.from_bytes(data[position : position + size], "big")
    return kinds
