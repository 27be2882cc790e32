"""MViTv2 for several data sets (MultiTrain, NeurIPS 2022), and plain MViTv2 (arXiv:2112.01526).

Axes: the input is clips (B, 3, T, H, W); blocks compute tokens (B, N, C), N in the order of
(T, H, W). Training returns a tuple: the scores of all heads, of all projections, and, with an
expander, the embedding. Evaluation returns a tuple of the probabilities of all heads. Cells keep
the names of the sources.
Sources: JunweiLiang/MultiTrain, commit 16723114; facebookresearch/SlowFast, commit 287ec007.

Differences from the sources: uint8 clips are normalised in the network; poolings of one pixel,
which have no effect, and options that no released recipe uses are left out; an evaluation returns
the probabilities of all heads, not of one.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Constant, Normal, Uniform, initializer

from mvit_multi.attention import STD, Attention, BlockPlan, ChannelsFirstDense, pool_grid
from mvit_multi.heads import EXPANDER_WIDTH, Mlp, MultiHead, SingleHead
from utils.nn.dropout import DropPath
from utils.nn.layers import CamCells, LayerNorm, Normalize, max_pool2d

MEAN = (0.45,) * 3
STD_OF_PIXELS = (0.225,) * 3
PATCH_KERNEL = (3, 7, 7)
PATCH_STRIDE = (2, 4, 4)
PATCH_PADDING = (1, 3, 3)
MLP_RATIO = 4
EPS = 1e-6  # of layer norms; MultiTrain's attention has 1e-5


def plan_blocks(
    frames: int,
    crop: int,
    depth: int,
    dim: int,
    heads: int,
    stage_starts: Sequence[int],
    kv_stride: int,
) -> list[BlockPlan]:
    """The plans of all blocks. `stage_starts` double channels and heads and halve the grid."""
    axes = zip((frames, crop, crop), PATCH_KERNEL, PATCH_STRIDE, PATCH_PADDING)
    t, h, w = ((size + 2 * pad - kernel) // stride + 1 for size, kernel, stride, pad in axes)
    grid = (t, h, w)  # of the patches
    table_grid = (frames // 2, crop // 4, crop // 4)
    plans = []
    dim_in = dim
    for i in range(depth):
        stride = 2 if i in stage_starts else 1
        dim = dim * stride
        heads = heads * stride
        kv_stride = max(kv_stride // stride, 1)
        plans.append(BlockPlan(dim_in, dim, heads, grid, table_grid, stride, kv_stride))
        grid = pool_grid(grid, stride)
        dim_in = dim
        t, h, w = table_grid
        table_grid = (t, h // stride, w // stride)
    return plans


class PatchEmbed(nn.Cell):
    """Maps overlapping patches of 3 x 7 x 7 to tokens."""

    def __init__(self, dim: int):
        super().__init__()
        self.proj = PatchConv(dim)

    def construct(self, clip: Tensor) -> Tensor:
        x = self.proj(clip)  # (B, C, T, H, W)
        _, c, t, h, w = x.shape
        return ops.transpose(ops.reshape(x, (-1, c, t * h * w)), (0, 2, 1))


class PatchConv(nn.Cell):
    """A 3-D convolution, kernel 3 x 7 x 7, stride 2 x 4 x 4, computed as a 2-D convolution.

    Output frame o reads input frames 2o - 1, 2o and 2o + 1 as nine channels of one image. Weight
    (dim, 3, 3, 7, 7), bias (dim,), as PyTorch's. On Ascend 3-D convolutions are float16 only.
    """

    def __init__(self, dim: int):
        super().__init__()
        shape = (dim, 3, *PATCH_KERNEL)
        bound = float(np.prod(shape[1:])) ** -0.5
        self.weight = Parameter(initializer(Uniform(bound), shape), name="weight")
        self.bias = Parameter(initializer(Uniform(bound), (dim,)), name="bias")
        self.conv = ops.Conv2D(
            dim, PATCH_KERNEL[1:], pad_mode="pad", pad=PATCH_PADDING[1], stride=PATCH_STRIDE[1]
        )
        self.add = ops.BiasAdd()

    def construct(self, clip: Tensor) -> Tensor:
        b, c, t, h, w = clip.shape
        frames = ops.transpose(clip, (0, 2, 1, 3, 4))  # (B, T, 3, H, W)
        previous = ops.cat((ops.zeros((b, 1, c, h, w), clip.dtype), frames[:, 1 : t - 1 : 2]), 1)
        x = ops.cat((previous, frames[:, ::2], frames[:, 1::2]), 2)  # (B, T/2, 9, H, W)
        dim = self.weight.shape[0]
        weight = ops.cast(ops.transpose(self.weight, (0, 2, 1, 3, 4)), clip.dtype)
        x = self.conv(
            ops.reshape(x, (b * (t // 2), 3 * c, h, w)),
            ops.reshape(weight, (dim, 3 * c, *PATCH_KERNEL[1:])),
        )
        x = self.add(x, ops.cast(self.bias, x.dtype))
        x = ops.reshape(x, (b, t // 2, *x.shape[1:]))
        return ops.transpose(x, (0, 2, 1, 3, 4))


class Block(nn.Cell):
    """Attention and an MLP, each with a shortcut.

    If the number of channels changes, the first shortcut has a fully connected layer; if the grid
    changes, a max pooling after it. `plain`: the block of PySlowFast, whose first token is a class
    token, and whose layer reads the tokens after the norm (`proj`); otherwise the block of
    MultiTrain, whose layer reads the tokens before it (`proj_max_pool`).
    """

    def __init__(
        self, plan: BlockPlan, drop_path: float, plain: bool, relative: bool, depthwise_impl: str
    ):
        super().__init__()
        dim = plan.dim
        cout = plan.dim_out
        self.norm1 = LayerNorm(dim, EPS)
        eps = EPS if plain else 1e-5
        self.attn = Attention(plan, eps, relative=relative, token=plain, impl=depthwise_impl)
        self.drop1 = DropPath(drop_path)
        self.drop2 = DropPath(drop_path)
        self.norm2 = LayerNorm(cout, EPS)
        self.mlp = Mlp(cout, MLP_RATIO * cout, cout)
        self.grid = plan.grid
        self.plain = plain
        layer = ChannelsFirstDense(dim, cout, Normal(STD)) if dim != cout else None
        self.proj, self.proj_max_pool = (layer, None) if plain else (None, layer)
        self.max_pool = max_pool2d(plan.stride_q + 1, plan.stride_q) if plan.stride_q > 1 else None

    def construct(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = self.apply_shortcut(x if self.proj is None else normed)
        x = x + self.drop1(ops.cast(self.attn(normed), x.dtype))
        return x + self.drop2(ops.cast(self.mlp(self.norm2(x)), x.dtype))

    def apply_shortcut(self, x: Tensor) -> Tensor:
        """Maps tokens (B, N, C) to the channels and the grid of the block's output."""
        layer = self.proj if self.plain else self.proj_max_pool
        if layer is None and self.max_pool is None:
            return x
        y = ops.transpose(x, (0, 2, 1)) if layer is None else layer(x)  # (B, C, N)
        if self.max_pool is not None:  # over height and width; the class token is kept
            c = y.shape[1]
            t, h, w = self.grid
            inner = y[:, :, 1:] if self.plain else y
            inner = self.max_pool(ops.reshape(inner, (-1, c * t, h, w)))
            _, _, h, w = inner.shape
            inner = ops.reshape(inner, (-1, c, t * h * w))
            y = ops.cat((y[:, :, :1], inner), 2) if self.plain else inner
        return ops.transpose(y, (0, 2, 1))


