"""The multiply-adds of an MViT from its plan alone: a check on what is counted in a run."""

import numpy as np

from mvit_multi.attention import BlockPlan, pooled
from mvit_multi.model import MLP_RATIO, MViT


def multiply_adds(net: MViT) -> int:
    """Of one clip in evaluation: matrix products and convolutions."""
    relative, extra = net.blocks[0].attn.positions is not None, int(net.token)
    parts = [block_multiply_adds(plan, relative, extra) for plan in net.plans]
    first = net.plans[0]
    parts.append(int(np.prod(first.grid)) * first.dim * net.patch_embed.proj.weight[0].size)
    matrices = [p for p in net.head.get_parameters() if p.ndim == 2]
    parts += [p.size for p in matrices if "cross_dataset" not in p.name]
    return sum(parts)


def block_multiply_adds(plan: BlockPlan, relative: bool, extra: int) -> int:
    """Of one block; `extra` is 1 where there is a class token."""
    dim, out = plan.dim, plan.dim_out
    query, key = pooled(plan.grid, plan.stride_q), pooled(plan.grid, plan.stride_kv)
    read, asked, kept = (int(np.prod(grid)) for grid in (plan.grid, query, key))
    tokens, queries, keys = read + extra, asked + extra, kept + extra
    parts = [
        tokens * dim * 3 * out,
        (asked + 2 * kept) * out * 27,
        2 * queries * keys * out,
        asked * out * sum(key) if relative else 0,
        queries * out * out,
        tokens * dim * out if dim != out else 0,
        queries * 2 * MLP_RATIO * out * out,
    ]
    return sum(parts)
