"""Arrays as pure functions of names, shapes and seeds: the weights and inputs of golden cases.

Neither MindSpore nor PyTorch, so that both sides of a comparison can use it.
"""

import hashlib

import numpy as np


def fill(name: str, shape: tuple) -> np.ndarray:
    """One array of a PyTorch state dict: float32, or int64 for `num_batches_tracked`."""
    digest = hashlib.sha256(name.encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.zeros(shape, np.int64)
    if leaf == "running_var" or (leaf == "weight" and len(shape) == 1):
        value = generator.uniform(0.5, 1.5, shape)
    elif leaf in ("running_mean", "bias"):
        value = generator.standard_normal(shape) * 0.1
    elif leaf == "weight":
        value = generator.standard_normal(shape) * np.sqrt(1.0 / np.prod(shape[1:]))
    else:  # tokens, positional embeddings and the like
        value = generator.standard_normal(shape) * 0.02
    return np.asarray(value, np.float32)


def fill_input(seed: int, shape: tuple) -> np.ndarray:
    """A standard-normal network input, float32."""
    generator = np.random.Generator(np.random.PCG64(int(seed)))
    return generator.standard_normal(tuple(shape)).astype(np.float32)
