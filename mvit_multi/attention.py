"""Attention over the tokens of a clip, with pooled queries, keys and values.

Axes: B clips, N tokens in the order of (T, H, W), C channels, h heads, d = C / h. Inputs and
outputs are tokens (B, N, C). In between, queries, keys and values are computed as (B, C, N),
channels first, because the pooling convolutions read this order: a matrix product computes either
order in the same time, and a transposition of the unpooled grid takes three times as long.
"""

from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Initializer, Normal, Uniform, initializer
from scipy.linalg import block_diag

from utils.nn import kernels
from utils.nn.conv3d import DepthwiseConv3d
from utils.nn.layers import Dense, LayerNorm, resize_table

Grid = tuple[int, int, int]
# Initial deviation of all position embeddings and matrices. The sources truncate the normal
# distribution so far outside that it makes no difference.
STD = 0.02


class BlockPlan(NamedTuple):
    """The shapes of a block: channels, heads, input grid, strides of height and width.

    `table_grid` is the grid from which the source computes the length of its tables of relative
    positions: it is rounded down when halved, while a pooled grid is rounded up.
    """

    dim: int
    dim_out: int
    heads: int
    grid: Grid
    table_grid: Grid
    stride_q: int
    stride_kv: int


def pool_grid(grid: Grid, stride: int) -> Grid:
    """The grid after a 3x3x3 pooling, or after the pooling of the shortcut."""
    t, h, w = grid
    return t, (h - 1) // stride + 1, (w - 1) // stride + 1


class ChannelsFirstDense(nn.Cell):
    """A fully connected layer from tokens (B, N, C) to (B, cout, N).

    With `parts` it computes only one of equal parts of the output channels. Weight (cout, C), bias
    (cout,), as PyTorch's; biases begin at 0.
    """

    def __init__(self, cin: int, cout: int, weight_init: Initializer):
        super().__init__()
        self.weight = Parameter(initializer(weight_init, (cout, cin)), name="weight")
        self.bias = Parameter(initializer("zeros", (cout,)), name="bias")
        self.linear = kernels.current().channels_first_linear()

    def construct(self, x: Tensor, part: int = 0, parts: int = 1) -> Tensor:
        weight = ops.cast(self.weight, x.dtype)
        bias = ops.cast(self.bias, x.dtype)
        if parts > 1:
            size = bias.shape[0] // parts
            weight = weight[part * size : (part + 1) * size]
            bias = bias[part * size : (part + 1) * size]
        return self.linear(x, weight, bias)


class Attention(nn.Cell):
    """Multi-head attention whose queries, keys and values are pooled by depthwise 3x3x3 kernels.

    The pooled query is added to the output (residual pooling). All heads use the same kernels and
    norms. `relative`: relative position embeddings are added to the scores. `token`: the first
    token is a class token, which has neither pooling nor relative positions.
    """

    def __init__(self, plan: BlockPlan, eps: float, relative: bool, token: bool, impl: str):
        super().__init__()
        self.heads, self.size, self.grid = plan.heads, plan.dim_out // plan.heads, plan.grid
        self.token = token
        self.qkv = ChannelsFirstDense(plan.dim, 3 * plan.dim_out, Normal(STD))
        self.proj = Dense(plan.dim_out, plan.dim_out, weight_init=Normal(STD))
        strides = (plan.stride_q, plan.stride_kv, plan.stride_kv)
        pools = [
            DepthwiseConv3d(self.size, kernel=(3, 3, 3), stride=stride, impl=impl)
            for stride in strides
        ]
        norms = [LayerNorm(self.size, eps) for _ in strides]
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
        self.project = kernels.current().project_and_pool
        self.score = kernels.current().matmul(transpose=True)
        self.blend = kernels.current().matmul()
        self.clear_class_token = kernels.current().clear_class_token

    def construct(self, x: Tensor) -> Tensor:
        pools = (self.pool_q, self.pool_k, self.pool_v)
        q, k, v = self.project(x, self.qkv, pools, self.heads, self.grid, self.token)
        # (B, h, N', d)
        q = self.norm_q(q)
        k = self.norm_k(k)
        v = self.norm_v(v)
        scaled = q * self.size**-0.5
        if self.positions is not None:
            tables = (self.rel_pos_t, self.rel_pos_h, self.rel_pos_w)
            scaled, k = self.positions(scaled, q, k, tables)
        k = ops.cast(k, scaled.dtype)
        weights = ops.softmax(ops.cast(self.score(scaled, k), mstype.float32), -1)
        y = self.blend(ops.cast(weights, x.dtype), ops.cast(v, x.dtype))
        residual = self.clear_class_token(q) if self.token else q  # the unscaled queries
        y = y + ops.cast(residual, x.dtype)
        n = y.shape[2]
        y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, n, self.heads * self.size))
        return self.proj(y)


