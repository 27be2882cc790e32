"""The names of classes: a text file with a name a line, in the order of the labels.

`utils/labels` holds those of public data sets, for `labels: NAME` in a yaml.
"""

from pathlib import Path
from typing import Optional

from utils.config import ROOT, known

SHIPPED = ROOT / "utils" / "labels"


def find_names(beside: Optional[Path], shipped: str, classes: int) -> list[str]:
    """Of a file beside the lists, where there is one, or else of what the yaml calls `labels`.

    Empty where neither says, and where the network has other classes than the yaml's data set.
    Raises ValueError where a file beside the lists has not as many as classes.
    """
    if beside is not None and beside.is_file():
        return read_names(beside, classes, f"{beside}")
    if not shipped:
        return []
    known(shipped, [file.stem for file in sorted(SHIPPED.glob("*.txt"))], "list of data.labels")
    names = (SHIPPED / f"{shipped}.txt").read_text(encoding="utf-8").splitlines()
    return names if len(names) == classes else []


def read_names(path: Path, classes: int, what: str) -> list[str]:
    """The lines of a file but empty ones at its end; `what` is what an error calls it."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    names = [line.strip() for line in text.rstrip().split("\n")]
    if len(names) != classes:
        raise ValueError(
            f"{what} has {len(names)} names, the network {classes} classes; give a line for each"
        )
    return names
