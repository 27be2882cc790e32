"""Prints which installed packages have another version than constraints.txt pins.

    python scripts/compare_versions.py

One line a package: its name, the pinned and the installed version; a dash for none.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

from collections.abc import Iterator
from importlib.metadata import distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_PINNED = {"pip", "mindspore-video-zoo"}


def read_pins(text: str) -> dict[str, str]:
    """{package: version} of the lines whose markers fit this Python."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


def list_changes(pins: dict[str, str], installed: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """(package, pinned version, installed version) of every package with two versions."""
    for name in sorted(installed.keys() - NOT_PINNED):
        if installed[name] != pins.get(name):
            yield name, pins.get(name, "-"), installed[name]


def main() -> None:
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    installed = {canonicalize_name(item.metadata["Name"]): item.version for item in distributions()}
    changes = list(list_changes(pins, installed))
    for row in [("package", "pinned", "newest"), *changes]:
        print("{:28}{:16}{}".format(*row))
    print(f"{len(changes)} of {len(installed)} packages differ from constraints.txt")


if __name__ == "__main__":
    main()
