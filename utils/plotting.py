"""Saves figures."""

import contextlib
from pathlib import Path

from matplotlib.figure import Figure

from utils.files import guard_outputs, report_write_errors

DPI = 120  # pixels of an inch


def save(figure: Figure, path: Path, option: str = "--out") -> None:
    """Writes a picture whole or not at all; ValueError, with the option, if not."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with report_write_errors(path, option), guard_outputs([path], option=option):
            figure.savefig(temporary, format=path.suffix[1:], dpi=DPI)
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
