"""The documents of this project, their commands and anchors."""

import re
from pathlib import Path
from typing import NamedTuple

from utils.files import ROOT
from utils.networks import list_networks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / network / "README.md" for network in list_networks()]
# tests/test_chinese.py: their commands are those of the English pages.
CHINESE = {ROOT / "README_CN.md", *(ROOT / "docs" / "zh").glob("*.md")}
DOCUMENTS = [page for page in PAGES if page not in CHINESE]
MARK = "not run by the tests: "
# Files that the reader writes
FILE = re.compile(r"```(?:yaml|text) file=(\S+)\n(.*?)```", re.DOTALL)
BLOCK = re.compile(rf"(?:<!-- {MARK}(.+?) -->\n)?```bash\n(.*?)```", re.DOTALL)


class Line(NamedTuple):
    """A command, and the reason why it is not run; empty if it is run."""

    command: str
    reason: str


def read_lines(document: Path) -> list[Line]:
    """The commands of a page."""
    result = []
    for reason, block in BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, line_reason = line.partition(f"# {MARK}")
            if command.strip():
                result.append(Line(command.strip(), line_reason.strip() or reason))
    return result


def make_anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
