"""Parts that the PyTorch references share: normalisation, mixup, cross entropy, frozen norms."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Normalize(nn.Module):
    """uint8 pixels to (x / 255 - mean) / std along an axis; float input is already normalised.

    It has no entries in the state dict. `channels` may be several images of `len(mean)` channels.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels: int, axes: int):
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            row = torch.tensor(list(values) * (channels // len(values)))
            self.register_buffer(name, row.reshape(-1, *[1] * axes), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_floating_point() else x.float().div_(255).sub_(self.mean).div_(self.std)


def mix_batch(x: Tensor, fraction: float) -> Tensor:
    """Mixup with the batch in reverse order."""
    return x if fraction == 1 else fraction * x + (1 - fraction) * x.flip(0)


def cross_entropy(scores: Tensor, labels: Tensor, fraction: float, train: dict) -> Tensor:
    """Mean over a batch of scores (N, K) after `mix_batch`; labels are int (N,)."""
    target = (
        labels if fraction == 1 else mix_batch(F.one_hot(labels, scores.shape[1]).float(), fraction)
    )
    return F.cross_entropy(scores, target, label_smoothing=train.get("smoothing", 0.0))


def put_channels_last(net: nn.Module, clips: Tensor) -> Tensor:
    """Stores the kernels of `net` and the clips with their channels last, as PyTorch recommends.

    Clips that the network reads as a batch of images, (N, T, C, H, W), are stored as images.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for weight in net.parameters():
        if weight.ndim in formats:
            weight.data = weight.data.contiguous(memory_format=formats[weight.ndim])
    batch_axes = clips.ndim - net.normalize.mean.ndim
    images = clips.flatten(0, batch_axes - 1)
    return images.contiguous(memory_format=formats[images.ndim]).view(clips.shape)


def list_norms(net: nn.Module) -> list:
    return [m for m in net.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm3d))]


def freeze_norms(net: nn.Module, batch_norm: str) -> None:
    """`batch_norm`: freezes none (`trained`), all (`frozen`), or all 2-D ones but the first
    (`partial`).
    """
    flat = [norm for norm in list_norms(net) if isinstance(norm, nn.BatchNorm2d)]
    for norm in {"trained": [], "frozen": list_norms(net), "partial": flat[1:]}[batch_norm]:
        norm.requires_grad_(False)


def set_training(net: nn.Module, training: bool) -> None:
    """Switches to training or evaluation; frozen batch norms keep their statistics."""
    net.train(training)
    for norm in list_norms(net):
        norm.train(training and norm.weight.requires_grad)
