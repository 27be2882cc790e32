"""The exact reader with PyAV: decodes only the packets that the requested frames depend on.

It first reads all packets without decoding them. Their sorted time stamps give the presentation
order: which packet is frame k. For a requested frame, decoding starts at the last random-access
point before it, a key frame after which no frame refers to an earlier one. It ends at the last
requested frame that uses the same random-access point. Non-reference frames between them are
skipped, and only requested frames are converted to RGB.

If packets have no reliable time stamps, or if a frame does not arrive as predicted, is damaged, or
has another size, all frames are decoded in order instead. If packets do not tell the number of
frames either (a recording that starts inside a group of pictures, parameter sets that change, an
MPEG transport stream, and most formats besides MP4, Matroska and AVI), the whole file is decoded
once to count them. Then errors are passed over, as by the program `ffmpeg`, and counted as damaged
frames. PyAV's `container.decode` would end at the first one, as in some MPEG program streams that
are cut at any byte. Frames of another size than the first one are scaled to it.

Of a segment, only the packets from the last random-access point before its start are read, and the
key frames of a file once, to find out whether parameter sets change.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import av
import numpy as np
from av.container import InputContainer
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.reformatter import VideoReformatter

from utils.video.packets import (
    PARAMETER_CODECS,
    PacketTable,
    choose_stream,
    demux_to_end,
    list_frame_stamps,
)
from utils.video.reader import (
    EMPTY_SEGMENT,
    HALF_MILLISECOND,
    MAX_FILE_BYTES,
    MAX_PIXELS,
    UPRIGHT,
    FrameReader,
    Segment,
    SegmentReader,
    VideoError,
    check_size,
    measure_times,
    plain_path,
    read_display_matrix,
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
# Arguments of `av.open`. PyAV 19 and later accept any bytes in metadata.
PYAV = int(av.__version__.split(".")[0])
METADATA: dict[str, Any] = {"metadata_errors": "replace"} if PYAV < 19 else {}
# The usual conversion to RGB has code of its own for each kind of processor. This one has not:
# SWS_BILINEAR and SWS_ACCURATE_RND of FFmpeg, for which PyAV 17 has no names.
BILINEAR = 0x2
PORTABLE = 0x40000
BICUBIC = 0x4  # SWS_BICUBIC, with which FFmpeg changes sizes
MAX_KEPT_PACKETS = 2**19  # packets of a file kept in memory: half a kB each beside their bytes
UNRELIABLE = "its time stamps are not reliable"
# FFmpeg knows more kinds of side data than PyAV, as EXIF, for which PyAV would raise an error.
Type._missing_ = classmethod(lambda kinds, _: kinds.PANSCAN)  # type: ignore[assignment]


class NoTimeStampsError(VideoError):
    """A video file whose time stamps do not tell which packets a segment needs."""


class ExactVideo(FrameReader):
    """Frames of a video file by PyAV, or of a segment by their time stamps.

    `portable` as in `FrameConverter`. Of a segment, raises NoTimeStampsError if the file has to be
    decoded in order, and VideoError if no frame lies in it.
    """

    def __init__(
        self, path: Path, max_pixels: int, portable: bool, segment: Optional[Segment] = None
    ):
        super().__init__(path, "pyav")
        self._max_pixels = max_pixels
        self._segment = segment
        self._converter = FrameConverter(portable)
        self._packets: list = []  # of an index
        self._packet_of_frame = np.empty(0, np.int64)  # frame -> packet, in decoding order
        self._frames: Iterator[av.VideoFrame] = iter(())
        self._counts_packets = True  # whether packets tell the number of frames
        with reading(path, self.reader):
            try:
                self._open()
                self.fps = float(self._stream.average_rate or 0)
                self._length = self._read_segment(segment) if segment else self._read_index()
            except av.error.FFmpegError:
                raise self._error("it does not open: cut short, or not one video") from None
        self._next = self._length  # reading in order opens the file again

    def _open(self) -> None:
        """Opens the file, also again."""
        if self._handle is not None:
            self._handle.close()
        self._handle = open_container(self.path, self._max_pixels)
        self._stream = open_stream(self._handle, self._max_pixels)
        self._size = self._stream.codec_context.width, self._stream.codec_context.height

    def _read_index(self) -> int:
        """Reads all packets; returns the number of frames. Keeps the packets if it can use them."""
        most = MAX_KEPT_PACKETS if self.path.stat().st_size <= MAX_FILE_BYTES else 0
        self._table = table = PacketTable(self._handle, self._stream)
        packets = []
        for packet in self._handle.demux(self._stream):
            if packet.size:
                table.add(packet)
                if len(packets) < most:
                    packets.append(packet)
        if not table.shown:
            raise self._error("it has no video frames")
        self._counts_packets = table.counts_frames
        if not self._counts_packets:  # decodes all frames
            self._open()
            decoded = [(frame.pts, frame.dts) for frame in self._decode_all()]
            self.damaged = 0
            if not decoded:
                raise self._error("none of its frames can be decoded")
            unit = float(self._stream.time_base)
            self._measure_times(list_frame_stamps(decoded, table.formats, unit))
            return len(decoded)
        if len(packets) == len(table.shown) and table.is_index:
            self._keep_packets(packets)
        # The decoder gives a frame a packet. It keeps a second picture for the next packet, and the
        # one that it keeps at the end never comes.
        kept = 0
        for count in table.shown:
            kept = max(kept + count - 1, 0)
        column = table.dts if "avi" in table.formats else table.pts
        stamps = [stamp for stamp, count in zip(column, table.shown) if count]
        if None not in stamps and max(table.shown) <= 1:
            self._measure_times(np.sort(stamps), table.last_duration)
        return sum(table.shown) - kept

    def _read_segment(self, segment: Segment) -> int:
        """Reads only the packets that a segment needs; returns the number of its frames."""
        stream = self._stream
        stat = self.path.stat()
        is_constant = keeps_parameters(self.path, self._max_pixels, stat.st_mtime_ns, stat.st_size)
        table = PacketTable(self._handle, stream)
        for packet in itertools.islice(self._handle.demux(stream), 2):
            if packet.size:
                table.add(packet)
        # The first frame of the file must be that of its first packet.
        is_clean = table.has_stamps and table.starts_clean and table.pts[0] == min(table.pts)
        origin = stream.start_time
        if origin is None or not is_clean or not is_constant:
            raise NoTimeStampsError(self.path, self.reader, UNRELIABLE)
        second = 1 / float(stream.time_base)
        start, end = (origin + math.ceil((t - HALF_MILLISECOND) * second) for t in segment)
        self._table = PacketTable(self._handle, stream)
        packets = self._read_part(max(start, origin), end)
        for packet in packets:
            self._table.add(packet)
        if not self._table.is_index:
            raise NoTimeStampsError(self.path, self.reader, UNRELIABLE)
        stamps = self._keep_packets(packets)
        first, last = np.searchsorted(stamps, (max(start, origin), end))
        self._packet_of_frame = self._packet_of_frame[first:last]
        if first == last:
            raise self._error(EMPTY_SEGMENT.format(*segment))
        following = stamps[last] - stamps[last - 1] if last < len(stamps) else 0
        self._measure_times(stamps[first:last], int(following))
        return len(self._packet_of_frame)

    def _read_part(self, start: int, end: int) -> list:
        """The packets for the frames between time stamps."""
        stream = self._stream
        second = 1 / float(stream.time_base)
        # A key frame up to a millisecond later is the first frame of the segment.
        latest = start + int(2 * HALF_MILLISECOND * second)
        back = 0  # time units
        while True:
            stamp = max(latest - back, stream.start_time)
            self._handle.seek(stamp, stream=stream)
            packets = []
            size = 0
            for packet in self._handle.demux(stream):
                if packet.dts is not None and packet.dts >= end:
                    return packets
                is_before = packet.pts is not None and packet.pts <= latest
                if not packets and not (is_before and self._table.inspect(packet)[1]):
                    break  # from this packet on, not all frames of the segment can be decoded
                packets += [packet] if packet.size else []
                size += packet.size
                if size > MAX_FILE_BYTES or len(packets) == MAX_KEPT_PACKETS:
                    raise NoTimeStampsError(self.path, self.reader, UNRELIABLE)
            if packets:
                return packets
            if stamp == stream.start_time:
                raise NoTimeStampsError(self.path, self.reader, UNRELIABLE)
            back = 2 * back or math.ceil(second)

    def _measure_times(self, stamps: np.ndarray, last: int = 0) -> None:
        """Sets the rate and times, by time stamps and the duration of the last frame, if known."""
        unit = float(self._stream.time_base)
        self.fps, self.times = measure_times(stamps * unit, self.fps, last * unit)
        self.stamps = self.times
        if self.times is None and self.fps and len(np.unique(stamps)) > 1:
            self.stamps = np.append((stamps - stamps[0]) * unit, len(stamps) / self.fps)

    def _keep_packets(self, packets: list) -> np.ndarray:
        """Makes the index of the packets; returns the time stamps of the frames, sorted."""
        self._packets = packets
        shown = np.flatnonzero(self._table.shown)
        stamps = np.array([packets[k].pts for k in shown])
        order = np.argsort(stamps)
        self._packet_of_frame = shown[order]
        return stamps[order]

    def is_ordinary(self) -> bool:
        """Whether a decoder that counts packets, and knows no matrix and one stream, is right."""
        is_counted = self._counts_packets and set(self._table.shown) == {1}
        if not is_counted or len(self._handle.streams.video) > 1 or self._table.codec == "hevc":
            return False
        next(self._decode([0]))
        return not self._converter.has_matrix

    def _decode_all(self) -> Iterator[av.VideoFrame]:
        """All frames in order; decoding has not begun. Errors are passed over if it must count."""
        has_begun = False
        self._converter.size = None
        for packet in demux_to_end(self._handle, self._stream):
            try:
                frames = self._stream.decode(packet)
            except av.error.InvalidDataError:
                if self._counts_packets:
                    raise
                context = self._stream.codec_context
                check_size(context.width, context.height, self._max_pixels)
                self.damaged += has_begun
                continue
            has_begun = has_begun or bool(frames)
            yield from frames

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        done = 0
        if self._packets:
            with reading(self.path, self.reader):
                for pixels in self._decode_parts(indices):
                    yield pixels
                    done += 1
        if done < len(indices):
            yield from self._decode_in_order(indices[done:])

    def in_order(self) -> Iterator[np.ndarray]:
        numbers = list(range(len(self)))
        return self._decode(numbers) if self._segment else self._decode_in_order(numbers)

    def _decode_in_order(self, indices: list[int]) -> Iterator[np.ndarray]:
        """The frames as they are if decoding starts with the file."""
        if self._segment is not None:
            video = ExactVideo(self.path, self._max_pixels, self._converter.portable)
            with SegmentReader(video, self._segment) as part:
                for pixels in part._decode(indices):
                    self.damaged = part.damaged
                    yield pixels
            return
        with reading(self.path, self.reader):
            if indices[0] < self._next:
                self._open()
                self._frames = self._decode_all()
                self._next = 0
            for index in indices:
                pixels = None
                while pixels is None:
                    try:
                        frame = next(self._frames)
                    except (av.error.FFmpegError, StopIteration) as error:
                        reason = f"frame {self._next} of {len(self)} cannot be decoded {error}"
                        raise self._error(reason) from None
                    self._converter.follow(frame)
                    self.damaged += frame.is_corrupt
                    if self._next == index:
                        pixels = self._converter.to_pixels(frame)
                    self._next += 1
                yield pixels

    def _decode_parts(self, indices: list[int]) -> Iterator[np.ndarray]:
        """The requested frames by the index, up to one that is not as it would be in order.

        A damaged picture is made of the pictures before it, and a size is that of the first frame.
        """
        packets = self._packets
        parts: dict[int, list[int]] = {}  # random-access point: ascending packets that start there
        for packet in sorted(int(self._packet_of_frame[k]) for k in indices):
            # A picture presented before the key frame it follows may refer to earlier ones.
            stamp = packets[packet].pts
            starts = reversed(self._table.starts)
            start = next(i for i in starts if i <= packet and packets[i].pts <= stamp)
            parts.setdefault(start, []).append(packet)
        numbers = {packets[self._packet_of_frame[k]].pts: k for k in indices}
        missing = iter(indices)
        expected = next(missing)
        early: dict[int, np.ndarray] = {}
        self._next = len(self)  # decoding in order must start again
        try:
            for start, needed in parts.items():
                for frame in self._decode_part(start, needed):
                    if frame.is_corrupt or (frame.width, frame.height) != self._size:
                        return
                    self._converter.follow(frame)
                    if frame.pts in numbers:
                        early[numbers[frame.pts]] = self._converter.to_pixels(frame)
                    while expected in early:
                        yield early.pop(expected)
                        expected = next(missing, -1)
                if expected in map(numbers.get, (packets[k].pts for k in needed)):
                    return
        except av.error.FFmpegError:
            return

    def _decode_part(self, start: int, needed: list[int]) -> Iterator[av.VideoFrame]:
        """Decodes the packets from `start` to the last of `needed`, without non-reference frames.

        Frames of other packets may come as well.
        """
        requested = set(needed)
        context = self._stream.codec_context
        context.flush_buffers()
        for i in range(start, needed[-1] + 1):
            context.skip_frame = "DEFAULT" if i in requested else "NONREF"
            yield from context.decode(self._packets[i])
        context.skip_frame = "DEFAULT"
        yield from context.decode(None)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._packets = []
        self._frames = iter(())
        super().close()

    def __del__(self):
        """PyAV's objects refer to each other: without this, the file stays open for long."""
        self.close()


