"""Says what is to be seen in one video, by all classes of all data sets together.

    python mvit_multi/predict.py --config_path Y --checkpoint_path C --video F

Every data set samples and crops the video in its own way and asks its own head; probabilities are
averaged over views. `joint` ranks all classes of all sets, each set with the same weight. The last
line of stdout is one JSON object: video, joint (ten entries of set, label, name, probability), sets
(five for each). Names come from `labels.txt` beside a set's lists, where there is one.
"""

import sys
from itertools import chain
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own room

import numpy as np
from mindspore import nn

from mvit_multi.config import Config
from mvit_multi.dataset import Sample, list_file, views_of
from mvit_multi.evaluation import OneHead
from mvit_multi.lr_generator import HEAD
from mvit_multi.model import MViT
from utils import command, inference, run_log, runtime
from utils.metrics import print_result, video_scores

JOINT, OWN = 10, 5  # entries


def main(cfg: Config, checkpoint_path: str, video: str) -> None:
    rt = runtime.start(cfg.run)
    run_log.start_log(rt)
    if not Path(video).is_file():
        raise ValueError(f"--video: {video} does not exist")
    net = inference.load(MViT, cfg, checkpoint_path, HEAD)
    shares = [probabilities(net, cfg, k, video) for k in range(len(cfg.data.sets))]
    ranked = [entries(cfg, k, share) for k, share in enumerate(shares)]
    joint = [
        {**entry, "probability": round(entry["probability"] / len(ranked), 6)}
        for entry in chain(*ranked)
    ]
    joint = sorted(joint, key=lambda entry: -entry["probability"])[:JOINT]
    sets = {each.name: own[:OWN] for each, own in zip(cfg.data.sets, ranked)}
    print_result({"video": video, "joint": joint, "sets": sets}, rt)


def probabilities(net: nn.Cell, cfg: Config, which: int, video: str) -> np.ndarray:
    """(C_k,), the mean over the set's views."""
    views = views_of(Sample(video, which, 0), cfg.data, cfg.data.sets[which])
    return video_scores(OneHead(net, which), views[None])[0]


def entries(cfg: Config, which: int, share: np.ndarray) -> list[dict]:
    """The classes of one set, the most probable first."""
    file = list_file(cfg, which, "labels").path.with_suffix(".txt")
    names = file.read_text().splitlines() if file.is_file() else []
    return [
        {
            "set": cfg.data.sets[which].name,
            "label": int(label),
            "name": names[label] if label < len(names) else "",
            "probability": round(float(share[label]), 6),
        }
        for label in np.argsort(-share, kind="stable")
    ]


if __name__ == "__main__":
    command.run(main, Config, __doc__, ["checkpoint_path", "video"])
