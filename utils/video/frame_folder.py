"""Folders of images, one for each frame of a video, or of its optical flow."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from typing import Optional, Union

import numpy as np

from utils.video.images import open_image
from utils.video.reader import MAX_PIXELS, FrameReader, Segment, SegmentReader, read_bytes, reading


class FrameFolder(FrameReader):
    """A folder of images numbered without a gap. Pixels equal PIL's.

    Index 0 is the first number that exists: 0, else 1, else the lowest one. `num_frames` None
    counts them, and raises VideoError if there is none, or a gap in their numbers.

    `image_tmpl` is the template of file names. RGB: one field, the number. Optical flow, which is
    read as (n, H, W, 2) for x and y: two fields (x or y, number); three (the folder's name as an
    integer, x or y, number); or one (number) with x and y in the first two colour channels. Raises
    ValueError for another template.
    """

    def __init__(
        self,
        path: Union[str, Path],
        num_frames: Optional[int],
        image_tmpl: str,
        flow: bool = False,
        max_pixels: int = MAX_PIXELS,
        fps: float = 0.0,
    ):
        super().__init__(Path(path), "PIL")
        self.fps = fps
        self._template = image_tmpl
        self._max_pixels = max_pixels
        self._fields = sum(field == "" for _, field, _, _ in Formatter().parse(image_tmpl))
        if self._fields not in ((1, 2, 3) if flow else (1,)):
            raise ValueError(f"data.image_tmpl {image_tmpl!r} has {self._fields} fields {{}}")
        if self._fields == 3 and not self.path.name.isdecimal():
            raise self._error(f"data.image_tmpl {image_tmpl!r} needs a number as folder name")
        self._folder = (int(self.path.name),) if self._fields == 3 else ()
        self._fields_before = (*self._folder, "x") if self._fields > 1 else ()  # the number
        self._read = self._flow if flow else functools.partial(self._image, "RGB")
        self._length = num_frames
        if num_frames is None:
            numbers = set(self.list_numbers())
            if not numbers:
                raise self._error(f"it has no frame named {self._template}")
            end = max(numbers)
            missing = set(range(min(numbers), end)) - numbers
            if missing:
                gap = f"frame {min(missing)} is missing ({len(missing)} in all), the last is {end}"
                raise self._error(gap)
            self._length = len(numbers)

    def cut(self, segment: Segment) -> SegmentReader:
        """The frames of a segment. Looks for their files only, up to the first that is missing."""
        frames = segment.find_frames(self.fps)
        first = self._first_number
        self._length = next((k for k in frames if not self._has_number(first + k)), frames.stop)
        return SegmentReader(self, segment)

    def _has_number(self, number: int) -> bool:
        """Whether the file of a frame exists; for flow, the file of x."""
        return (self.path / self._template.format(*self._fields_before, number)).is_file()

    @functools.cached_property
    def _first_number(self) -> int:
        """That of the first frame; 1 if there is none."""
        known = next((number for number in (0, 1) if self._has_number(number)), None)
        return min(self.list_numbers(), default=1) if known is None else known

    def list_numbers(self) -> Iterator[int]:
        """The numbers of all files, in any order."""
        before = iter(self._fields_before)
        pattern = ""
        for text, field, form, _ in Formatter().parse(self._template):
            pattern += re.escape(text)
            if field is not None:
                value = next(before, None)
                pattern += r"(\d+)" if value is None else re.escape(format(value, form or ""))
        depth = "/".join("*" for _ in Path(self._template).parts)
        for path in self.path.glob(depth):
            match = re.fullmatch(pattern, path.relative_to(self.path).as_posix())
            if match and self._has_number(int(match[1])):
                yield int(match[1])

    def _decode(self, indices: list[int]) -> Iterator[np.ndarray]:
        return (self._read(self._first_number + index) for index in indices)

    def _flow(self, number: int) -> np.ndarray:
        if self._fields == 1:
            return self._image("RGB", number)[:, :, :2]
        x, y = (self._image("L", *self._folder, axis, number) for axis in "xy")
        if x.shape != y.shape:
            raise self._error(f"flow frame {number}: x is {x.shape}, y {y.shape}")
        return np.stack((x, y), axis=2)

    def _image(self, mode: str, *fields: object) -> np.ndarray:
        path = self.path / self._template.format(*fields)
        with reading(path, self.reader):
            return open_image(read_bytes(path), mode, self._max_pixels)


def count_frames(folder: Path, image_tmpl: str, flow: bool = False) -> int:
    """The number of frames of a folder; VideoError if there is none, or a gap in their numbers."""
    return len(FrameFolder(folder, num_frames=None, image_tmpl=image_tmpl, flow=flow))
