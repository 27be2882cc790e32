"""Writes `variants.json`: X3D-XS, M, L, dense networks and the form of pytorchvideo.

From the root of the repository:

    python x3d/tests/golden/reference.py            writes the file
    python x3d/tests/golden/reference.py --check    compares; writes nothing

It needs PyTorch; the tests read only the file. The network is `benchmarks/torch/x3d.py`, which
first reproduces `x3d_s_small.json`, a case of facebookresearch/SlowFast 287ec007. pytorchvideo
f3142bb has other names and no batch norm in a shortcut that keeps the number of channels.

The seed of a case is the one of 0 to 11 whose gradients in float32 are nearest to those in float64:
with its input no unit lies near zero before a ReLU. `names` is the SHA-256 of the lines
`name shape` of the parameters, in order.

zjut_mindvideo e942f615 computed `mindvideo_x3d.json` with MindSpore; it is not recomputed here.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from benchmarks.torch.x3d import X3D
from tests.golden import torch_results
from x3d.tests.golden_case import X3DCase
from x3d.tests.pytorchvideo import rename_to_pytorchvideo


def build_empty(case: dict) -> X3D:
    net = X3D(**X3DCase(case, "grouped").model_arguments())
    if not case["config"].get("norm_always", True):
        net.s2.pathway0_res0.branch1_bn = nn.Identity()
    return net


def build(case: dict) -> X3D:
    is_renamed = not case["config"].get("norm_always", True)
    rename = rename_to_pytorchvideo if is_renamed else str
    return torch_results.fill_weights(build_empty(case), rename)


def evaluate(net: X3D, clip: torch.Tensor) -> dict:
    """Probabilities, and logits, both the mean over positions."""
    scores = []
    net.head.projection.register_forward_hook(lambda _, __, output: scores.append(output))
    output = net(clip)
    return {"output": output, "logits": scores[0].mean((1, 2, 3))}


def compute_losses(case: dict, scores: torch.Tensor) -> dict:
    return {"loss": F.cross_entropy(scores, torch.tensor(case["labels"]))}


def compute_case(case: dict) -> dict:
    net = build_empty(case)
    lines = "\n".join(f"{name} {list(v.shape)}" for name, v in net.named_parameters())
    computed = {
        "names": hashlib.sha256(lines.encode()).hexdigest(),
        "parameters": sum(p.numel() for p in net.parameters()),
        **torch_results.compute_results(
            case, build=build, compute_losses=compute_losses, evaluate=evaluate
        ),
    }
    if "eval_large" in case:
        with torch.no_grad():
            output = build(case).eval()(torch_results.read_input(case["eval_large"]))
        computed["eval_large"] = {"output": torch_results.to_digits(output, 9)}
    if not case["config"].get("norm_always", True):
        computed["manifest"] = [
            [rename_to_pytorchvideo(name), list(v.shape), str(v.dtype).removeprefix("torch.")]
            for name, v in net.state_dict().items()
        ]
    return computed


if __name__ == "__main__":
    names = ["x3d_s_small"]
    torch_results.update_cases(__doc__, folder=HERE, compute_case=compute_case, originals=names)
