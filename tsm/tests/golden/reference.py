"""Writes `variants.json`, `names/*.txt.gz` and `tsm_r18_w2.pth.tar` with PyTorch.

From the root of the repository:

    python tsm/tests/golden/reference.py            writes the files
    python tsm/tests/golden/reference.py --check    compares `variants.json`; writes nothing

It needs PyTorch, not torchvision; the tests read only the files. The network is
`benchmarks/torch/tsm.py`, which follows the published description of the network and first
reproduces the case of the original, mit-han-lab/temporal-shift-module 1f6a834b, and the features of
torchvision's mobilenet_v2 (`torchvision_mobilenet_v2.json`, computed by torchvision).

`names/*.txt.gz` are the names and shapes of published kinds of checkpoints, derived from their
description and not read from files; `tsm_r18_w2.pth.tar` is a narrow network (ResNet-18 of first
width 2, 7 classes) in the form of the published files.

Keys of a case beyond those of `tests/golden/torch_results.py`:

    parameters               elements of all trainable tensors, also of frozen batch norms
    manifest_count           entries of the state dict
    manifest_sorted_sha256   of the sorted lines `name shape`; shape is 64,3,7,7, or scalar
    manifest_sha256, manifest_names    the same in an order; not recomputed: non-local blocks had
                             another order (g, theta, phi, W) than the original (g, W, theta, phi)
    eval.frame_scores        of unidirectional shifts: (N, T, classes), before the average
    train.zero_grad          parameters whose gradient is zero in exact arithmetic
    train.changed_buffers    of partial batch norm: the only buffers that training changes
    scale                    {part of a name: factor} of weights. Filled queries make a non-local
                             softmax pick one key, and float32 gradients behind it are noise;
                             smaller ones do not
"""

import gzip
import hashlib
import re
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from benchmarks.torch.parts import freeze_norms
from benchmarks.torch.resnet50 import DEPTHS, ResNet
from benchmarks.torch.tsm import TSM, MobileNetV2
from tests.golden import torch_results
from tsm.tests.golden_case import TSMCase

# Parts of names in mmaction2, which has no bias in a non-local block's `W.0`.
MMACTION_NON_LOCAL = {
    ".nl.W.0.": ".non_local_block.conv_out.conv.",
    ".nl.W.1.": ".non_local_block.conv_out.bn.",
    ".nl.g.0.": ".non_local_block.g.0.conv.",
    ".nl.phi.0.": ".non_local_block.phi.0.conv.",
    ".nl.theta.": ".non_local_block.theta.conv.",
}
MMACTION = {
    "downsample.0.": "downsample.conv.",
    "downsample.1.": "downsample.bn.",
    **{f"conv{i}.": f"conv{i}.conv." for i in "123"},
    **{f"bn{i}.": f"conv{i}.bn." for i in "123"},
}
TORCHVISION_MOBILENET = "torchvision_mobilenet_v2"
# The layers of a block of MobileNetV2 in torchvision, in the order of the original.
TORCHVISION_LAYERS = ("0.0", "0.1", "1.0", "1.1", "2", "3")
TORCHVISION_LAYERS_OF_FIRST = ("0.0", "0.1", "1", "2")


def build(case: dict) -> TSM:
    net = TSM(**TSMCase(case).model_arguments())
    freeze_norms(net, "partial" if case["config"].get("partial_bn") else "trained")
    rename = rename_to_torchvision if case["network"] == TORCHVISION_MOBILENET else str
    return torch_results.fill_weights(net, rename, case.get("scale", {}))


def rename_to_torchvision(name: str) -> str:
    """The name in torchvision's MobileNetV2 of a weight of TSM's."""
    match = re.fullmatch(r"base_model\.features\.(\d+)\.conv\.(\d+)\.(\w+)", name)
    if match is None:
        return re.sub(r"^base_model\.", "", name).replace("classifier.", "classifier.1.")
    block, layer, leaf = match.groups()
    layers = TORCHVISION_LAYERS_OF_FIRST if block == "1" else TORCHVISION_LAYERS
    with_arrays = [i for i in range(8) if i % 3 < 2]  # every third layer is a ReLU6
    return f"features.{block}.conv.{layers[with_arrays.index(int(layer))]}.{leaf}"


