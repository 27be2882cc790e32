"""A second implementation of TSM, in PyTorch, which writes the small golden cases beside it.

It follows the published description of the network and shares no code with the port, so an
error has to be made twice to go unseen. Nothing here runs in the tests: they read its results,

    variants.json       a list of cases: settings, scores, taps, training numbers
    names/*.txt.gz      state-dict names and shapes of published kinds of checkpoint, derived
                        from their description and not read from files

which are rewritten by (PyTorch on a CPU; no torchvision)

    python reference.py                     both of them, in place
    python reference.py --check CASE.json   compare with a case that holds a whole `manifest`

A case holds no weights: `fill` makes every array from its name and shape, `fill_input` the
clips from `input_seed`. Keys of a case beyond config, labels, input_* and `parameters`
(elements of all trainable tensors, the ones partial batch norm freezes included):

    manifest_count           entries of the state dict
    manifest_sha256          of the lines `name shape`, joined by newlines, in state-dict order;
                             shape is 64,3,7,7, or scalar
    manifest_sorted_sha256   the same over the sorted lines
    manifest_names           names in order, where they differ from the plain ResNet's
    eval.logits              what evaluation returns; logits64: the same in float64
    eval.taps                {point: shape, mean, std (population), first 8 values}
    eval.frame_scores        unidirectional cases: (N, T, K), scores before the average
    train.*                  batch statistics, dropout 0, mean cross-entropy: loss, L2 norms of
                             gradients, L2 norms of buffers after that pass; *64 in float64
    train.trainable_tensors  how many parameters received a gradient
    train.zero_grad          those among them whose gradient is zero in exact arithmetic
    train.changed_buffers    partial batch norm: the only buffers that pass changes
    scale                    {text: factor}: filled arrays with this text in their name are
                             multiplied. Filled queries make a non-local softmax pick one key,
                             and float32 gradients behind it are noise; smaller ones do not
"""

import argparse
import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
NUM_CLASS = 7
LABELS = [3, 5, 0, 6]  # a case takes as many as it has clips


# ---- weights and inputs from names, shapes and seeds ------------------------------------------


def fill(name, shape):
    """One array of a state dict, from its name and shape."""
    digest = hashlib.sha256(name.encode()).digest()
    gen = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if leaf == "running_var" or (leaf == "weight" and len(shape) == 1):
        value = gen.uniform(0.5, 1.5, shape)
    elif leaf in ("running_mean", "bias"):
        value = gen.standard_normal(shape) * 0.1
    else:
        value = gen.standard_normal(shape) * np.sqrt(1.0 / int(np.prod(shape[1:])))
    return np.asarray(value, np.float32)


def fill_input(seed, shape):
    gen = np.random.Generator(np.random.PCG64(seed))
    return gen.standard_normal(shape).astype(np.float32)


# ---- backbones --------------------------------------------------------------------------------


