"""Videos that a list leaves out, by their names: published lists of bad videos."""

from pathlib import Path
from typing import Optional

from utils.files import read_text
from utils.video.media_files import VIDEO_SUFFIXES


class Exclusions:
    """The names in a file, one a line, with or without folders and the suffix of a video.

    `unmatched` has those that no video has had so far. Without a file, nothing is excluded.
    """

    def __init__(self, file: Optional[Path]):
        if file is not None and not file.is_file():
            raise ValueError(f"--exclude: {file} is not a file")
        text = read_text(file, f"--exclude: {file}", "surrogateescape") if file else ""
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        self.unmatched = dict.fromkeys(map(remove_suffix, lines))
        self._names = frozenset(self.unmatched)

    def contains(self, path: str) -> bool:
        """Whether the path ends in one of the names."""
        parts = remove_suffix(path).split("/")
        matches = {"/".join(parts[start:]) for start in range(len(parts))} & self._names
        for name in matches:
            self.unmatched.pop(name, None)
        return bool(matches)


def remove_suffix(path: str) -> str:
    """The path without the suffix of a video; any other dot stays."""
    stem, dot, suffix = path.rpartition(".")
    return stem if f"{dot}{suffix.lower()}" in VIDEO_SUFFIXES else path
