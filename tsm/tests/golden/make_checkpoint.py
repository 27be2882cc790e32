"""Writes `tsm_r18_w2.pth.tar` with real PyTorch, in the form of the published files.

    python make_checkpoint.py SHAPES.json        [[name, shape], ...] of the state dict

The network is a ResNet-18 TSM of first width 2, 7 classes; arrays follow `fill`; every batch norm
has its counter; names have the prefix of a data-parallel wrapper; the format is the legacy one.
"""

import json
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from reference import fill

HERE = Path(__file__).resolve().parent


def main() -> None:
    state = OrderedDict()
    for name, shape in json.loads(Path(sys.argv[1]).read_text()):
        state[f"module.{name}"] = torch.nn.Parameter(torch.tensor(fill(name, tuple(shape))))
        if name.endswith("running_var"):
            counter = name.replace("running_var", "num_batches_tracked")
            state[f"module.{counter}"] = torch.tensor(5)
    checkpoint = {"epoch": 45, "arch": "resnet18", "state_dict": state, "best_prec1": 47.5}
    torch.save(checkpoint, HERE / "tsm_r18_w2.pth.tar", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
