"""Makes the lists of a data set of your own, out of a folder of class folders of videos.

    python scripts/make_lists.py --videos DIR --out LISTS [--test 0.2] [--names txt|csv] [--seed 0]

Writes LISTS/train.txt and test.txt, lines `class/video.mp4 label` below DIR, a share of every class
to test with; LISTS/labels.txt, the classes' names in the order of their labels. `--names csv`:
train.csv, val.csv and test.csv, as mvit_multi asks for. Of equal files the first alone is listed.
Nobody decodes anything here: `scripts/scan_videos.py` does. The last line of stdout is one JSON
object: root, classes, train, test, others (files that are no videos), twins, lists.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils import command
from utils.checkpoint import explained, write_text
from utils.class_folders import look, split

NAMES = {"txt": ("train.txt", "test.txt"), "csv": ("train.csv", "test.csv", "val.csv")}


def main(videos: str, out: str, test: str = "0.2", names: str = "txt", seed: str = "0") -> None:
    if names not in NAMES:
        raise ValueError(f"--names is {names}; choose one of {', '.join(NAMES)}")
    if not seed.isdecimal():
        raise ValueError(f"--seed must be a whole number, not {seed}")
    root, folder = Path(videos).resolve(), Path(out)
    found = look(root)
    train, tested = split(found, share_of(test), int(seed))
    parts = (train, tested, tested)
    with explained(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        lists = [folder / name for name in NAMES[names]]
        for path, lines in zip(lists, parts):
            write_text(path, "".join(f"{line}\n" for line in lines))
        write_text(folder / "labels.txt", "".join(f"{name}\n" for name in sorted(found.classes)))
    for group in found.twins:
        print(f"equal files, listed once: {', '.join(group)}", file=sys.stderr)
    result = {"root": str(root), "classes": len(found.classes), "train": len(train)}
    result.update(test=len(tested), others=len(found.others), twins=len(found.twins))
    print(json.dumps({**result, "lists": [str(path.resolve()) for path in lists]}))


def share_of(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"--test must lie between 0 and 1, not {text}")
    return share


def start() -> None:
    given, _ = command.parse(sys.argv[1:], ["videos", "out"], optional=["test", "names", "seed"])
    main(**given)


if __name__ == "__main__":
    command.enter(__doc__, start)