def evaluate(net: TSM, clip: torch.Tensor) -> dict:
    return {"logits": net(clip), "frame_scores": net.score_frames(clip)}


def compute_losses(case: dict, scores: torch.Tensor) -> dict:
    return {"loss": F.cross_entropy(scores, torch.tensor(case["labels"]))}


def list_lines(net: nn.Module) -> list[str]:
    """Lines `name shape` of a state dict."""
    return [
        f"{name} {','.join(map(str, value.shape)) or 'scalar'}"
        for name, value in net.state_dict().items()
    ]


def compute_case(case: dict) -> dict:
    net = build(case)
    lines = sorted(list_lines(net))
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "manifest_count": len(lines),
        "manifest_sorted_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        **torch_results.compute_results(
            case, build=build, compute_losses=compute_losses, evaluate=evaluate
        ),
    }


def list_tsm_names(prefix: str = "module.", **settings) -> list[str]:
    """The original saved its checkpoints from a data-parallel wrapper."""
    return [prefix + line for line in list_lines(TSM(num_classes=400, segments=8, **settings))]


def list_mmaction_names(**settings) -> list[str]:
    lines = []
    for line in list_tsm_names("", **settings):
        for ours, theirs in (MMACTION_NON_LOCAL if ".nl." in line else MMACTION).items():
            line = line.replace(ours, theirs)
        line = line.replace("base_model.", "backbone.")
        lines.append(line.replace("new_fc.", "cls_head.fc_cls."))
    return [line for line in lines if ".conv_out.conv.bias" not in line]


def list_torchvision_mobilenet_names() -> list[str]:
    pairs = (line.split(" ") for line in list_lines(MobileNetV2(num_classes=1000, channels=3)))
    return [f"{rename_to_torchvision('base_model.' + name)} {shape}" for name, shape in pairs]


def list_names() -> dict[str, list[str]]:
    """Lines `name shape` of each kind of checkpoint."""
    return {
        "tsm_r50_k400": list_tsm_names(),
        "tsm_r50_k400_nl": list_tsm_names(non_local=True),
        "tsm_mobilenetv2_k400": list_tsm_names(arch="mobilenetv2"),
        "online_mobilenetv2_jester": list_lines(MobileNetV2(num_classes=27, channels=3)),
        "mmaction2_tsm_r50": list_mmaction_names(),
        "mmaction2_tsm_r50_nl": list_mmaction_names(non_local=True),
        TORCHVISION_MOBILENET: list_torchvision_mobilenet_names(),
        **{f"torchvision_{arch}": list_lines(ResNet(arch, 1000)) for arch in DEPTHS},
    }


def build_checkpoint() -> dict:
    """The content of a published file; each batch norm has counted five batches."""
    net = torch_results.fill_weights(TSM(num_classes=7, segments=8, arch="resnet18", first_width=2))
    state = OrderedDict()
    for name, value in net.state_dict().items():
        is_counter = name.endswith("num_batches_tracked")
        state[f"module.{name}"] = torch.tensor(5) if is_counter else nn.Parameter(value)
    return {"epoch": 45, "arch": "resnet18", "state_dict": state, "best_prec1": 47.5}


if __name__ == "__main__":
    names = ["tsm_r50_8f_small", TORCHVISION_MOBILENET]
    if torch_results.update_cases(__doc__, folder=HERE, compute_case=compute_case, originals=names):
        for name, lines in list_names().items():
            data = gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)
            (HERE / "names" / f"{name}.txt.gz").write_bytes(data)
        checkpoint = HERE / "tsm_r18_w2.pth.tar"
        torch.save(build_checkpoint(), checkpoint, _use_new_zipfile_serialization=False)
