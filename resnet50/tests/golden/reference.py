"""Writes `variants.json`: torchvision's other depths, in the manner of `resnet50_small.json`.

And `resnet18_w2.pth`, a narrow network as `torch.save` writes it.

    python reference.py       needs PyTorch and torchvision; the tests read only its result

A case holds no weights: `utils.testing.golden.generate_weight` makes them from names and shapes.
`names` is the SHA-256 of the state dict's lines `name shape`, in order.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torchvision
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from utils.testing.golden import generate_input, generate_weight

CLASSES, SHAPE, LABELS = 7, (4, 3, 64, 64), [3, 5, 0, 6]
ARCHITECTURES = {"resnet18": 1, "resnet34": 2, "resnet101": 3, "resnet152": 4}  # input seeds


def build(arch: str, kind: torch.dtype) -> torch.nn.Module:
    net = getattr(torchvision.models, arch)(num_classes=CLASSES)
    state = {
        name: torch.from_numpy(generate_weight(name, tuple(v.shape))) for name, v in net_state(net)
    }
    net.load_state_dict(state)
    return net.to(kind)


def net_state(net: torch.nn.Module) -> list:
    return list(net.state_dict().items())


def record(net: torch.nn.Module, image: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """Scores and taps: after conv1, bn1, maxpool, avgpool, and every block."""
    points = ["conv1", "bn1", "maxpool", "avgpool"]
    points += [f"layer{s}.{i}" for s in range(1, 5) for i in range(len(getattr(net, f"layer{s}")))]
    cells, seen = dict(net.named_modules()), {}
    for point in points:
        # A copy: a relu in place follows.
        cells[point].register_forward_hook(lambda m, i, o, p=point: seen.update({p: o.clone()}))
    with torch.no_grad():
        scores = net(image)
    taps = {}
    for point in points:
        x = seen[point]
        taps[point] = {
            "shape": list(x.shape),
            "mean": x.mean().item(),
            "std": x.std(unbiased=False).item(),
            "first": x.flatten()[:8].tolist(),
        }
    return scores, taps


def losses(scores: torch.Tensor, label: torch.Tensor) -> dict:
    log_p = F.log_softmax(scores, -1)
    of_label = -log_p.gather(1, label[:, None])[:, 0]
    others = -log_p.sum(1) - of_label
    return {
        "cross_entropy": F.cross_entropy(scores, label),
        "label_smoothing_0.1_uniform_over_all_K (PyTorch, NVIDIA)": F.cross_entropy(
            scores, label, label_smoothing=0.1
        ),
        "label_smoothing_0.1_over_K-1 (MindSpore tutorial)": (
            0.9 * of_label + 0.1 / (CLASSES - 1) * others
        ).mean(),
    }


def train_numbers(arch: str, image: torch.Tensor, label: torch.Tensor) -> dict:
    """Of one forward and backward pass with batch statistics, in float64 and in float32."""
    numbers = {}
    for suffix, kind in (("64", torch.float64), ("", torch.float32)):
        net = build(arch, kind).train()
        result = losses(net(image.to(kind)), label)
        loss = result["label_smoothing_0.1_over_K-1 (MindSpore tutorial)"]
        loss.backward()
        numbers[f"loss{suffix}"] = loss.item()
        numbers[f"other_losses{suffix}"] = {name: v.item() for name, v in result.items()}
        norms = {name: p.grad.norm().item() for name, p in net.named_parameters()}
        numbers[f"grad_norm{suffix}"] = norms
        buffers = {n: b.norm().item() for n, b in net.named_buffers() if "num_" not in n}
        numbers["buffers"] = buffers
    return numbers


def case(arch: str, seed: int) -> dict:
    image, label = torch.from_numpy(generate_input(seed, SHAPE)), torch.tensor(LABELS)
    net = build(arch, torch.float32).eval()
    scores, taps = record(net, image)
    lines = "\n".join(f"{name} {tuple(value.shape)}" for name, value in net_state(net))
    return {
        "name": arch,
        "source": f"torchvision {torchvision.__version__}, torch {torch.__version__}, CPU",
        "config": {"arch": arch, "num_classes": CLASSES},
        "parameters": sum(p.numel() for p in net.parameters()),
        "names": hashlib.sha256(lines.encode()).hexdigest(),
        "input_seed": seed,
        "input_shape": SHAPE,
        "labels": LABELS,
        "eval": {"logits": scores.tolist(), "taps": taps},
        # 152 layers at batch 4: float32 is noise of 4 % in the gradients, in PyTorch too
        **({} if arch == "resnet152" else {"train": train_numbers(arch, image, label)}),
    }


def save_narrow() -> None:
    """`resnet18_w2.pth`: ResNet-18 with all widths divided by 32, ten classes, by torch.save."""
    net = torchvision.models.resnet18(num_classes=320)
    state = {}
    for name, value in net_state(net):
        shape = tuple(n if n in (1, 3, 7) else n // 32 for n in value.shape)
        state[name] = torch.from_numpy(generate_weight(name, shape))
    torch.save(state, HERE / "resnet18_w2.pth")


if __name__ == "__main__":
    save_narrow()
    cases = [case(arch, seed) for arch, seed in ARCHITECTURES.items()]
    (HERE / "variants.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")
