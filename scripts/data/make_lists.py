"""Makes the lists of a data set: a public one's from its annotations, your own from class folders.

    python scripts/data/make_lists.py --dataset NAME --annotations DIR --videos ROOT --out LISTS
                                 [--names txt|csv] [--split 1|2|3]
    python scripts/data/make_lists.py --videos DIR --out LISTS [--names txt|csv] [--test 0.2]
        [--seed 0]

NAME: kinetics (400, 600, 700), sthv1, sthv2 (Something-Something), jester, moments, ucf101, hmdb51;
the last two have three splits. DIR holds their annotations as distributed; the videos are looked
for below ROOT, in whatever folders. Writes LISTS/train.txt and val.txt or, with `--names csv`,
train.csv and val.csv, and as test.csv the latter again; missing.txt: what is annotated and not
there; unlisted.txt: what is there and not annotated.

Without NAME: DIR/CLASS/VIDEO gives train.txt and test.txt (or the same csv), a share of every class
to test with. Of equal files (`twins` counts the groups) the first alone is listed; `others` are
files that are no videos by their names.

labels.txt has the classes' names in the order of their labels. Nobody decodes anything here:
`scripts/data/check_videos.py` does. The last line of stdout is one JSON object of counts and lists.
Where the data sets come from and how they lie: docs/data_preparation.md.
"""

import json
import sys
from pathlib import Path
from typing import Literal, Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli
from utils.data.prepare.class_folders import look, split
from utils.data.prepare.match_videos import match
from utils.data.prepare.public_annotations import FRAMES, READERS, read
from utils.files import report_write_errors, write_text
from utils.messages import escape_control, join_names

CSV = ("train.csv", "test.csv", "val.csv")
OWN = {"txt": ("train.txt", "test.txt"), "csv": CSV}
OFFICIAL = {"txt": ("train.txt", "val.txt"), "csv": CSV}
SHOWN = 5  # files named that are no videos
OPTIONS = {"with": ("annotations", "split"), "without": ("test", "seed")}


def main(
    *,
    videos: Path,
    out: Path,
    names: Literal["txt", "csv"] = "txt",
    dataset: Optional[Literal[tuple(READERS)]] = None,
    **options,
) -> None:
    for word, known in OPTIONS.items():
        if (word == "with") != bool(dataset) and set(known) & set(options):
            raise ValueError(f"--{' and --'.join(known)} go {word} --dataset")
    root = videos.resolve()
    if dataset:
        result, files = official(root, out, dataset, names, **options)
    else:
        result, files = own(root, names, **options)
    with report_write_errors(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        for name, lines in files.items():
            write_text(out / name, "".join(f"{line}\n" for line in lines))
    named = (OFFICIAL if dataset else OWN)[names]
    lists = [str((out / name).resolve()) for name in named]
    print(json.dumps({"root": str(root), **result, "lists": lists}))


def official(
    root: Path,
    folder: Path,
    dataset: str,
    names: str,
    *,
    annotations: Optional[Path] = None,
    split: Literal[1, 2, 3] = 1,
) -> tuple[dict, dict]:
    """What to tell, and {file: lines}."""
    if not annotations:
        raise ValueError("missing --annotations: the folder of the official annotation files")
    given = read(dataset, annotations, split)
    result = match(given, root, dataset in FRAMES)
    parts = {name: result.train if "train" in name else result.val for name in OFFICIAL[names]}
    files = {**parts, "labels.txt": given.names}
    files.update({"missing.txt": result.missing, "unlisted.txt": result.others})
    for file in given.files:
        if file.resolve().parent == folder.resolve() and file.name in files:
            raise ValueError(f"--out: {file} is one of the annotations; choose another folder")
    for path in result.doubles:
        tell(f"a second file of one video, not listed: {path}")
    counts = {name: len(getattr(result, name)) for name in result._fields}
    return {"classes": len(given.names), **counts}, files


def tell(line: str) -> None:
    print(escape_control(line), file=sys.stderr)


def own(root: Path, names: str, *, test: float = 0.2, seed: cli.Seed = 0) -> tuple[dict, dict]:
    """What to tell, and {file: lines}."""
    if not 0 < test < 1:
        raise ValueError(f"--test must lie between 0 and 1, not {test}")
    result = look(root)
    train, tested = split(result, test, seed)
    files = {name: train if "train" in name else tested for name in OWN[names]}
    for group in result.twins:
        tell(f"equal files, listed once: {', '.join(group)}")
    if result.others:
        tell(f"no videos, left out: {join_names(result.others, SHOWN)}")
    for name in result.nested:
        messages = f"all videos of class {name} lie in folders below it; is --videos one too high?"
        tell(messages)
    counts = {"classes": len(result.classes), "train": len(train), "test": len(tested)}
    counts.update(others=len(result.others), twins=len(result.twins))
    return counts, {**files, "labels.txt": sorted(result.classes)}


if __name__ == "__main__":
    cli.run_command(main, __doc__, official, own)