def conv(inputs, outputs, kernel, stride=1, groups=1):
    padding = (kernel - 1) // 2
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = make_downsample(inputs, width, stride)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = make_downsample(inputs, 4 * width, stride)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def make_downsample(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


RESNETS = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    head_name = "fc"

    def __init__(self, name, channels=3, num_class=1000):
        super().__init__()
        block, repeats = RESNETS[name]
        self.conv1 = conv(channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        features = 64
        for stage, count in enumerate(repeats):
            width = 64 * 2**stage
            blocks = []
            for index in range(count):
                blocks.append(block(features, width, 2 if stage and index == 0 else 1))
                features = width * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(features, num_class)
        self.features_out = features

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        hidden = inputs * expand
        layers = []
        if expand != 1:
            layers += [conv(inputs, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [conv(hidden, hidden, 3, stride, hidden), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [conv(hidden, outputs, 1), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs
        self.shiftable = self.residual and expand != 1

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    head_name = "classifier"
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, channels=3, num_class=1000):
        super().__init__()
        layers = [nn.Sequential(conv(channels, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU6())]
        inputs = 32
        for expand, outputs, repeats, stride in self.settings:
            for index in range(repeats):
                layers.append(InvertedResidual(inputs, outputs, 1 if index else stride, expand))
                inputs = outputs
        layers.append(nn.Sequential(conv(inputs, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6()))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(1280, num_class)
        self.features_out = 1280

    def forward(self, x):
        return self.classifier(self.features(x).mean(3).mean(2))


# ---- what TSM adds ----------------------------------------------------------------------------


def shift(x, segments, div, unidirectional=False):
    """Exchange channels between neighbouring frames of (N*T, C, H, W); zeros at the clip's ends."""
    clips = x.view(-1, segments, *x.shape[1:])
    fold = x.shape[1] // div
    out = torch.zeros_like(clips)
    if unidirectional:
        out[:, 1:, :fold] = clips[:, :-1, :fold]
        out[:, :, fold:] = clips[:, :, fold:]
    else:
        out[:, :-1, :fold] = clips[:, 1:, :fold]  # from the future
        out[:, 1:, fold : 2 * fold] = clips[:, :-1, fold : 2 * fold]  # from the past
        out[:, :, 2 * fold :] = clips[:, :, 2 * fold :]
    return out.view_as(x)


class Shift(nn.Module):
    """`net` behind a shift: of whole clips, or while `streaming` of one frame after another."""

    def __init__(self, net, segments, div, unidirectional):
        super().__init__()
        self.net = net
        self.settings = (segments, div, unidirectional)
        self.streaming = False
        self.memory = None

    def forward(self, x):
        return self.net(self.step(x) if self.streaming else shift(x, *self.settings))

    def step(self, x):
        fold = x.shape[1] // self.settings[1]
        past = torch.zeros_like(x[:, :fold]) if self.memory is None else self.memory
        self.memory = x[:, :fold]
        return torch.cat([past, x[:, fold:]], 1)


class TemporalPool(nn.Module):
    """`net` behind a max pool over three frames with stride two."""

    def __init__(self, net, segments):
        super().__init__()
        self.net = net
        self.segments = segments

    def forward(self, x):
        return self.net(self.pool(x))

    def pool(self, x):
        clips = x.view(-1, self.segments, *x.shape[1:]).transpose(1, 2)
        clips = F.max_pool3d(clips, (3, 1, 1), (2, 1, 1), (1, 0, 0))
        return clips.transpose(1, 2).reshape(-1, *x.shape[1:])


class NonLocal(nn.Module):
    """Embedded-Gaussian attention over the positions of (N, C, T, H, W), added to its input."""

    def __init__(self, channels):
        super().__init__()
        inner = channels // 2
        pool = nn.MaxPool3d((1, 2, 2))
        self.g = nn.Sequential(nn.Conv3d(channels, inner, 1), pool)
        self.theta = nn.Conv3d(channels, inner, 1)
        self.phi = nn.Sequential(nn.Conv3d(channels, inner, 1), pool)
        self.W = nn.Sequential(nn.Conv3d(inner, channels, 1), nn.BatchNorm3d(channels))

    def forward(self, x):
        theta, phi, g = (f(x).flatten(2) for f in (self.theta, self.phi, self.g))
        weights = torch.softmax(theta.transpose(1, 2) @ phi, -1)  # (N, queries, keys)
        y = (weights @ g.transpose(1, 2)).transpose(1, 2)
        return x + self.W(y.reshape(x.shape[0], -1, *x.shape[2:]))


class NonLocalAfter(nn.Module):
    def __init__(self, block, channels, segments):
        super().__init__()
        self.block = block
        self.nl = NonLocal(channels)
        self.segments = segments

    def forward(self, x):
        x = self.block(x)
        clips = x.view(-1, self.segments, *x.shape[1:]).transpose(1, 2)
        return self.nl(clips).transpose(1, 2).reshape(x.shape)


def shift_resnet(net, segments, config):
    """Wrap first convolutions or blocks; `segments` holds the frames of each stage."""
    sparse = config["shift_place"] == "blockres" and len(net.layer3) >= 23
    for stage, frames in enumerate(segments, 1):
        blocks = getattr(net, f"layer{stage}")
        options = (frames, config["shift_div"], config["unidirectional"])
        for index in range(0, len(blocks), 2 if sparse else 1):
            if config["shift_place"] == "block":
                blocks[index] = Shift(blocks[index], *options)
            else:
                blocks[index].conv1 = Shift(blocks[index].conv1, *options)


def shift_mobilenet(net, config):
    options = (config["num_segments"], config["shift_div"], config["unidirectional"])
    for block in net.features:
        if getattr(block, "shiftable", False):
            block.conv[0] = Shift(block.conv[0], *options)


def extend_resnet(net, config):
    """Shifts, non-local blocks and temporal pooling, in that order."""
    first = config["num_segments"]
    later = first // 2 if config["temporal_pool"] else first
    segments = [first, later, later, later]
    if config["is_shift"]:
        shift_resnet(net, segments, config)
    if config["non_local"]:
        for stage, positions in ((2, (0, 2)), (3, (0, 2, 4))):
            blocks = getattr(net, f"layer{stage}")
            for index in positions:
                blocks[index] = NonLocalAfter(blocks[index], 128 * 2**stage, segments[stage - 1])
    if config["temporal_pool"]:
        net.layer2 = TemporalPool(net.layer2, first)


def input_channels(config):
    return (2 if config["modality"] == "Flow" else 3) * config["new_length"]


class TSM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        channels = input_channels(config)
        if config["base_model"] == "mobilenetv2":
            self.base_model = MobileNetV2(channels, config["num_class"])
            if config["is_shift"]:
                shift_mobilenet(self.base_model, config)
        else:
            self.base_model = ResNet(config["base_model"], channels, config["num_class"])
            extend_resnet(self.base_model, config)
        self.new_fc = nn.Identity()
        if config["dropout"] > 0:
            setattr(self.base_model, self.base_model.head_name, nn.Dropout(config["dropout"]))
            self.new_fc = nn.Linear(self.base_model.features_out, config["num_class"])

    def forward(self, clips):
        """Scores of (N, T, C, H, W) clips: (N, K), or (N, T, K) with consensus `identity`."""
        scores = self.frame_scores(clips)
        if not self.config["before_softmax"]:
            scores = torch.softmax(scores, -1)
        return scores if self.config["consensus"] == "identity" else scores.mean(1)

    def frame_scores(self, clips):
        scores = self.new_fc(self.base_model(clips.flatten(0, 1)))
        return scores.view(clips.shape[0], -1, scores.shape[-1])

    def train(self, mode=True):
        super().train(mode)
        if mode and self.config["partial_bn"]:
            for norm in norms_of(self.base_model)[1:]:
                norm.eval().requires_grad_(False)
        return self

    def stream(self, clips):
        """The frame scores again, seeing one frame of each clip at a time."""
        self.set_streaming(True)
        scores = [self.frame_scores(clips[:, t : t + 1]) for t in range(clips.shape[1])]
        self.set_streaming(False)
        return torch.cat(scores, 1)

    def set_streaming(self, on):
        for module in self.modules():
            if isinstance(module, Shift):
                module.streaming, module.memory = on, None


def norms_of(net):
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


# ---- measuring --------------------------------------------------------------------------------


def build(config, dtype=torch.float32, scale=None):
    model = TSM(config)
    state = {k: torch.from_numpy(fill(k, tuple(v.shape))) for k, v in model.state_dict().items()}
    for text, factor in (scale or {}).items():
        state.update({k: v * factor for k, v in state.items() if text in k})
    model.load_state_dict(state)
    return model.to(dtype).eval()


def digits(values, dtype):
    """Nested lists of floats with as many digits as the type holds."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double().tolist()
    if isinstance(values, list):
        return [digits(value, dtype) for value in values]
    return float(f"{values:.13g}" if dtype == torch.float64 else f"{values:.9g}")


def summary(x):
    std = x.double().std(correction=0)
    numbers = {"mean": x.double().mean(), "std": std, "first": x.flatten()[:8]}
    return {"shape": list(x.shape), **{k: digits(v, x.dtype) for k, v in numbers.items()}}


def tap_hooks(model, points, taps):
    """Record outputs of modules, and the inputs of the modules wrapped as `net`."""
    handles = []
    for point in points:
        name, _, what = point.partition(" ")
        module = model.get_submodule(f"{name}.net" if what else name)
        if what:
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, inputs, key=point: taps.update({key: inputs[0].clone()})
                )
            )
        else:
            handles.append(
                module.register_forward_hook(
                    lambda _, __, output, key=point: taps.update({key: output.clone()})
                )
            )
    return handles


@torch.no_grad()
def run_eval(config, clips, points=(), dtype=torch.float32, scale=None):
    model, taps = build(config, dtype, scale), {}
    clips = clips.to(dtype)
    handles = tap_hooks(model, points, taps)
    scores = model(clips)
    for handle in handles:
        handle.remove()
    frame_scores = None
    if config["unidirectional"]:
        frame_scores = model.frame_scores(clips)
        bound = 1e-10 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(model.stream(clips), frame_scores, rtol=0, atol=bound)
        torch.testing.assert_close(frame_scores.mean(1), scores, rtol=0, atol=bound)
    return scores, {key: summary(value) for key, value in taps.items()}, frame_scores


def eval_part(config, clips, points, scale):
    scores, taps, frames = run_eval(config, clips, points, scale=scale)
    scores64, _, frames64 = run_eval(config, clips, dtype=torch.float64, scale=scale)
    part = {"logits": digits(scores, torch.float32), "logits64": digits(scores64, torch.float64)}
    if frames is not None:
        part["frame_scores"] = digits(frames, torch.float32)
        part["frame_scores64"] = digits(frames64, torch.float64)
    return {**part, "taps": taps}


def run_train(config, clips, labels, dtype, scale=None):
    """One forward and backward pass in training mode, without dropout."""
    model = build(config, dtype, scale).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    loss = F.cross_entropy(model(clips.to(dtype)), torch.tensor(labels))
    loss.backward()
    norms = {
        k: v.grad.double().norm().item() for k, v in model.named_parameters() if v.grad is not None
    }
    buffers = {k: v.double().norm().item() for k, v in model.named_buffers()}
    return loss.item(), norms, buffers


def changed_buffers(config, buffers):
    before = {k: v.double().norm().item() for k, v in build(config).named_buffers()}
    return [k for k in buffers if buffers[k] != before[k]]


def train_part(config, clips, labels, scale, chosen):
    """The numbers of both precisions, for the chosen parameters and batch norms."""
    part = {}
    grads, norms = chosen
    leaves = ("running_mean", "running_var", "num_batches_tracked")
    names = [f"{norm}.{leaf}" for norm in norms for leaf in leaves]
    for dtype, suffix in ((torch.float32, ""), (torch.float64, "64")):
        loss, grad_norm, buffers = run_train(config, clips, labels, dtype, scale)
        part["loss" + suffix] = digits(loss, torch.float64)
        part["grad_norm" + suffix] = {k: digits(grad_norm[k], torch.float32) for k in grads}
        part["buffers" + suffix] = {k: digits(buffers[k], torch.float32) for k in names}
    part["trainable_tensors"] = len(grad_norm)
    zero = [k for k, v in grad_norm.items() if v < 1e-9 * max(grad_norm.values())]
    if zero:
        part["zero_grad"] = zero
    if config["partial_bn"]:
        part["changed_buffers"] = changed_buffers(config, buffers)
    return part


# ---- cases ------------------------------------------------------------------------------------


DEFAULTS = {
    "base_model": "resnet18",
    "num_segments": 8,
    "num_class": NUM_CLASS,
    "modality": "RGB",
    "new_length": 1,
    "is_shift": True,
    "shift_div": 8,
    "shift_place": "blockres",
    "unidirectional": False,
    "temporal_pool": False,
    "non_local": False,
    "consensus": "avg",
    "before_softmax": True,
    "dropout": 0.5,
    "partial_bn": False,
}
SHIFTED_IN = "base_model.layer{} (input after the shift)".format
TAPS = [
    "base_model.conv1",
    SHIFTED_IN("1.0.conv1"),
    SHIFTED_IN("3.0.conv1"),
    *(f"base_model.layer{stage}" for stage in (1, 2, 3, 4)),
]
R18_GRADS = [
    "base_model.conv1.weight",
    "base_model.bn1.weight",
    "base_model.bn1.bias",
    "base_model.layer1.0.conv1.net.weight",
    "base_model.layer1.1.conv2.weight",
    "base_model.layer2.0.conv1.net.weight",
    "base_model.layer2.0.bn1.weight",
    "base_model.layer2.0.downsample.0.weight",
    "base_model.layer3.1.bn2.bias",
    "base_model.layer4.0.conv1.net.weight",
    "base_model.layer4.1.conv2.weight",
    "new_fc.weight",
    "new_fc.bias",
]
R18_NORMS = ["base_model.bn1", "base_model.layer2.0.downsample.1", "base_model.layer4.1.bn2"]
NL_GRADS = [
    "base_model.conv1.weight",
    "base_model.layer1.0.conv1.net.weight",
    "base_model.layer2.0.block.conv1.net.weight",
    "base_model.layer2.0.block.bn3.weight",
    *(
        f"base_model.layer{location}.nl.{leaf}.weight"
        for location in ("2.0", "3.4")
        for leaf in ("g.0", "theta", "phi.0", "W.0", "W.1")
    ),
    "base_model.layer2.0.nl.theta.bias",
    "base_model.layer3.4.nl.W.1.bias",
    "base_model.layer4.2.conv3.weight",
    "new_fc.weight",
    "new_fc.bias",
]
NL_TAPS = [
    *TAPS[:2],
    SHIFTED_IN("3.0.block.conv1"),
    *TAPS[3:],
    "base_model.layer2.0.block",
    "base_model.layer2.0",
    "base_model.layer3.4",
]
NL_NORMS = ["base_model.bn1", "base_model.layer2.0.nl.W.1", "base_model.layer3.4.nl.W.1"]
POOL_GRADS = [
    "base_model.conv1.weight",
    "base_model.bn1.weight",
    "base_model.layer1.0.conv1.net.weight",
    "base_model.layer1.2.conv3.weight",
    "base_model.layer2.net.0.conv1.net.weight",
    "base_model.layer2.net.0.bn1.bias",
    "base_model.layer2.net.0.downsample.0.weight",
    "base_model.layer3.0.conv1.net.weight",
    "base_model.layer3.5.bn2.weight",
    "base_model.layer4.2.conv1.net.weight",
    "new_fc.weight",
    "new_fc.bias",
]
POOL_NORMS = ["base_model.bn1", "base_model.layer2.net.0.bn1", "base_model.layer4.2.bn3"]
MOBILE_GRADS = [
    "base_model.features.0.0.weight",
    "base_model.features.0.1.weight",
    "base_model.features.1.conv.0.weight",
    "base_model.features.2.conv.0.weight",
    "base_model.features.3.conv.0.net.weight",
    "base_model.features.3.conv.1.bias",
    "base_model.features.3.conv.3.weight",
    "base_model.features.9.conv.0.net.weight",
    "base_model.features.16.conv.6.weight",
    "base_model.features.17.conv.7.weight",
    "base_model.features.18.0.weight",
    "new_fc.weight",
    "new_fc.bias",
]
MOBILE_NORMS = [
    "base_model.features.0.1",
    "base_model.features.3.conv.1",
    "base_model.features.18.1",
]
MOBILE_TAPS = [
    "base_model.features.0",
    "base_model.features.3.conv.0 (input after the shift)",
    "base_model.features.3",
    "base_model.features.10",
    "base_model.features.18",
]
FROZEN_GRADS = [name for name in R18_GRADS if ".bn" not in name or ".layer" not in name]


def case(name, *, taps=TAPS, train=None, list_names=False, clips=2, scale=None, **changes):
    config = {**DEFAULTS, **changes}
    return {
        "name": name,
        "config": config,
        "taps": taps,
        "train": train,
        "list_names": list_names,
        "clips": clips,
        "scale": scale,
    }


CASES = [
    case("resnet18_8f", train=(R18_GRADS, R18_NORMS)),
    case("resnet34_8f", base_model="resnet34"),
    case("resnet50_16f", base_model="resnet50", num_segments=16),
    case(
        "resnet50_8f_block",
        base_model="resnet50",
        shift_place="block",
        list_names=True,
        taps=["base_model.conv1", SHIFTED_IN("1.0"), SHIFTED_IN("3.0"), *TAPS[3:]],
    ),
    case(
        "resnet101_8f",
        base_model="resnet101",
        taps=[*TAPS, SHIFTED_IN("3.22.conv1"), "base_model.layer3.21.conv1"],
    ),
    case("resnet152_4f", base_model="resnet152", num_segments=4),
    case("resnet50_8f_nl", base_model="resnet50", non_local=True, list_names=True, taps=NL_TAPS),
    case(
        "resnet50_8f_nl_train",
        base_model="resnet50",
        non_local=True,
        clips=4,
        scale={".nl.theta.": 1 / 32},
        taps=NL_TAPS,
        train=(NL_GRADS, NL_NORMS),
    ),
    case(
        "resnet50_8f_tpool",
        base_model="resnet50",
        temporal_pool=True,
        list_names=True,
        train=(POOL_GRADS, POOL_NORMS),
        taps=[*TAPS, "base_model.layer2 (input after the pool)", SHIFTED_IN("2.net.0.conv1")],
    ),
    case("resnet18_8f_div4_dropout0", shift_div=4, dropout=0.0),
    case("resnet18_8f_tsn", is_shift=False, shift_div=0, taps=[TAPS[0], *TAPS[3:]]),
    case("resnet18_8f_identity", consensus="identity", taps=TAPS[-1:]),
    case("resnet18_8f_softmax", before_softmax=False, taps=TAPS[-1:]),
    case("resnet18_8f_flow", modality="Flow", new_length=5),
    case(
        "mobilenetv2_8f",
        base_model="mobilenetv2",
        list_names=True,
        taps=MOBILE_TAPS,
        train=(MOBILE_GRADS, MOBILE_NORMS),
    ),
    case(
        "mobilenetv2_8f_unidirectional",
        base_model="mobilenetv2",
        unidirectional=True,
        taps=MOBILE_TAPS,
    ),
    case("resnet18_8f_unidirectional", unidirectional=True),
    case(
        "resnet18_8f_partial_bn", partial_bn=True, taps=TAPS[-1:], train=(FROZEN_GRADS, R18_NORMS)
    ),
]


def manifest(module):
    """Lines `name shape` of a state dict."""
    return [
        f"{name} {','.join(map(str, value.shape)) or 'scalar'}"
        for name, value in module.state_dict().items()
    ]


def sha256(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_case(spec, seed):
    config, scale = spec["config"], spec["scale"]
    model = TSM(config)
    lines = manifest(model)
    shape = [spec["clips"], config["num_segments"], input_channels(config), 64, 64]
    clips = torch.from_numpy(fill_input(seed, shape))
    out = {
        "name": spec["name"],
        "network": "TSM",
        "config": config,
        "parameters": sum(p.numel() for p in model.parameters()),
        "manifest_count": len(lines),
        "manifest_sha256": sha256(lines),
        "manifest_sorted_sha256": sha256(sorted(lines)),
    }
    if spec["list_names"]:
        out["manifest_names"] = [line.split()[0] for line in lines]
    out.update(input_seed=seed, input_shape=shape, input_layout="N, segments T, C, H, W")
    if scale:
        out["scale"] = scale
    out["eval"] = eval_part(config, clips, spec["taps"], scale)
    if spec["train"]:
        out["labels"] = LABELS[: spec["clips"]]
        out["train"] = train_part(config, clips, out["labels"], scale, spec["train"])
    return out


def write_cases(path):
    cases = []
    for index, spec in enumerate(CASES):
        cases.append(json.dumps(write_case(spec, 7100 + index)))
        print(spec["name"], flush=True)
    path.write_text("[\n" + ",\n".join(cases) + "\n]\n")


# ---- names of published checkpoints -----------------------------------------------------------


def tsm_names(prefix="module.", **changes):
    """The original's checkpoints were saved from a data-parallel wrapper."""
    return [prefix + line for line in manifest(TSM({**DEFAULTS, "num_class": 400, **changes}))]


def mmaction_name(line):
    """One line of a ResNet's manifest under its mmaction2 name; None where there is none."""
    name, shape = line.split()
    if ".nl." in name:
        if name.endswith("W.0.bias"):
            return None
        name = name.replace(".nl.", ".non_local_block.")
        for old, new in (
            ("W.0.", "conv_out.conv."),
            ("W.1.", "conv_out.bn."),
            ("g.0.", "g.0.conv."),
            ("phi.0.", "phi.0.conv."),
            ("theta.", "theta.conv."),
        ):
            name = name.replace(f"_block.{old}", f"_block.{new}")
    else:
        name = name.replace("downsample.0.", "downsample.conv.")
        name = name.replace("downsample.1.", "downsample.bn.")
        for index in "123":
            name = name.replace(f"conv{index}.", f"conv{index}.conv.")
            name = name.replace(f"bn{index}.", f"conv{index}.bn.")
    name = name.replace("base_model.", "backbone.").replace("new_fc.", "cls_head.fc_cls.")
    return f"{name} {shape}"


def mmaction_names(**changes):
    return [line for line in map(mmaction_name, tsm_names("", **changes)) if line]


def write_names(folder):
    r50 = {"base_model": "resnet50"}
    names = {
        "tsm_r50_k400": tsm_names(**r50),
        "tsm_r50_k400_nl": tsm_names(**r50, non_local=True),
        "tsm_mobilenetv2_k400": tsm_names(base_model="mobilenetv2"),
        "online_mobilenetv2_jester": manifest(MobileNetV2(num_class=27)),
        "mmaction2_tsm_r50": mmaction_names(**r50),
        "mmaction2_tsm_r50_nl": mmaction_names(**r50, non_local=True),
        **{f"torchvision_{net}": manifest(ResNet(net)) for net in RESNETS},
    }
    folder.mkdir(exist_ok=True)
    for name, lines in names.items():
        text = "\n".join(lines) + "\n"
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


# ---- agreement with a case of the original ----------------------------------------------------


def worst(ours, theirs, relative=False):
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    return float(np.max(np.abs(ours - theirs) / (np.abs(theirs) if relative else 1.0)))


def common(first, second):
    keys = [key for key in second if key in first]
    return [first[key] for key in keys], [second[key] for key in keys]


def check(path):
    """Print how far this implementation is from a case that the original computed."""
    golden = json.loads(path.read_text())
    config = {**DEFAULTS, **{k: v for k, v in golden["config"].items() if k in DEFAULTS}}
    model = TSM(config)
    names = [[k, list(v.shape)] for k, v in model.state_dict().items()]
    print("manifest equal:", names == [entry[:2] for entry in golden["manifest"]])
    print(
        "parameters equal:",
        sum(p.numel() for p in model.parameters()) == golden["config"]["parameters"],
    )
    clips = torch.from_numpy(fill_input(golden["input_seed"], golden["input_shape"]))
    modules = dict(model.named_modules())
    points = [p for p in golden["eval"]["taps"] if p.partition(" ")[0] in modules]
    scores, taps, _ = run_eval(config, clips, points)
    print("logits:", worst(scores, golden["eval"]["logits"]))
    if "logits64" in golden["eval"]:
        scores64 = run_eval(config, clips, dtype=torch.float64)[0]
        print("logits64:", worst(scores64, golden["eval"]["logits64"]))
    for key in ("mean", "std", "first"):
        pairs = [(taps[p][key], golden["eval"]["taps"][p][key]) for p in points]
        print(f"{len(points)} taps, {key}:", max(worst(a, b) for a, b in pairs))
    if "train" in golden:
        check_train(config, clips, golden)


def check_train(config, clips, golden):
    for dtype, suffix in ((torch.float32, ""), (torch.float64, "64")):
        loss, norms, buffers = run_train(config, clips, golden["labels"], dtype)
        theirs = golden["train"]
        print(f"loss{suffix}:", abs(loss - theirs["loss" + suffix]))
        print(
            f"{len(norms)} of {len(theirs['grad_norm'])} grad norms{suffix}, relative:",
            worst(*common(norms, theirs["grad_norm" + suffix]), relative=True),
        )
        print("buffers, relative:", worst(*common(buffers, theirs["buffers"]), relative=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, metavar="CASE.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        check(args.check)
        return
    write_names(HERE / "names")
    write_cases(HERE / "variants.json")


if __name__ == "__main__":
    main()
