"""Attention over the tokens of a clip, with pooled queries, keys and values.

Axes: B clips, N tokens in the order of (T, H, W), C channels, h heads, d = C / h. Tokens come and
go as (B, N, C). In between, queries, keys and values are computed as (B, C, N), channels first,
because that is what the pooling convolutions read: a matrix product gives either order for the
same price, and a transposition of the unpooled grid would cost three times the product.
"""

from typing import NamedTuple, Optional

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, Uniform, Zero, initializer
from scipy.linalg import block_diag

from utils.nn.conv3d import DepthwiseConv3d
from utils.nn.layers import Dense, LayerNorm, on_ascend, resize_rows

Grid = tuple[int, int, int]
STD = 0.02  # of all tables and matrices at the start; the sources cut the normal far outside


class BlockPlan(NamedTuple):
    """What a block does: channels, heads, the grid it reads, strides of height and width.

    `table` is the grid by which the source sized its relative tables: halved and rounded down,
    where a pooled grid is rounded up.
    """

    dim: int
    dim_out: int
    heads: int
    grid: Grid
    table: Grid
    stride_q: int
    stride_kv: int


def pooled(grid: Grid, stride: int) -> Grid:
    """The grid that a 3x3x3 pooling, or the pool of the shortcut, leaves."""
    t, h, w = grid
    return t, (h - 1) // stride + 1, (w - 1) // stride + 1


class ChannelsFirst(nn.Cell):
    """A fully connected layer from tokens (B, N, C) to (B, cout, N), whole or in equal parts.

    Weight (cout, C), bias (cout,), as PyTorch's.
    """

    def __init__(self, cin: int, cout: int):
        super().__init__()
        self.weight = Parameter(initializer(Normal(STD), (cout, cin)), name="weight")
        self.bias = Parameter(initializer(Zero(), (cout,)), name="bias")
        self.product, self.add = ops.BatchMatMul(transpose_b=True), ops.BiasAdd()

    def construct(self, x: Tensor, part: int = 0, parts: int = 1) -> Tensor:
        weight, bias = ops.cast(self.weight, x.dtype), ops.cast(self.bias, x.dtype)
        if parts > 1:
            size = self.weight.shape[0] // parts
            weight = weight[part * size : (part + 1) * size]
            bias = bias[part * size : (part + 1) * size]
        weight = ops.broadcast_to(weight, (x.shape[0], *weight.shape))
        return self.add(self.product(weight, x), bias)


