"""Writes `variants.json`: other depths, data-set mixes and plain MViTv2-S, made by PyTorch.

    python reference.py       needs PyTorch; the tests read only its result

The networks below are written from the published definitions (JunweiLiang/MultiTrain 16723114,
facebookresearch/SlowFast 287ec007) with PyTorch's own layers; they first have to reproduce the
recorded cases. A case holds no weights: `utils.testing.golden.generate_weight` makes them from
names and shapes.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from utils.testing.golden import generate_input, generate_weight


class Attention(nn.Module):
    def __init__(self, block, plain, relative):
        super().__init__()
        self.block, self.plain, self.heads = block, plain, block["heads"]
        dim, out = block["dim_in"], block["dim_out"]
        self.size = out // self.heads
        self.qkv, self.proj = nn.Linear(dim, 3 * out), nn.Linear(out, out)
        for name in "qkv":
            stride = block["stride_q"] if name == "q" else block["stride_kv"]
            pool = nn.Conv3d(self.size, self.size, 3, stride, 1, groups=self.size, bias=False)
            setattr(self, f"pool_{name}", pool)
            setattr(self, f"norm_{name}", nn.LayerNorm(self.size, eps=1e-6 if plain else 1e-5))
        if relative:
            for axis, side, q, kv in zip(
                "thw", block["table"], block["stride_q"], block["stride_kv"]
            ):
                rows = 2 * max(side // q, side // kv) - 1
                setattr(self, f"rel_pos_{axis}", nn.Parameter(torch.zeros(rows, self.size)))

    def pool(self, x, name, grid):
        b, h, _, d = x.shape
        token, x = (x[:, :, :1], x[:, :, 1:]) if self.plain else (None, x)
        x = x.reshape(b * h, *grid, d).permute(0, 4, 1, 2, 3)
        x = getattr(self, f"pool_{name}")(x)
        out = x.shape[2:]
        x = x.reshape(b, h, d, -1).transpose(2, 3)
        x = torch.cat((token, x), 2) if self.plain else x
        return getattr(self, f"norm_{name}")(x), out

    def distances(self, axis, count_q, count_k):
        table = getattr(self, f"rel_pos_{axis}")
        length = 2 * max(count_q, count_k) - 1
        if len(table) != length:
            table = F.interpolate(table.T[None], size=length, mode="linear")[0].T
        q = torch.arange(count_q)[:, None] * max(count_k / count_q, 1.0)
        k = torch.arange(count_k)[None] * max(count_q / count_k, 1.0)
        return table[(q - k + (count_k - 1) * max(count_q / count_k, 1.0)).long()]

    def forward(self, x, grid):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        (q, grid_q), (k, grid_k), (v, _) = (
            self.pool(part, name, grid) for part, name in zip((q, k, v), "qkv")
        )
        scores = (q * self.size**-0.5) @ k.transpose(2, 3)
        if hasattr(self, "rel_pos_t"):
            first = int(self.plain)
            inner = q[:, :, first:].reshape(b, self.heads, *grid_q, self.size)
            t, h, w = (
                self.distances(axis, *pair) for axis, pair in zip("thw", zip(grid_q, grid_k))
            )
            sums = (
                torch.einsum("bythwc,tkc->bythwk", inner, t)[..., :, None, None]
                + torch.einsum("bythwc,hkc->bythwk", inner, h)[..., None, :, None]
                + torch.einsum("bythwc,wkc->bythwk", inner, w)[..., None, None, :]
            )
            whole = scores[:, :, first:, first:] + sums.reshape(
                b, self.heads, math.prod(grid_q), math.prod(grid_k)
            )
            if first:
                whole = torch.cat((scores[:, :, 1:, :1], whole), 3)
                whole = torch.cat((scores[:, :, :1], whole), 2)
            scores = whole
        out = scores.softmax(-1) @ v
        first = int(self.plain)
        out = torch.cat((out[:, :, :first], out[:, :, first:] + q[:, :, first:]), 2)
        return self.proj(out.transpose(1, 2).reshape(b, -1, self.heads * self.size)), grid_q


class Mlp(nn.Module):
    def __init__(self, cin, width, cout):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(cin, width), nn.Linear(width, cout)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, block, plain, relative):
        super().__init__()
        dim, out = block["dim_in"], block["dim_out"]
        self.plain, self.stride = plain, block["stride_q"]
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(out, eps=1e-6)
        self.attn = Attention(block, plain, relative)
        self.mlp = Mlp(out, 4 * out, out)
        if dim != out:
            setattr(self, "proj" if plain else "proj_max_pool", nn.Linear(dim, out))

    def forward(self, x, grid):
        normed = self.norm1(x)
        branch, after = self.attn(normed, grid)
        short = x
        if hasattr(self, "proj"):
            short = self.proj(normed)
        elif hasattr(self, "proj_max_pool"):
            short = self.proj_max_pool(x)
        if max(self.stride) > 1:
            b, _, c = short.shape
            token, short = (short[:, :1], short[:, 1:]) if self.plain else (None, short)
            short = short.reshape(b, *grid, c).permute(0, 4, 1, 2, 3)
            kernel = [s + 1 if s > 1 else 1 for s in self.stride]
            short = F.max_pool3d(short, kernel, self.stride, [k // 2 for k in kernel])
            short = short.flatten(2).transpose(1, 2)
            short = torch.cat((token, short), 1) if self.plain else short
        x = short + branch
        return x + self.mlp(self.norm2(x)), after


class Head(nn.Module):
    def __init__(self, width, names, classes, cross):
        super().__init__()
        self.names = names
        self.heads = nn.ModuleDict({n: Mlp(width, 2048, c) for n, c in zip(names, classes)})
        self.cross_dataset_heads = nn.ModuleDict(
            {
                f"{s}_{t}": nn.Linear(classes[i], classes[j], bias=False)
                for j, t in enumerate(names)
                for i, s in enumerate(names)
                if cross and s != t
            }
        )

    def forward(self, x):
        scores = {name: self.heads[name](x) for name in self.names}
        for name, layer in self.cross_dataset_heads.items():
            scores[name] = layer(scores[name.split("_")[0]])
        return scores


class Linear(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.projection = nn.Linear(width, classes)

    def forward(self, x):
        return {"one": self.projection(x)}


class MViT(nn.Module):
    """Settings as the recorded cases name them."""

    def __init__(self, config):
        super().__init__()
        plain = self.plain = config["MVIT.CLS_EMBED_ON"]
        relative = plain or config["MVIT.REL_POS_EMBED"]
        dim, heads = config["MVIT.EMBED_DIM"], config["MVIT.NUM_HEADS"]
        frames, crop = config["DATA.NUM_FRAMES"], config["DATA.TRAIN_CROP_SIZE"]
        grow = [block for block, _ in config["MVIT.DIM_MUL"]]
        side, kv = crop // 4, config["MVIT.POOL_KV_STRIDE_ADAPTIVE"][1]
        if plain:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        elif not relative:
            self.pos_embed_spatial = nn.Parameter(torch.zeros(1, side * side, dim))
            self.pos_embed_temporal = nn.Parameter(torch.zeros(1, frames // 2, dim))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv3d(3, dim, (3, 7, 7), (2, 4, 4), (1, 3, 3))
        blocks = []
        for i in range(config["MVIT.DEPTH"]):
            stride, dim_in = 2 if i in grow else 1, dim
            dim, heads, kv = dim * stride, heads * stride, max(kv // stride, 1)
            block = {"dim_in": dim_in, "dim_out": dim, "heads": heads}
            block["table"] = (frames // 2, side, side)
            block.update(stride_q=(1, stride, stride), stride_kv=(1, kv, kv))
            blocks.append(Block(block, plain, relative))
            side //= stride
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(dim, eps=1e-6)
        if config.get("MODEL.USE_MULTI_HEAD"):
            names, classes = config["MODEL.MULTI_DATASETS"], config["MODEL.MULTI_NUM_CLASSES"]
            self.head = Head(dim, names, classes, config["MODEL.MULTI_ADD_CROSS_PROJ"])
            if config["MODEL.USE_INF_EXPANDER"]:
                self.expander = Mlp(dim, 4096, dim)
        else:
            self.head = Linear(dim, config["MODEL.NUM_CLASSES"])

    def forward(self, clip):
        x = self.patch_embed.proj(clip)
        grid = x.shape[2:]
        x = x.flatten(2).transpose(1, 2)
        if self.plain:
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)
        elif hasattr(self, "pos_embed_spatial"):
            time = self.pos_embed_temporal[:, :, None]
            x = x + (self.pos_embed_spatial[:, None] + time).flatten(1, 2)
        for block in self.blocks:
            x, grid = block(x, grid)
        x = self.norm(x)
        x = x[:, 0] if self.plain else x.mean(1)
        outputs = self.head(x)
        if hasattr(self, "expander"):
            outputs["embedding"] = self.expander(x)
        return outputs


def built(config, dtype=torch.float32):
    net = MViT(config)
    state = {
        name: generate_weight(name, tuple(value.shape)) for name, value in net.state_dict().items()
    }
    net.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return net.to(dtype)


def clip_of(case, dtype=torch.float32):
    return torch.from_numpy(generate_input(case["input_seed"], case["input_shape"])).to(dtype)


def soft(labels, name, classes, fraction, smoothing, over):
    """Smoothed, then mixed with the batch backwards."""
    rows = torch.full((len(labels), classes), smoothing / over, dtype=torch.float64)
    for row, (which, label) in zip(rows, labels):
        if which == name:
            row[label] += 1 - smoothing
    return fraction * rows + (1 - fraction) * rows.flip(0)


def entropy(target, scores):
    return -(target * scores.log_softmax(-1)).sum(-1)


def loss_of(case, outputs):
    config, train = case["config"], case["train"]
    names, classes = config["MODEL.MULTI_DATASETS"], config["MODEL.MULTI_NUM_CLASSES"]
    total, weight = 0.0, config["MODEL.MULTI_PROJ_LOSS_WEIGHT"]
    for name, count in zip(names, classes):
        over = train["smoothing_classes"] or count
        target = soft(case["labels"], name, count, train["mixup_lam"], 0.1, over)
        target = target.to(outputs[name].dtype)
        mask = torch.tensor([float(which == name) for which, _ in case["labels"]])
        others = [v for key, v in outputs.items() if key.endswith(f"_{name}")]
        if config["MODEL.MULTI_CROSS_PROJ_ADD_TO_PRED"]:
            rows = entropy(target, outputs[name] + weight * sum(others))
        else:
            rows = entropy(target, outputs[name])
            rows = rows + sum(weight / len(others) * entropy(target, each) for each in others)
        total = total + (mask * rows).mean()
    if "embedding" in outputs:
        e = outputs["embedding"]
        e, n, d = e - e.mean(0), *e.shape
        std = F.relu(1 - torch.sqrt(e.var(0) + 1e-4)).mean()
        cov = e.T @ e / (n - 1)
        cov = (cov**2).sum() / d - (torch.diagonal(cov) ** 2).sum() / d
        spread = config["MODEL.INF_STD_WEIGHT"] * std + config["MODEL.INF_COVAR_WEIGHT"] * cov
        total = total + config["MODEL.INF_LOSS_WEIGHT"] * spread
    return total


def recorded(case):
    """The case with what the networks above make of it."""
    heads = case["config"].get("MODEL.MULTI_DATASETS", ["one"])
    with torch.no_grad():
        outputs = built(case["config"], torch.float64)(clip_of(case, torch.float64))
    case["eval"] = {"logits": {}, "output": {}}
    for name in heads:
        case["eval"]["logits"][name] = rounded(outputs[name])
        case["eval"]["output"][name] = rounded(outputs[name].softmax(-1))
    if "train" in case:
        net = built(case["config"], torch.float64)
        loss = loss_of(case, net(clip_of(case, torch.float64)))
        loss.backward()
        case["train"]["loss"] = loss.item()
        case["train"]["grad_norm"] = {
            name: float(f"{p.grad.norm():.8g}") for name, p in net.named_parameters()
        }
    return case


def rounded(values):
    return [[float(f"{v:.9g}") for v in row] for row in values.tolist()]


def check(name):
    """The networks above meet a recorded case."""
    case = json.loads((HERE / f"{name}.json").read_text())
    net = built(case["config"])
    names = [key for key, _, _ in case["manifest"]]
    assert sorted(names) == sorted(net.state_dict()), name
    with torch.no_grad():
        outputs = net(clip_of(case))
    logits = case["eval"]["logits"]
    for key, expected in (logits if isinstance(logits, dict) else {"one": logits}).items():
        worst = np.abs(outputs[key].numpy() - np.array(expected)).max()
        assert worst < 1e-5, (name, key, worst)
    if "terms" in case.get("train", {}):
        loss = loss_of(case, net(clip_of(case))).item()
        assert abs(loss / case["train"]["loss"] - 1) < 1e-5, (name, loss)


def settings(depth, dim, grow, kv, frames, crop, **more):
    config = {
        "MVIT.CLS_EMBED_ON": False, "MVIT.REL_POS_EMBED": False, "MVIT.DEPTH": depth,
        "MVIT.EMBED_DIM": dim, "MVIT.NUM_HEADS": 1, "MVIT.DIM_MUL": [[i, 2.0] for i in grow],
        "MVIT.POOL_KV_STRIDE_ADAPTIVE": [1, kv, kv], "DATA.NUM_FRAMES": frames,
        "DATA.TRAIN_CROP_SIZE": crop,
    }  # fmt: skip
    return {**config, **more}


def several(names, classes, cross=True, expander=True, add=False, weight=1.0):
    return {
        "MODEL.USE_MULTI_HEAD": True, "MODEL.MULTI_DATASETS": names,
        "MODEL.MULTI_NUM_CLASSES": classes, "MODEL.NUM_CLASSES": 0,
        "MODEL.MULTI_ADD_CROSS_PROJ": cross, "MODEL.USE_INF_EXPANDER": expander,
        "MODEL.MULTI_CROSS_PROJ_ADD_TO_PRED": add, "MODEL.MULTI_PROJ_LOSS_WEIGHT": weight,
        "MODEL.INF_LOSS_WEIGHT": 0.1, "MODEL.INF_STD_WEIGHT": 25.0,
        "MODEL.INF_COVAR_WEIGHT": 1.0,
    }  # fmt: skip


def variants():
    """Smaller than the published sizes where depth and plan are what matters."""
    plain = {"MVIT.CLS_EMBED_ON": True, "MODEL.NUM_CLASSES": 400}
    train = {"mixup_lam": 0.6, "label_smoothing": 0.1, "smoothing_classes": 0}
    return {
        "plain_s": {
            "config": settings(16, 96, [1, 3, 14], 8, 16, 64, **plain),
            "input_seed": 71, "input_shape": [1, 3, 16, 64, 64],
        },
        "plain_b_depth": {
            "config": settings(24, 16, [2, 5, 21], 8, 8, 64, **plain),
            "input_seed": 72, "input_shape": [1, 3, 8, 64, 64],
        },
        "single": {
            "config": settings(4, 16, [1, 2], 4, 8, 48, **{**plain, "MVIT.CLS_EMBED_ON": False}),
            "input_seed": 73, "input_shape": [2, 3, 8, 48, 48],
        },
        "four_sets": {
            "config": settings(
                6, 8, [1, 4], 4, 4, 32,
                **several(["kinetics", "mit", "ssv2", "anet"], [5, 4, 3, 6]),
            ),
            "input_seed": 74, "input_shape": [6, 3, 4, 32, 32],
            "labels": [
                ["anet", 5], ["mit", 0], ["kinetics", 2], ["anet", 0], ["mit", 3], ["mit", 1],
            ],
            "train": dict(train),
        },
        "added": {
            "config": settings(
                3, 8, [1], 2, 4, 32, **several(["a", "b"], [7, 3], add=True, weight=0.5)
            ),
            "input_seed": 75, "input_shape": [4, 3, 4, 32, 32],
            "labels": [["a", 6], ["a", 0], ["a", 2], ["a", 5]],
            "train": {**train, "smoothing_classes": 12},
        },
        "no_projections": {
            "config": settings(
                3, 8, [2], 4, 6, 32,
                **several(["a", "b", "c"], [2, 3, 4], cross=False, expander=False),
                **{"MVIT.REL_POS_EMBED": True},
            ),
            "input_seed": 76, "input_shape": [3, 3, 6, 32, 32],
            "labels": [["c", 3], ["b", 1], ["a", 0]],
            "train": dict(train),
        },
    }  # fmt: skip


def main():
    for name in ("mvit_multi_small", "mvit_multi_small_abspos", "mvit_v2_small"):
        check(name)
    cases = {name: recorded(case) for name, case in variants().items()}
    (HERE / "variants.json").write_text(json.dumps(cases, separators=(",", ":")))


if __name__ == "__main__":
    main()
