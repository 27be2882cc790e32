"""Writes `variants.json`: the other depths of torchvision, in the manner of `resnet50_small.json`.

And `resnet18_w2.pth`, a narrow network as `torch.save` writes it. From the root of the repository:

    python resnet50/tests/golden/reference.py            writes the files
    python resnet50/tests/golden/reference.py --check    compares; writes nothing

It needs PyTorch; the tests read only the files. The network is `benchmarks/torch/resnet50.py`,
which first reproduces the case of torchvision 0.29.2. torchvision itself wrote the committed files.
`names` is the SHA-256 of the lines `name shape` of the state dict, in order.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from benchmarks.torch.resnet50 import ResNet
from tests.golden import torch_results


def build(case: dict) -> ResNet:
    return torch_results.fill_weights(ResNet(case["config"]["arch"], case["config"]["num_classes"]))


def compute_losses(case: dict, scores: torch.Tensor) -> dict:
    """The losses of the usual recipes; the gradients are those of MindSpore's tutorial.

    It gives the other classes 0.1 together; PyTorch and NVIDIA give 0.1 to all classes.
    """
    label = torch.tensor(case["labels"])
    classes = scores.shape[1]
    # A weight of 0.1 on K - 1 classes is one of 0.1 K / (K - 1) on all K.
    tutorial = F.cross_entropy(scores, label, label_smoothing=0.1 * classes / (classes - 1))
    others = {
        "cross_entropy": F.cross_entropy(scores, label),
        "label_smoothing_0.1_uniform_over_all_K (PyTorch, NVIDIA)": F.cross_entropy(
            scores, label, label_smoothing=0.1
        ),
        "label_smoothing_0.1_over_K-1 (MindSpore tutorial)": tutorial,
    }
    return {"loss": tutorial, "other_losses": others}


def compute_case(case: dict) -> dict:
    net = build(case)
    lines = "\n".join(f"{name} {tuple(v.shape)}" for name, v in net.state_dict().items())
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "names": hashlib.sha256(lines.encode()).hexdigest(),
        **torch_results.compute_results(case, build, compute_losses),
    }


if __name__ == "__main__":
    names = ["resnet50_small"]
    if torch_results.update_cases(__doc__, folder=HERE, compute_case=compute_case, originals=names):
        narrow = torch_results.fill_weights(ResNet("resnet18", 10, first_width=2))
        torch.save(narrow.state_dict(), HERE / "resnet18_w2.pth")