class Attention(nn.Cell):
    """Multi-head attention whose queries, keys and values are pooled by depthwise 3x3x3 kernels.

    The pooled query is added to what it found. One set of kernels and norms serves all heads.
    `relative`: tables of relative positions are added to the scores. `token`: the first token is
    a class token, which no pooling and no table touches.
    """

    def __init__(self, plan: BlockPlan, eps: float, relative: bool, token: bool, form: str):
        super().__init__()
        self.heads, self.size, self.grid = plan.heads, plan.dim_out // plan.heads, plan.grid
        self.token, self.out_grid = token, pooled(plan.grid, plan.stride_q)
        self.qkv = ChannelsFirst(plan.dim, 3 * plan.dim_out)
        self.proj = Dense(plan.dim_out, plan.dim_out, weight_init=Normal(STD))
        strides = (plan.stride_q, plan.stride_kv, plan.stride_kv)
        pools = [DepthwiseConv3d(self.size, (3, 3, 3), stride, form) for stride in strides]
        norms = [LayerNorm(self.size, eps) for _ in strides]
        self.pool_q, self.pool_k, self.pool_v = pools
        self.norm_q, self.norm_k, self.norm_v = norms
        for pool in pools:
            pool.weight.set_data(initializer(Uniform(27**-0.5), pool.weight.shape))
        tokens = int(token) + int(np.prod(self.out_grid))
        mask = (np.arange(tokens) >= int(token)).reshape(1, 1, tokens, 1)  # without class token
        self.not_token = Tensor(mask.astype(np.float32))
        self.positions = RelativePositions(plan, token) if relative else None
        if relative:
            self.rel_pos_t, self.rel_pos_h, self.rel_pos_w = (
                Parameter(initializer(Normal(STD), (length, self.size)), name=f"rel_pos_{axis}")
                for axis, length in zip("thw", self.positions.lengths)
            )
        self.score, self.blend = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        q, k, v = self.norm_q(q), self.norm_k(k), self.norm_v(v)  # (B, h, N', d)
        scaled = q * self.size**-0.5
        if self.positions is not None:
            tables = (self.rel_pos_t, self.rel_pos_h, self.rel_pos_w)
            scaled, k = self.positions(scaled, q, k, tables)
        scores = self.score(scaled, ops.cast(k, scaled.dtype))  # (B, h, Nq, Nk)
        share = ops.softmax(ops.cast(scores, mstype.float32), -1)
        found = self.blend(ops.cast(share, x.dtype), ops.cast(v, x.dtype))
        found = found + ops.cast(self.residual(q), x.dtype)
        n = found.shape[2]
        found = ops.reshape(ops.transpose(found, (0, 2, 1, 3)), (-1, n, self.heads * self.size))
        return self.proj(found)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled queries, keys and values of tokens, each (B, h, N', d)."""
        if on_ascend() and self.pool_k.form == "taps":
            return self.project_at_once(x)
        parts = ()
        for i, pool in enumerate((self.pool_q, self.pool_k, self.pool_v)):
            part = self.qkv(x, i, 3)  # (B, h*d, N)
            first = part[:, :, :1] if self.token else None
            part = part[:, :, 1:] if self.token else part
            parts += (self.to_tokens(pool(ops.reshape(part, (-1, self.size, *self.grid))), first),)
        return parts

    def project_at_once(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same in fewer kernels: one product for all, one pooling for keys and values."""
        wide, width = self.qkv(x), self.heads * self.size  # (B, 3*h*d, N)
        first = (None, None, None)
        if self.token:
            first, wide = ops.split(wide[:, :, :1], width, 1), wide[:, :, 1:]
        q, kv = ops.split(wide, (width, 2 * width), 1)
        q = self.pool_q(ops.reshape(q, (-1, self.size, *self.grid)))
        # The channels of keys and values, head by head, have the kernels of one head.
        kernels = ops.stack((self.pool_k.weight, self.pool_v.weight))  # (2, d, 1, 3, 3, 3)
        kernels = ops.expand_dims(ops.cast(kernels, kv.dtype), 1)
        shape = (2, self.heads, *kernels.shape[2:])
        kernels = ops.reshape(ops.broadcast_to(kernels, shape), (2 * width, *shape[3:]))
        kv = self.pool_k.taps(ops.reshape(kv, (-1, 2 * width, *self.grid)), kernels)
        k, v = ops.split(kv, width, 1)
        return self.to_tokens(q, first[0]), self.to_tokens(k, first[1]), self.to_tokens(v, first[2])

    def to_tokens(self, x: Tensor, first: Optional[Tensor]) -> Tensor:
        """Pooled maps (..., T, H, W) of all heads, after the class token, to (B, h, N', d)."""
        x = ops.reshape(x, (-1, self.size, x.shape[2] * x.shape[3] * x.shape[4]))
        if first is not None:
            x = ops.cat((ops.reshape(first, (-1, self.size, 1)), x), 2)
        x = ops.transpose(x, (0, 2, 1))
        return ops.reshape(x, (-1, self.heads, x.shape[1], self.size))

    def residual(self, q: Tensor) -> Tensor:
        """The pooled queries, unscaled; zero for the class token."""
        if not self.token:
            return q
        if on_ascend():
            return q * ops.cast(self.not_token, q.dtype)
        return ops.cat((ops.zeros_like(q[:, :, :1]), q[:, :, 1:]), 2)


class RelativePositions(nn.Cell):
    """Adds to a score the products of the query with a row of each of three tables.

    The row is that of the distance from query to key along the axis. The sums ride along in the
    product of queries and keys: the query gets its products with all distances as further
    channels, and a key the indicator of its place.
    """

    def __init__(self, plan: BlockPlan, token: bool):
        super().__init__()
        self.query, self.token = pooled(plan.grid, plan.stride_q), token
        key = pooled(plan.grid, plan.stride_kv)
        self.lengths = table_lengths(plan)
        rows = [distance_rows(q, k, n) for q, k, n in zip(self.query, key, self.lengths)]
        self.sizes = [len(each) for each in rows]
        # All three axes in one product; in a tuple, where mixed precision leaves it float32. On
        # Ascend in the type of the tables: a selection of rows rounds nothing.
        self.rows = (Tensor(block_diag(*rows).astype(np.float32)),)
        self.half_rows = (Tensor(block_diag(*rows).astype(np.float16)),)
        self.places = Tensor(indicators(key, token))
        self.product, self.select = ops.BatchMatMul(transpose_b=True), ops.MatMul()

    def construct(self, scaled: Tensor, q: Tensor, k: Tensor, tables: tuple) -> tuple:
        """Queries, scaled and not, and keys, (B, h, N, d); returns both with further channels."""
        inner = q[:, :, 1:] if self.token else q
        parts, table = (), ops.cat(tables, 0)
        if on_ascend() and table.dtype == mstype.float16:
            rows = self.select(self.half_rows[0], table)
        else:
            rows = self.select(self.rows[0], ops.cast(table, mstype.float32))
        rows = ops.split(ops.cast(rows, q.dtype), self.sizes, 0)
        for axis in range(3):
            parts += (self.along(inner, rows[axis], axis),)
        sums = ops.cat(parts, -1)
        if self.token:
            sums = ops.cat((ops.zeros_like(sums[:, :, :1]), sums), 2)
        places = ops.broadcast_to(ops.cast(self.places, k.dtype), (*k.shape[:3], sums.shape[3]))
        return ops.cat((scaled, sums), -1), ops.cat((k, places), -1)

    def along(self, q: Tensor, rows: Tensor, axis: int) -> Tensor:
        """Products of (B, h, N, d) with the rows (Q * K, d) of an axis: (B, h, N, K)."""
        b, h, n, d = q.shape
        count = self.query[axis]
        rows = ops.reshape(rows, (count, -1, d))
        if axis == 0 and on_ascend():  # nothing to transpose: time comes first
            rows = ops.broadcast_to(rows, (b * h, *rows.shape))
            sums = self.product(ops.reshape(q, (b * h, count, -1, d)), rows)
            return ops.reshape(sums, (b, h, n, -1))
        order = ((2, 0, 1, 3, 4, 5), (3, 0, 1, 2, 4, 5), (4, 0, 1, 2, 3, 5))[axis]
        back = ((1, 2, 0, 3, 4, 5), (1, 2, 3, 0, 4, 5), (1, 2, 3, 4, 0, 5))[axis]
        q = ops.transpose(ops.reshape(q, (b, h, *self.query, d)), order)
        sums = self.product(ops.reshape(q, (count, -1, d)), rows)  # (Q, ..., K)
        sums = ops.transpose(ops.reshape(sums, (*q.shape[:5], -1)), back)
        return ops.reshape(sums, (b, h, n, -1))


def table_lengths(plan: BlockPlan) -> list[int]:
    """Rows of the tables in time, height and width."""
    strides = ((1, 1), (plan.stride_q, plan.stride_kv), (plan.stride_q, plan.stride_kv))
    return [
        2 * max(side // stride_q, side // stride_kv) - 1
        for side, (stride_q, stride_kv) in zip(plan.table, strides)
    ]


def distance_rows(queries: int, keys: int, length: int) -> np.ndarray:
    """(queries * keys, length) float32: which mixture of a table's rows a query and a key take.

    One row, or, where the table has another length than the distances need, two: the table is
    then resized by linear interpolation with half-pixel centres, as PySlowFast does.
    """
    wide, tall = max(keys / queries, 1.0), max(queries / keys, 1.0)
    distance = np.arange(queries)[:, None] * wide - np.arange(keys)[None] * tall
    place = (distance + (keys - 1) * tall).astype(np.int64).reshape(-1)
    return resize_rows(length, 2 * max(queries, keys) - 1)[place]


def indicators(key: Grid, token: bool) -> np.ndarray:
    """(N, T + H + W) float32: 1 at a key's frame, row and column; a class token has none."""
    t, h, w = np.unravel_index(np.arange(np.prod(key)), key)
    parts = [np.eye(size)[place] for size, place in zip(key, (t, h, w))]
    places = np.concatenate(parts, 1)
    if token:
        places = np.concatenate((np.zeros((1, places.shape[1])), places))
    return places.astype(np.float32)
