"""MViTv2 in PyTorch, as MultiTrain and PySlowFast define it (JunweiLiang/MultiTrain, 16723114;
facebookresearch/SlowFast, 287ec007).

Clips (B, 3, T, H, W), uint8 or normalised; tokens (B, N, C) between. Training gives a dict of the
scores of heads and projections, and the embedding; evaluation the list of all heads' probabilities.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.torch.parts import Normalize, mix_batch


class Plan(NamedTuple):
    """The settings of a block; the grid's `side` gives the sizes of its tables."""

    dim: int
    out: int
    heads: int
    frames: int
    side: int
    stride_q: int
    stride_kv: int


class Attention(nn.Module):
    def __init__(self, plan: Plan, plain: bool, relative: bool):
        super().__init__()
        self.heads, self.size, self.plain = plan.heads, plan.out // plan.heads, plain
        self.qkv = nn.Linear(plan.dim, 3 * plan.out)
        self.proj = nn.Linear(plan.out, plan.out)
        for name in "qkv":
            stride = plan.stride_q if name == "q" else plan.stride_kv
            shape = (self.size, self.size, 3, (1, stride, stride), 1)
            setattr(self, f"pool_{name}", nn.Conv3d(*shape, groups=self.size, bias=False))
            setattr(self, f"norm_{name}", nn.LayerNorm(self.size, eps=1e-6 if plain else 1e-5))
        self.relative = relative
        if relative:
            longest = max(plan.side // plan.stride_q, plan.side // plan.stride_kv)
            for axis, length in zip("thw", (plan.frames, longest, longest)):
                setattr(self, f"rel_pos_{axis}", create_table(2 * length - 1, self.size))

    def forward(self, x: Tensor, grid: tuple) -> tuple:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, grid_q = self.pool(q, grid=grid, conv=self.pool_q, norm=self.norm_q)
        k, grid_k = self.pool(k, grid=grid, conv=self.pool_k, norm=self.norm_k)
        v, _ = self.pool(v, grid=grid, conv=self.pool_v, norm=self.norm_v)
        scores = (q * self.size**-0.5) @ k.transpose(2, 3)
        if self.relative:
            scores = self.with_positions(scores, q=q, grid_q=grid_q, grid_k=grid_k)
        x = scores.softmax(-1) @ v
        if self.plain:
            x[:, :, 1:] += q[:, :, 1:]
        else:
            x = x + q
        return self.proj(x.transpose(1, 2).reshape(b, -1, self.heads * self.size)), grid_q

    def pool(self, x: Tensor, grid: tuple, conv: nn.Conv3d, norm: nn.LayerNorm) -> tuple:
        """Tokens (B, h, N, d) pooled head by head, and their grid; without the class token."""
        b, h, _, d = x.shape
        if self.plain:
            token = x[:, :, :1]
            x = x[:, :, 1:]
        x = conv(x.reshape(b * h, *grid, d).permute(0, 4, 1, 2, 3).contiguous())
        grid = tuple(x.shape[2:])
        x = x.reshape(b, h, d, -1).transpose(2, 3)
        if self.plain:
            x = torch.cat((token, x), 2)
        return norm(x), grid

    def with_positions(self, scores: Tensor, q: Tensor, grid_q: tuple, grid_k: tuple) -> Tensor:
        """Scores (B, h, Nq, Nk) plus the products of each query with three tables of distances."""
        b = len(q)
        start = int(self.plain)  # after the class token
        inner = q[:, :, start:].reshape(b, self.heads, *grid_q, self.size)
        t, h, w = (
            lookup_positions(getattr(self, f"rel_pos_{axis}"), *sizes)
            for axis, *sizes in zip("thw", grid_q, grid_k)
        )
        whole = scores[:, :, start:, start:].view(b, self.heads, *grid_q, *grid_k)
        whole = (
            whole
            + torch.einsum("bythwc,tkc->bythwk", inner, t)[..., :, None, None]
            + torch.einsum("bythwc,hkc->bythwk", inner, h)[..., None, :, None]
            + torch.einsum("bythwc,wkc->bythwk", inner, w)[..., None, None, :]
        )
        scores[:, :, start:, start:] = whole.view(b, self.heads, prod(grid_q), prod(grid_k))
        return scores


def lookup_positions(table: Tensor, queries: int, keys: int) -> Tensor:
    """The row of a table of distances for each query and key position: (queries, keys, d)."""
    length = 2 * max(queries, keys) - 1
    if len(table) != length:
        table = F.interpolate(table.T[None], size=length, mode="linear")[0].T
    wide = max(keys / queries, 1.0)
    tall = max(queries / keys, 1.0)
    rows = torch.arange(queries, device=table.device)[:, None]
    columns = torch.arange(keys, device=table.device)[None]
    return table[(rows * wide - columns * tall + (keys - 1) * tall).long()]


class Mlp(nn.Module):
    def __init__(self, cin: int, width: int, cout: int, dropout: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(cin, width)
        self.fc2 = nn.Linear(width, cout)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, plan: Plan, drop_path: float, plain: bool, relative: bool):
        super().__init__()
        self.norm1 = nn.LayerNorm(plan.dim, eps=1e-6)
        self.norm2 = nn.LayerNorm(plan.out, eps=1e-6)
        self.attn = Attention(plan, plain, relative)
        self.mlp = Mlp(plan.out, 4 * plan.out, plan.out)
        self.drop_path = drop_path
        self.plain = plain
        self.stride = plan.stride_q
        self.widens = plan.dim != plan.out
        if self.widens:
            name = "proj" if plain else "proj_max_pool"
            setattr(self, name, nn.Linear(plan.dim, plan.out))

    def forward(self, x: Tensor, grid: tuple) -> tuple:
        normed = self.norm1(x)
        branch, after = self.attn(normed, grid)
        if self.widens:
            x = self.proj(normed) if self.plain else self.proj_max_pool(x)
        if self.stride > 1:
            x = self.pool(x, grid)
        x = x + self.drop(branch)
        return x + self.drop(self.mlp(self.norm2(x))), after

    def pool(self, x: Tensor, grid: tuple) -> Tensor:
        """Max pool of the tokens of a shortcut, without the class token."""
        s = self.stride
        token = x[:, :1]
        x = (x[:, 1:] if self.plain else x).transpose(1, 2).unflatten(2, grid)
        x = F.max_pool3d(x, (1, s + 1, s + 1), (1, s, s), (0, (s + 1) // 2, (s + 1) // 2))
        x = x.flatten(2).transpose(1, 2)
        return torch.cat((token, x), 1) if self.plain else x

    def drop(self, x: Tensor) -> Tensor:
        """Drops the branches of some samples."""
        if not self.training or not self.drop_path:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.drop_path
        return x * (keep / (1 - self.drop_path))


class MultiHead(nn.Module):
    """A head for each data set, and projections of its scores to the others' classes."""

    def __init__(self, width: int, names, classes, dropout: float, cross_projections: bool):
        super().__init__()
        count = dict(zip(names, classes))
        self.heads = nn.ModuleDict(
            {n: Mlp(width, width=2048, cout=count[n], dropout=dropout) for n in names}
        )
        pairs = [(s, t) for t in names for s in names if cross_projections and s != t]
        self.cross_dataset_heads = nn.ModuleDict(
            {f"{s}_{t}": nn.Linear(count[s], count[t], bias=False) for s, t in pairs}
        )
        self.pairs = pairs

    def forward(self, x: Tensor) -> dict:
        scores = {name: head(x) for name, head in self.heads.items()}
        if self.training:
            for s, t in self.pairs:
                scores[s, t] = self.cross_dataset_heads[f"{s}_{t}"](scores[s])
        return scores


class SingleHead(nn.Module):
    def __init__(self, width: int, name: str, classes: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(width, classes)
        self.name = name

    def forward(self, x: Tensor) -> dict:
        return {self.name: self.projection(self.dropout(x))}


class MViT(nn.Module):
    """Takes the settings of `mvit_multi.model.MViT`; `depthwise_impl` has no effect."""

    def __init__(
        self,
        datasets: Sequence[str],
        num_classes: Sequence[int],
        frames: int,
        crop: int,
        depth: int = 24,
        dim: int = 96,
        heads: int = 1,
        stage_starts: Sequence[int] = (2, 5, 21),
        kv_stride: int = 8,
        drop_path: float = 0.1,
        dropout: float = 0.5,
        variant: str = "multitrain",
        relative: bool = False,
        single_head: bool = False,
        cross_projections: bool = True,
        expander: bool = True,
        depthwise_impl: str = "taps",
        recompute: bool = False,
    ):
        super().__init__()
        if recompute:
            raise ValueError("model.recompute: the PyTorch reference keeps all activations")
        plain = variant == "pyslowfast"
        self.datasets = tuple(datasets)
        self.plain = plain
        self.normalize = Normalize((0.45,) * 3, std=(0.225,) * 3, channels=3, axes=3)
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv3d(3, dim, (3, 7, 7), (2, 4, 4), (1, 3, 3))
        side = crop // 4
        self.absolute = not (plain or relative)
        if plain:
            self.cls_token = create_table(1, 1, dim)
        if self.absolute:
            self.pos_embed_spatial = create_table(1, ((crop - 1) // 4 + 1) ** 2, dim)
            self.pos_embed_temporal = create_table(1, (frames - 1) // 2 + 1, dim)
        rates = torch.linspace(0, drop_path, depth).tolist()
        blocks = []
        for i in range(depth):
            stride = 2 if i in stage_starts else 1
            before = dim
            dim = dim * stride
            heads = heads * stride
            kv_stride = max(kv_stride // stride, 1)
            plan = Plan(before, dim, heads, frames // 2, side, stride, kv_stride)
            blocks.append(Block(plan, drop_path=rates[i], plain=plain, relative=not self.absolute))
            side //= stride
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        if single_head:
            self.head = SingleHead(dim, name=datasets[0], classes=num_classes[0], dropout=dropout)
        else:
            self.head = MultiHead(dim, datasets, num_classes, dropout, cross_projections)
        self.expander = Mlp(dim, 4096, dim) if expander else None

    def forward(self, clip: Tensor):
        x = self.patch_embed.proj(self.normalize(clip))
        grid = tuple(x.shape[2:])
        x = x.flatten(2).transpose(1, 2)
        if self.plain:
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)
        if self.absolute:
            time = self.pos_embed_temporal.repeat_interleave(prod(grid[1:]), 1)
            x = x + self.pos_embed_spatial.repeat(1, grid[0], 1) + time
        for block in self.blocks:
            x, grid = block(x, grid)
        x = self.norm(x)
        x = x[:, 0] if self.plain else x.mean(1)
        outputs = self.head(x)
        if not self.training:
            return [outputs[name].softmax(-1) for name in self.datasets]
        return outputs if self.expander is None else {**outputs, "embedding": self.expander(x)}


def create_table(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))


def loss_of(
    outputs: dict, labels: Tensor, fraction: float, train: dict, datasets: Optional[Tensor] = None
) -> Tensor:
    """The sum of the classification, projection and informative losses.

    `labels`, int (N,), count modulo the classes of a data set. `datasets`, int (N,), are the data
    sets of the clips; by default the clips belong to the data sets in turn.
    """
    names = [key for key in outputs if isinstance(key, str) and key != "embedding"]
    total = 0.0
    if datasets is None:
        datasets = torch.arange(len(labels), device=labels.device) % len(names)
    smoothing = train["smoothing"]
    weight = train["projection_weight"]
    for k, name in enumerate(names):
        own = datasets == k
        scores = outputs[name]
        classes = outputs[name].shape[1]
        hot = (own[:, None] * F.one_hot(labels % classes, classes)).to(scores.dtype)
        smooth = hot * (1 - smoothing) + smoothing / (train["smoothing_classes"] or classes)
        target = mix_batch(smooth, fraction)
        others = [projected for key, projected in outputs.items() if key[1:] == (name,)]
        if train["add_to_scores"]:
            loss = soft_cross_entropy(scores + weight * sum(others), target)
        else:
            loss = soft_cross_entropy(scores, target)
            for projected in others:
                loss = loss + weight / len(others) * soft_cross_entropy(projected, target)
        total = total + (own * loss).mean()
    if train["informative_weight"]:
        total = total + train["informative_weight"] * informative_loss(outputs["embedding"], train)
    return total


def soft_cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return -(target * scores.log_softmax(-1)).sum(-1)


def informative_loss(x: Tensor, train: dict) -> Tensor:
    """Variance and covariance terms of embeddings (N, D), as in VICReg."""
    x = x - x.mean(0)
    spread = F.relu(1 - torch.sqrt(x.var(0) + 1e-4)).mean()
    covariance = x.T @ x / (len(x) - 1)
    others = (covariance**2).sum() - (torch.diagonal(covariance) ** 2).sum()
    return train.get("std_weight", 25.0) * spread + others / x.shape[1]


build_network = MViT
