"""Trains like tsm/train.py, then writes this rank's weights beside the run: for a test."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from tsm import train
from tsm.config import Config
from utils import command
from utils.checkpoint import weights_of


def main(cfg: Config) -> None:
    kept = {}
    build = train.build

    def keep(cfg, rt, order):
        kept["rank"], kept["built"] = rt.rank, build(cfg, rt, order)
        return kept["built"]

    train.build = keep
    train.main(cfg)
    arrays = {name: p.asnumpy() for name, p in weights_of(kept["built"][0].net).items()}
    np.savez(cfg.run.out.parent / f"rank_{kept['rank']}.npz", **arrays)


if __name__ == "__main__":
    command.run(main, Config, __doc__)
