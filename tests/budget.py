"""Counts the size of the project and fails above its limits; scripts/run_tests.sh runs it.

    python tests/budget.py

A limit is the present size, rounded up: whoever adds, removes. A limit is lowered when the size has
become smaller, until it is the goal.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Budget(NamedTuple):
    limit: int
    goal: int


# Lines of Python count blank ones and docstrings. Guides are the English pages of docs/.
BUDGETS = {
    "lines of Python": Budget(40600, 30500),
    "lines of tests": Budget(33600, 20000),
    "words of the guides": Budget(20000, 20000),
    "lines of JavaScript and HTML": Budget(700, 700),
    "files that a training loads": Budget(94, 65),
    "lines that a training loads": Budget(14480, 9500),
}


def list_files(*patterns: str) -> list[Path]:
    """The files in Git whose names match."""
    names = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [ROOT / name for name in names.splitlines() if (ROOT / name).is_file()]


def count_lines(files: list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def list_loaded() -> list[Path]:
    """The files of the project that tsm/train.py imports before its first step."""
    sys.path[0] = str(ROOT)
    import tsm.train

    assert tsm.train
    files = {Path(module.__file__) for module in [*sys.modules.values()] if is_own(module)}
    return sorted(file for file in files if file.stat().st_size)  # an empty one marks a package


def is_own(module: object) -> bool:
    file = vars(module).get("__file__")
    return bool(file) and Path(file).is_relative_to(ROOT) and ".venv" not in Path(file).parts


def measure() -> dict[str, int]:
    python = list_files("*.py")
    tests = [file for file in python if "tests" in file.parts or file.name == "conftest.py"]
    guides = sorted((ROOT / "docs").glob("*.md"))
    loaded = [file for file in list_loaded() if file != Path(__file__).resolve()]
    sizes = (
        count_lines(sorted({*python} - {*tests})),
        count_lines(tests),
        sum(len(file.read_text().split()) for file in guides),
        count_lines(list_files("*.js", "*.html")),
        len(loaded),
        count_lines(loaded),
    )
    return dict(zip(BUDGETS, sizes))


def main() -> None:
    above = []
    for name, size in measure().items():
        budget = BUDGETS[name]
        print(f"{name:30s} {size:6d}  limit {budget.limit:6d}  goal {budget.goal:6d}")
        above += [name] if size > budget.limit else []
    if above:
        sys.exit(f"above the limit: {', '.join(above)}; remove as much as you add")


if __name__ == "__main__":
    main()