@functools.lru_cache(maxsize=2**16)  # training reads many segments of a file
def keeps_parameters(path: Path, max_pixels: int, *_: int) -> bool:
    """Whether no key frame of a file brings other parameter sets than its header has.

    Further arguments tell the version of the file.
    """
    with contextlib.suppress(av.error.FFmpegError), open_container(path, max_pixels) as container:
        stream = choose_stream(container)
        table = PacketTable(container, stream)
        if table.codec not in PARAMETER_CODECS:
            return True
        end = (container.start_time or 0) + (container.duration or 0)
        container.seek(end)  # the index of Matroska is at the end
        for stamp in [entry.timestamp for entry in stream.index_entries if entry.is_keyframe]:
            container.seek(stamp, stream=stream)
            packet = next(container.demux(stream))
            if packet.size and table.changes_parameters(packet):
                return False
        return True
    return False


def open_container(path: Path, max_pixels: int = MAX_PIXELS) -> InputContainer:
    """Opens a video file with FFmpeg; raises FFmpeg's errors."""
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    streams = {"max_pixels": str(max_pixels)}  # FFmpeg may decode to find the size
    with plain_path(path) as plain:
        return av.open(plain, options=streams, container_options=options, **METADATA)


def open_stream(container: InputContainer, max_pixels: int) -> Any:
    """The stream of `choose_stream`, ready to be decoded by one thread.

    Raises ValueError if there is none, or no decoder, or if a frame is larger than `max_pixels`.
    """
    stream = choose_stream(container)
    context = stream.codec_context
    if context is None:
        raise ValueError("this FFmpeg has no decoder for its codec")
    check_size(context.width, context.height, max_pixels)
    context.thread_count = 1  # many workers decode at once
    context.options = {"max_pixels": str(max_pixels)}  # also after a change of size
    return stream


