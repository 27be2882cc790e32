"""Saving figures, and short texts for titles."""

import contextlib
from pathlib import Path

from matplotlib.figure import Figure

from utils.files import escape_control, explained

DPI = 120  # pixels of an inch


def shortened(name: str, letters: int) -> str:
    """The name for a title: control characters escaped, of `letters` characters at most."""
    name = escape_control(name)
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def save(figure: Figure, path: Path, option: str = "--out") -> None:
    """Writes a picture whole or not at all; ValueError names the option where it cannot."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with explained(path, option):
            figure.savefig(temporary, format=path.suffix[1:], dpi=DPI)
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