class RelativePositions(nn.Cell):
    """Adds relative position embeddings to the attention scores.

    There is one table for each axis (T, H, W). The score of a query and a key gets the products of
    the query with one row of each table: the row of their distance along the axis. This is part of
    the product of queries and keys: a query has its products with all distances as additional
    channels, a key has the one-hot code of its position.
    """

    def __init__(self, plan: BlockPlan, token: bool):
        super().__init__()
        self.query = pool_grid(plan.grid, plan.stride_q)
        self.token = token
        key = pool_grid(plan.grid, plan.stride_kv)
        # The numbers of rows of the tables for time, height and width.
        strides = ((1, 1), (plan.stride_q, plan.stride_kv), (plan.stride_q, plan.stride_kv))
        self.lengths = [
            2 * max(side // stride_q, side // stride_kv) - 1
            for side, (stride_q, stride_kv) in zip(plan.table_grid, strides)
        ]
        rows = [compute_distance_rows(q, k, n) for q, k, n in zip(self.query, key, self.lengths)]
        self.sizes = [len(axis_rows) for axis_rows in rows]
        # One product for all three axes.
        self.select_rows = kernels.current().select_rows(block_diag(*rows))
        # float32 (N, T + H + W): 1 at the frame, row and column of a key; 0 for a class token.
        places = zip(key, np.unravel_index(np.arange(np.prod(key)), key))
        codes = np.concatenate([np.eye(size)[position] for size, position in places], 1)
        codes = np.pad(codes, ((int(token), 0), (0, 0)))
        self.key_positions = Tensor(codes.astype(np.float32))
        self.product = kernels.current().matmul(transpose=True)

    def construct(self, scaled: Tensor, q: Tensor, k: Tensor, tables: tuple) -> tuple:
        """Appends channels to the scaled queries and the keys.

        `scaled` and `q` are the queries with and without scaling; all are (B, h, N, d).
        """
        inner = q[:, :, 1:] if self.token else q
        parts = ()
        rows = ops.cast(self.select_rows(ops.cat(tables, 0)), q.dtype)
        rows = ops.split(rows, self.sizes, 0)
        for axis in range(3):
            parts += (self.multiply_along_axis(inner, rows[axis], axis),)
        sums = ops.cat(parts, -1)
        if self.token:
            sums = ops.cat((ops.zeros_like(sums[:, :, :1]), sums), 2)
        positions = ops.cast(self.key_positions, k.dtype)
        positions = ops.broadcast_to(positions, (*k.shape[:3], sums.shape[3]))
        return ops.cat((scaled, sums), -1), ops.cat((k, positions), -1)

    def multiply_along_axis(self, q: Tensor, rows: Tensor, axis: int) -> Tensor:
        """Products of queries (B, h, N, d) with the rows (Q * K, d) of an axis: (B, h, N, K).

        Q and K are the query and key positions along the axis.
        """
        b, h, n, d = q.shape
        count = self.query[axis]
        rows = ops.reshape(rows, (count, -1, d))
        if axis == 0:  # time comes first, so no transposition is needed
            rows = ops.broadcast_to(rows, (b * h, *rows.shape))
            sums = self.product(ops.reshape(q, (b * h, count, -1, d)), rows)
            return ops.reshape(sums, (b, h, n, -1))
        # The axis becomes the first dimension, the batch of the matrix product; then back.
        order = ((3, 0, 1, 2, 4, 5), (4, 0, 1, 2, 3, 5))[axis - 1]
        back = ((1, 2, 3, 0, 4, 5), (1, 2, 3, 4, 0, 5))[axis - 1]
        q = ops.transpose(ops.reshape(q, (b, h, *self.query, d)), order)
        sums = self.product(ops.reshape(q, (count, -1, d)), rows)  # (Q, ..., K)
        sums = ops.transpose(ops.reshape(sums, (*q.shape[:5], -1)), back)
        return ops.reshape(sums, (b, h, n, -1))


def compute_distance_rows(queries: int, keys: int, length: int) -> np.ndarray:
    """float32 (queries * keys, length): the weights of a table's rows for each query and key.

    A query and a key take one row. If the table has another length than the number of distances,
    they take a mixture of two: the table is resized by linear interpolation with half-pixel
    centres, like in PySlowFast.
    """
    wide = max(keys / queries, 1.0)
    tall = max(queries / keys, 1.0)
    distance = np.arange(queries)[:, None] * wide - np.arange(keys)[None] * tall
    index = (distance + (keys - 1) * tall).astype(np.int64).reshape(-1)
    return resize_table(np.eye(length), 2 * max(queries, keys) - 1)[index]
