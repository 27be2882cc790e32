"""Three small data sets that share motions but not labels, for training on several at once."""

from pathlib import Path
from typing import Union

from utils.data.synthetic.motion_videos import MOTIONS, draw_dataset, write_text

# Each motion its own class; only the axis; all but turns, in another order.
SETS = {
    "eight": {motion: (motion,) for motion in MOTIONS},
    "axes": {
        "horizontal": ("right", "left"),
        "angle": ("clockwise", "counterclockwise"),
        "vertical": ("up", "down"),
        "size": ("grow", "shrink"),
    },
    "moves": {motion: (motion,) for motion in reversed(MOTIONS[:6])},
}


def draw_sets(
    root: Union[str, Path], train_per_motion: int = 20, test_per_motion: int = 8, seed: int = 0
) -> dict[str, dict[str, int]]:
    """Draws root/<name> for each of SETS, with train.csv, val.csv, test.csv and labels.txt.

    No two sets share a video. A line of a list is "videos/train/left_000.mp4 0".

    Returns:
        {name: lines of train.csv and test.csv, and how many videos this call has drawn}.

    Raises:
        ValueError: as `draw_dataset`.
    """
    found = {}
    for number, (name, classes) in enumerate(SETS.items()):
        home = Path(root) / name
        counts = draw_dataset(home, train_per_motion, test_per_motion, len(SETS) * seed + number)
        label_of = {motion: k for k, motions in enumerate(classes.values()) for motion in motions}
        for split in ("train", "test"):
            pairs = [line.split() for line in (home / f"{split}.txt").read_text().splitlines()]
            named = [(path, MOTIONS[int(label)]) for path, label in pairs]
            lines = [f"{path} {label_of[motion]}\n" for path, motion in named if motion in label_of]
            counts[split] = len(lines)
            for target in ("train",) if split == "train" else ("val", "test"):
                write_text(home / f"{target}.csv", "".join(lines))
        write_text(home / "labels.txt", "".join(f"{each}\n" for each in classes))
        found[name] = counts
    return found
