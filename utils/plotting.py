"""Saves figures."""

from pathlib import Path

from matplotlib.figure import Figure

from utils.files import report_write_errors, write_beside

DPI = 120  # pixels of an inch


def save(figure: Figure, path: Path, option: str = "--out") -> None:
    """Writes a picture whole or not at all; ValueError, with the option, if not."""
    with report_write_errors(path, option), write_beside(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=DPI)
        temporary.replace(path)
