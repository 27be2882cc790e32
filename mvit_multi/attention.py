"""Attention over the tokens of a clip, with pooled queries, keys and values.

Axes: B clips, N tokens in the order of (T, H, W), C channels, h heads, d = C / h. Tokens come and
go as (B, N, C). In between, queries, keys and values are computed as (B, C, N), channels first,
because that is what the pooling convolutions read: a matrix product gives either order for the
same price, and a transposition of the unpooled grid would cost three times the product.
"""

from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, Uniform, Zero, initializer

from utils.conv3d import DepthwiseConv3d
from utils.layers import Dense
from utils.tables import resize_rows

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
        size = self.weight.shape[0] // parts
        weight = ops.cast(self.weight, x.dtype)[part * size : (part + 1) * size]
        bias = ops.cast(self.bias, x.dtype)[part * size : (part + 1) * size]
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
        norms = [nn.LayerNorm((self.size,), epsilon=eps) for _ in strides]
        self.pool_q, self.pool_k, self.pool_v = pools
        self.norm_q, self.norm_k, self.norm_v = norms
        for pool in pools:
            pool.weight.set_data(initializer(Uniform(27**-0.5), pool.weight.shape))
        self.positions = RelativePositions(plan, token) if relative else None
        if relative:
            self.rel_pos_t, self.rel_pos_h, self.rel_pos_w = (
                Parameter(initializer(Normal(STD), (length, self.size)), name=f"rel_pos_{axis}")
                for axis, length in zip("thw", self.positions.lengths)
            )
        self.score, self.blend = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def construct(self, x: Tensor) -> Tensor:
        q = self.norm_q(self.pool(self.qkv(x, 0, 3), self.pool_q))  # (B, h, Nq, d)
        k = self.norm_k(self.pool(self.qkv(x, 1, 3), self.pool_k))
        v = self.norm_v(self.pool(self.qkv(x, 2, 3), self.pool_v))
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

    def pool(self, x: Tensor, pool: nn.Cell) -> Tensor:
        """(B, h*d, N) to tokens (B, h, N', d), pooled head by head."""
        x = ops.reshape(x, (-1, self.size, x.shape[2]))
        first = x[:, :, :1] if self.token else None
        x = x[:, :, 1:] if self.token else x
        x = pool(ops.reshape(x, (-1, self.size, *self.grid)))
        _, _, t, h, w = x.shape
        x = ops.reshape(x, (-1, self.size, t * h * w))
        if first is not None:
            x = ops.cat((first, x), 2)
        x = ops.transpose(x, (0, 2, 1))
        return ops.reshape(x, (-1, self.heads, x.shape[1], self.size))

    def residual(self, q: Tensor) -> Tensor:
        """The pooled queries, unscaled; zero for the class token."""
        if not self.token:
            return q
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
        self.rows = tuple(
            Tensor(distance_rows(q, k, length))
            for q, k, length in zip(self.query, key, self.lengths)
        )
        self.places = Tensor(indicators(key, token))
        self.product, self.select = ops.BatchMatMul(transpose_b=True), ops.MatMul()

    def construct(self, scaled: Tensor, q: Tensor, k: Tensor, tables: tuple) -> tuple:
        """Queries, scaled and not, and keys, (B, h, N, d); returns both with further channels."""
        inner = q[:, :, 1:] if self.token else q
        parts = ()
        for axis in range(3):
            parts += (self.along(inner, tables[axis], axis),)
        sums = ops.cat(parts, -1)
        if self.token:
            sums = ops.cat((ops.zeros_like(sums[:, :, :1]), sums), 2)
        places = ops.broadcast_to(ops.cast(self.places, k.dtype), (*k.shape[:3], sums.shape[3]))
        return ops.cat((scaled, sums), -1), ops.cat((k, places), -1)

    def along(self, q: Tensor, table: Tensor, axis: int) -> Tensor:
        """Products of (B, h, N, d) with the rows of every key place of an axis: (B, h, N, K)."""
        b, h, n, d = q.shape
        count = self.query[axis]
        rows = self.select(self.rows[axis], ops.cast(table, mstype.float32))  # (Q * K, d)
        rows = ops.cast(ops.reshape(rows, (count, -1, d)), q.dtype)
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
