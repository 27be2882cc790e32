"""Writes `variants.json`: XS, M, L, dense networks and pytorchvideo's form, made by PyTorch.

    python reference.py       needs PyTorch; the tests read only its result

The network below is written from the published definition (facebookresearch/SlowFast 287ec007,
facebookresearch/pytorchvideo f3142bb) with PyTorch's own layers; it first has to reproduce
`x3d_s_small.json`. A case holds no weights: `utils.testing.golden.generate_weight` makes them from
names and shapes.
"""

import hashlib
import json
import math
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from utils.testing.golden import generate_input, generate_weight

WIDTHS, BLOCKS = (24, 48, 96, 192), (1, 2, 5, 3)
INNER, SQUEEZED = (54, 108, 216, 432), (8, 8, 16, 32)


class SE(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv3d(channels, squeezed, 1), nn.Conv3d(squeezed, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3, 4), keepdim=True)))))


class Branch(nn.Module):
    def __init__(self, cin, inner, cout, stride, squeezed, dense):
        super().__init__()
        self.a, self.a_bn = nn.Conv3d(cin, inner, 1, bias=False), nn.BatchNorm3d(inner)
        self.b = nn.Conv3d(
            inner, inner, 3, (1, stride, stride), 1, groups=1 if dense else inner, bias=False
        )
        self.b_bn = nn.BatchNorm3d(inner)
        self.se = SE(inner, squeezed) if squeezed else nn.Identity()
        self.c, self.c_bn = nn.Conv3d(inner, cout, 1, bias=False), nn.BatchNorm3d(cout)

    def forward(self, x):
        x = F.relu(self.a_bn(self.a(x)), inplace=True)
        return self.c_bn(self.c(F.silu(self.se(self.b_bn(self.b(x))))))


class Block(nn.Module):
    def __init__(self, cin, inner, cout, stride, squeezed, dense, norm_always):
        super().__init__()
        if cin != cout or stride != 1:
            self.branch1 = nn.Conv3d(cin, cout, 1, (1, stride, stride), bias=False)
            if norm_always or cin != cout:
                self.branch1_bn = nn.BatchNorm3d(cout)
        self.branch2 = Branch(cin, inner, cout, stride, squeezed, dense)

    def forward(self, x):
        short = self.branch1(x) if hasattr(self, "branch1") else x
        short = self.branch1_bn(short) if hasattr(self, "branch1_bn") else short
        return F.relu(short + self.branch2(x))


