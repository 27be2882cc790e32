"""Multiply-adds of an MViT computed from its plan: a check of the counts of a run."""

import numpy as np

from mvit_multi.attention import BlockPlan, pool_grid
from mvit_multi.model import MLP_RATIO, MViT


def multiply_adds(net: MViT) -> int:
    """Multiply-adds of one clip in evaluation: matrix products and convolutions."""
    relative = net.blocks[0].attn.positions is not None
    extra = int(net.token)
    parts = [block_multiply_adds(plan, relative, extra) for plan in net.plans]
    plan = net.plans[0]
    kernel = net.patch_embed.proj.weight
    parts.append(int(np.prod(plan.grid)) * plan.dim * (kernel.size // kernel.shape[0]))
    matrices = [p for p in net.head.get_parameters() if p.ndim == 2]
    parts += [p.size for p in matrices if "cross_dataset" not in p.name]
    return sum(parts)


def block_multiply_adds(plan: BlockPlan, relative: bool, extra: int) -> int:
    """Multiply-adds of one block; `extra` is 1 if there is a class token."""
    dim = plan.dim
    out = plan.dim_out
    query = pool_grid(plan.grid, plan.stride_q)
    key = pool_grid(plan.grid, plan.stride_kv)
    inputs, pooled_queries, pooled_keys = (int(np.prod(grid)) for grid in (plan.grid, query, key))
    tokens = inputs + extra
    queries = pooled_queries + extra
    keys = pooled_keys + extra
    parts = [
        tokens * dim * 3 * out,
        (pooled_queries + 2 * pooled_keys) * out * 27,
        2 * queries * keys * out,
        pooled_queries * out * sum(key) if relative else 0,
        queries * out * out,
        tokens * dim * out if dim != out else 0,
        queries * 2 * MLP_RATIO * out * out,
    ]
    return sum(parts)
