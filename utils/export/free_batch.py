"""A graph with a free batch, made of the MINDIR graphs of one network with two batches.

MindSpore writes every size as a number, also those that follow the batch.
"""

from typing import Any, NamedTuple

import numpy as np

from utils.scoring.mindir import Array, Graph


class DynamicDim(NamedTuple):
    """A size that is `times` the batch."""

    times: int


class Tiled(NamedTuple):
    """An array that repeats `part` along an axis, once for every sample."""

    part: np.ndarray
    axis: int


def with_dynamic_batch(small: Graph, large: Graph) -> Graph:
    """A graph with a free batch, from the same network's graphs with two batches.

    Only sizes and the repetitions of arrays may differ between the two: they follow the batch.
    Raises ValueError for any other difference.
    """
    batches = small.inputs[0].shape[0], large.inputs[0].shape[0]
    pairs = list(zip(small.nodes, large.nodes))
    same = len(small.nodes) == len(large.nodes) and len(small.constants) == len(large.constants)
    if not same or any((a.kind, a.settings) != (b.kind, b.settings) for a, b in pairs):
        raise ValueError("--batch free: the network has another graph with another batch")
    constants = zip(small.constants.items(), large.constants.values())
    return small._replace(
        inputs=[free_axes(a, b) for a, b in zip(small.inputs, large.inputs)],
        outputs=[free_axes(a, b) for a, b in zip(small.outputs, large.outputs)],
        constants={name: generalize_constant(a, b, batches) for (name, a), b in constants},
        nodes=[a._replace(output=free_axes(a.output, b.output)) for a, b in pairs],
    )


def free_axes(a: Array, b: Array) -> Array:
    """`a` with -1 for the sizes that differ from those of `b`."""
    return a._replace(shape=tuple(x if x == y else -1 for x, y in zip(a.shape, b.shape)))


def generalize_constant(a: Any, b: Any, batches: tuple[int, int]) -> Any:
    """The constant for any batch that is `a` with the first of `batches` and `b` with the second.

    A number becomes a DynamicDim and an array a Tiled if they follow the batch.
    """
    small, large = batches
    if isinstance(a, tuple) and len(a) == len(b):
        return tuple(generalize_constant(x, y, batches) for x, y in zip(a, b))
    if isinstance(a, np.ndarray) and a.shape != b.shape:
        axis = [x == y for x, y in zip(a.shape, b.shape)].index(False)
        part = a.take(range(a.shape[axis] // small), axis)
        tiled = (np.concatenate([part] * count, axis) for count in batches)
        if all(np.array_equal(x, y) for x, y in zip(tiled, (a, b))):
            return Tiled(part, axis)
    elif isinstance(a, np.ndarray):
        if np.array_equal(a, b):
            return a
    elif a == b:
        return a
    elif isinstance(a, int) and a % small == 0 and a * large == b * small:
        return DynamicDim(a // small)
    raise ValueError("--batch free: a number in the network changes with the batch")