class Stem(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.conv_xy = nn.Conv3d(3, 24, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
        groups = 1 if dense else 24
        self.conv = nn.Conv3d(24, 24, (5, 1, 1), 1, (2, 0, 0), groups=groups, bias=False)
        self.bn = nn.BatchNorm3d(24)

    def forward(self, x):
        return F.relu(self.bn(self.conv(self.conv_xy(x))))


class Head(nn.Module):
    def __init__(self, classes, window):
        super().__init__()
        self.conv_5, self.conv_5_bn = nn.Conv3d(192, 432, 1, bias=False), nn.BatchNorm3d(432)
        self.lin_5, self.projection = nn.Conv3d(432, 2048, 1, bias=False), nn.Linear(2048, classes)
        self.window = window

    def forward(self, x):
        """Raw scores at every position, (N, T, H, W, classes)."""
        x = F.avg_pool3d(F.relu(self.conv_5_bn(self.conv_5(x))), self.window, 1)
        return self.projection(F.relu(self.lin_5(x)).permute(0, 2, 3, 4, 1))


class X3D(nn.Module):
    def __init__(self, config):
        super().__init__()
        dense = not config["channelwise_3x3x3"]
        self.s1 = nn.ModuleDict({"pathway0_stem": Stem(not config["stem_temporal_conv_grouped"])})
        before, stages = 24, []
        for k, cout in enumerate(WIDTHS):
            stage = nn.ModuleDict()
            for i in range(math.ceil(config["variant_factors"]["depth_factor"] * BLOCKS[k])):
                squeezed = 0 if i % 2 else SQUEEZED[k]
                stage[f"pathway0_res{i}"] = Block(
                    before, INNER[k], cout, 1 if i else 2, squeezed, dense, config["norm_always"]
                )
                before = cout
            stages.append(stage)
        self.s2, self.s3, self.s4, self.s5 = stages
        side = math.ceil(config["train_crop_size"] / 32)
        self.head = Head(config["num_classes"], (config["num_frames"], side, side))

    def forward(self, x):
        for part in (self.s1, self.s2, self.s3, self.s4, self.s5):
            for block in part.values():
                x = block(x)
        return self.head(x)


def build(config: dict, kind: torch.dtype, rename=str) -> X3D:
    """The network filled by name; `rename` gives a parameter's name in the published file."""
    net = X3D(config)
    shapes = {name: tuple(v.shape) for name, v in net.state_dict().items()}
    net.load_state_dict(
        {n: torch.from_numpy(generate_weight(rename(n), s)) for n, s in shapes.items()}
    )
    return net.to(kind)


def evaluation(config: dict, clip: torch.Tensor, rename=str) -> tuple[list, list]:
    """Output (softmax, then the mean over positions) and raw scores (mean over positions)."""
    net = build(config, torch.float32, rename).eval()
    with torch.no_grad():
        scores = net(clip)
    return scores.softmax(-1).mean((1, 2, 3)).tolist(), scores.mean((1, 2, 3)).tolist()


def train_numbers(config: dict, clip: torch.Tensor, labels: list) -> dict:
    """Of one forward and backward pass with batch statistics, in float32 and in float64."""
    numbers = {}
    for suffix, kind in (("", torch.float32), ("64", torch.float64)):
        net = build(config, kind).train()
        loss = F.cross_entropy(net(clip.to(kind)).flatten(1), torch.tensor(labels))
        loss.backward()
        buffers = {k: v.norm().item() for k, v in net.state_dict().items() if "running" in k}
        numbers["loss" + suffix] = loss.item()
        numbers["grad_norm" + suffix] = {n: p.grad.norm().item() for n, p in net.named_parameters()}
        numbers["buffers" + suffix] = buffers
    return {k: v for k, v in numbers.items() if k != "buffers64"}


def kink(numbers: dict) -> float:
    """The largest relative distance of a gradient's norm in float32 and in float64.

    Large where a unit lies so near its kink that rounding switches it.
    """
    pairs = [(numbers["grad_norm"][n], norm) for n, norm in numbers["grad_norm64"].items()]
    return max(abs(single / norm - 1) for single, norm in pairs if norm > 1e-5)


def settings(depth: float = 2.2, frames: int = 3, crop: int = 40, **other) -> dict:
    return {
        "num_classes": 11,
        "num_frames": frames,
        "train_crop_size": crop,
        "variant_factors": {"depth_factor": depth},
        "channelwise_3x3x3": True,
        "stem_temporal_conv_grouped": True,
        "norm_always": True,
        **other,
    }


SEEDS = 12
CASES = {  # settings, input shape of training, larger one of evaluation
    "xs": (settings(frames=4), (2, 3, 4, 40, 40), (1, 3, 4, 46, 46)),
    "m": (settings(frames=4, crop=56), (2, 3, 4, 56, 56), (1, 3, 5, 72, 80)),
    "l": (settings(depth=5.0, frames=4, crop=48), (2, 3, 4, 48, 48), (1, 3, 4, 80, 72)),
    "dense_blocks": (settings(channelwise_3x3x3=False), (2, 3, 3, 40, 40), (1, 3, 4, 72, 40)),
    "dense": (
        settings(channelwise_3x3x3=False, stem_temporal_conv_grouped=False),
        (2, 3, 3, 40, 40),
        (1, 3, 4, 72, 40),
    ),
}


def published(name: str) -> str:
    """A name as pytorchvideo spells it."""
    fixed = {
        "s1.pathway0_stem.conv_xy.": "blocks.0.conv.conv_t.",
        "s1.pathway0_stem.conv.": "blocks.0.conv.conv_xy.",
        "s1.pathway0_stem.bn.": "blocks.0.norm.",
        "head.conv_5.": "blocks.5.pool.pre_conv.",
        "head.conv_5_bn.": "blocks.5.pool.pre_norm.",
        "head.lin_5.": "blocks.5.pool.post_conv.",
        "head.projection.": "blocks.5.proj.",
        ".pathway0_res": ".res_blocks.",
        "branch1.": "branch1_conv.",
        "branch1_bn.": "branch1_norm.",
        "branch2.a.": "branch2.conv_a.",
        "branch2.a_bn.": "branch2.norm_a.",
        "branch2.b.": "branch2.conv_b.",
        "branch2.b_bn.": "branch2.norm_b.0.",
        "branch2.se.fc1.": "branch2.norm_b.1.block.0.",
        "branch2.se.fc2.": "branch2.norm_b.1.block.2.",
        "branch2.c.": "branch2.conv_c.",
        "branch2.c_bn.": "branch2.norm_c.",
    }
    for ours, theirs in fixed.items():
        name = name.replace(ours, theirs)
    for stage in range(2, 6):
        if name.startswith(f"s{stage}."):
            name = f"blocks.{stage - 1}." + name[3:]
    return name


def check() -> None:
    """The network reproduces the recorded case before anything is written with it."""
    case = json.loads((HERE / "x3d_s_small.json").read_text())
    config = {**case["config"], "norm_always": True}
    clip = torch.from_numpy(generate_input(case["input_seed"], case["input_shape"]))
    output, _ = evaluation(config, clip)
    assert torch.allclose(torch.tensor(output), torch.tensor(case["eval"]["output"]), atol=1e-7)
    numbers = train_numbers(config, clip, case["labels"])
    assert abs(numbers["loss64"] - case["train"]["loss64"]) < 1e-9
    for name, norm in case["train"]["grad_norm"].items():
        assert abs(numbers["grad_norm64"][name] / norm - 1) < 1e-4, name


def digest(net: nn.Module) -> str:
    """SHA-256 of the parameters' lines `name shape`, in order."""
    lines = [f"{name} {list(value.shape)}" for name, value in net.named_parameters()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def main() -> None:
    check()
    cases = {}
    for name, (config, shape, large) in CASES.items():
        trained = {}
        for seed in range(SEEDS):  # an input without units at their kinks
            clip = torch.from_numpy(generate_input(seed, shape))
            trained[seed] = train_numbers(config, clip, [3, 7])
        seed = min(trained, key=lambda s: kink(trained[s]))
        print(name, seed, kink(trained[seed]))
        clip = torch.from_numpy(generate_input(seed, shape))
        wide = torch.from_numpy(generate_input(seed + 50, large))
        output, logits = evaluation(config, clip)
        wide_output, _ = evaluation(config, wide)
        cases[name] = {
            "config": config,
            "names": digest(X3D(config)),
            "parameters": sum(p.numel() for p in X3D(config).parameters()),
            "input_seed": seed,
            "input_shape": shape,
            "labels": [3, 7],
            "eval": {"output": output, "logits": logits},
            "eval_large": {
                "input_seed": seed + 50,
                "input_shape": large,
                "output": wide_output,
            },
            "train": trained[seed],
        }
    config = settings(norm_always=False)
    clip = torch.from_numpy(generate_input(9, (1, 3, 3, 40, 40)))
    net = X3D(config)
    manifest = [
        [published(name), list(v.shape), str(v.dtype).removeprefix("torch.")]
        for name, v in net.state_dict().items()
    ]
    output, logits = evaluation(config, clip, published)
    cases["pytorchvideo"] = {
        "config": config,
        "manifest": manifest,
        "input_seed": 9,
        "input_shape": [1, 3, 3, 40, 40],
        "eval": {"output": output, "logits": logits},
    }
    (HERE / "variants.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