class MViT(nn.Cell):
    """Clips (B, 3, frames, crop, crop), uint8 or normalised float32; see the module for outputs.

    `datasets` are the names, `num_classes` the numbers of classes of the data sets. `variant`
    pyslowfast is the plain MViTv2, with a class token and relative positions; multitrain has
    position embeddings in space and in time, or relative positions (`relative`). `single_head`: one
    linear head; otherwise one MLP head for each data set, with projections between them
    (`cross_projections`).
    `expander`: the MLP of the embedding for the informative loss. `drop_path` increases from 0 in
    the first block to its value in the last one. `depthwise_impl` is that of the
    pooling convolutions (`utils/nn/conv3d.py`). `recompute`: the backward pass recomputes the
    activations of a block instead of storing them.
    """

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
        plain = variant == "pyslowfast"
        plans = plan_blocks(frames, crop, depth, dim, heads, stage_starts, kv_stride)
        self.plans = plans
        rates = np.linspace(0, drop_path, depth)
        grid = plans[0].grid
        width = plans[-1].dim_out
        self.token = plain
        self.normalize = Normalize(MEAN, std=STD_OF_PIXELS, channels=3, axis=1, rank=5)
        self.cls_token = build_embedding((1, 1, dim), "cls_token") if plain else None
        absolute = not (plain or relative)
        space = (1, grid[1] * grid[2], dim)
        time = (1, grid[0], dim)
        self.pos_embed_spatial = build_embedding(space, "pos_embed_spatial") if absolute else None
        self.pos_embed_temporal = build_embedding(time, "pos_embed_temporal") if absolute else None
        self.patch_embed = PatchEmbed(dim)
        options = (plain, plain or relative, depthwise_impl)
        blocks = [Block(plan, float(rate), *options) for plan, rate in zip(plans, rates)]
        self.blocks = nn.SequentialCell(blocks)
        self.norm = LayerNorm(width, EPS)
        if single_head:
            self.head = SingleHead(width, num_classes[0], dropout)
        else:
            self.head = MultiHead(width, datasets, num_classes, dropout, cross_projections)
        self.expander = Mlp(width, EXPANDER_WIDTH, width) if expander else None
        if plain:  # PySlowFast's initialisation, with 0.02 for biases instead of 0
            for parameter in self.get_parameters():
                leaf = parameter.name.rpartition(".")[2]
                if leaf == "weight":
                    parameter.set_data(initializer(Normal(STD), parameter.shape))
                elif leaf in ("bias", "beta"):
                    parameter.set_data(initializer(Constant(STD), parameter.shape))
        if recompute:
            self.patch_embed.recompute()
            for block in self.blocks:
                block.recompute()

    def construct(self, clip: Tensor, with_features: bool = False) -> tuple:
        feature = clip if clip.ndim == 2 else self.compute_features(clip)
        outputs = self.head(feature)
        if self.expander is not None and self.training:
            outputs = (*outputs, self.expander(feature))
        return (*outputs, feature) if with_features else outputs

    def compute_features(self, clip: Tensor) -> Tensor:
        """Features (B, C): the class token, or the mean of all tokens, after the last norm.

        The network takes them for clips too.
        """
        x = self.patch_embed(self.normalize(clip))
        if self.token:
            token = ops.cast(self.cls_token, x.dtype)
            token = ops.broadcast_to(token, (x.shape[0], 1, x.shape[2]))
            x = ops.cat((token, x), 1)
        elif self.pos_embed_spatial is not None:
            t, d = self.pos_embed_temporal.shape[1:]
            space = ops.expand_dims(self.pos_embed_spatial, 1)
            time = self.pos_embed_temporal
            positions = ops.reshape(space + ops.reshape(time, (1, t, 1, d)), (1, -1, d))
            x = x + ops.broadcast_to(ops.cast(positions, x.dtype), x.shape)
        x = self.norm(self.blocks(x))
        return x[:, 0] if self.token else x.mean(1)

    def find_cam_cells(self) -> CamCells:
        """What the last block's attention reads; after it, one token may be all that counts."""
        block = self.blocks[-1]
        arrange = partial(arrange_tokens, grid=block.grid)
        head = self.head
        is_single = isinstance(head, SingleHead)
        scores = [head.projection] if is_single else [mlp.fc2 for mlp in head.heads]
        return CamCells(block.norm1, scores=scores, arrange=arrange)


def build_embedding(shape: tuple[int, ...], name: str) -> Parameter:
    """A class token or position embedding with normal initialisation."""
    return Parameter(initializer(Normal(STD), shape), name=name)


def arrange_tokens(tokens: np.ndarray, grid: tuple[int, int, int]) -> np.ndarray:
    """Tokens (1, N, C) of one clip as maps (T, C, H, W) of the grid, without a class token."""
    t, h, w = grid
    return tokens[0, -t * h * w :].reshape(t, h, w, -1).transpose(0, 3, 1, 2)