class FrameConverter:
    """Makes RGB pixels (H, W, 3) of frames, turned and mirrored as their file says.

    A matrix in the stream is in its first packet only, and valid until the next key frame. So
    `follow` gets every frame that the decoder gives, before `to_pixels`. Frames of another size
    than the first one are scaled to it, as by FFmpeg. If it is `portable`, the pixels are the same
    on x86-64 and aarch64.
    """

    def __init__(self, portable: bool = False):
        self.portable = portable
        self.has_matrix = False
        self.size: Optional[tuple[int, int]] = None  # of the first frame
        self._orientation = UPRIGHT
        self._to_rgb = VideoReformatter()

    def follow(self, frame: av.VideoFrame) -> None:
        self.size = self.size or (frame.width, frame.height)
        # `frame.side_data` would keep the frame in memory: both refer to each other.
        matrix = SideDataContainer(frame).get("DISPLAYMATRIX")
        if matrix is not None:
            self.has_matrix = True
            self._orientation = read_display_matrix(bytes(matrix))
        elif frame.key_frame:
            self._orientation = UPRIGHT

    def to_pixels(self, frame: av.VideoFrame) -> np.ndarray:
        width, height = self.size or (frame.width, frame.height)
        is_same = (frame.width, frame.height) == (width, height)
        flags = (BILINEAR if is_same else BICUBIC) | (PORTABLE if self.portable else 0)
        # A converter starts one thread per core by default. The shorthands of PyAV
        # (`frame.reformat`, `to_ndarray(format)`) keep these threads in a converter of the frame,
        # and a process that is forked later waits for them for ever.
        rgb = self._to_rgb.reformat(frame, width, height, "rgb24", interpolation=flags, threads=1)
        return self._orientation.apply(rgb.to_ndarray())
