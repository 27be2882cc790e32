"""Damage to packed lists: one flipped bit, other bytes, and JSON with another value."""

import json
import random
from typing import Any

# Replacements for a value; the last is nested deeper than Python's parser allows.
NUMBERS = (True, -1, 0, 7, 2**70, 1.5, float("inf"))
VALUES = (None, *NUMBERS, "", "x", "../x", "\0", [], {}, [[]], "deep")
DEEP = "[" * 50_000


def flip_bit(content: bytes, seed: int, first: int = 0, end: int = 0) -> bytes:
    """Flips one bit of the bytes [first, end); end 0: to the end of the content."""
    rng, data = random.Random(seed), bytearray(content)
    data[rng.randrange(first, end or len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def change_bytes(content: bytes, seed: int) -> bytes:
    """Flips, cuts, overwrites, adds or deletes a few bytes."""
    rng = random.Random(seed)
    position, length = rng.randrange(len(content)), rng.choice([1, 4, 32])
    noise, rest = rng.randbytes(length), content[position + length :]
    return rng.choice(
        [
            flip_bit(content, seed),
            content[:position],
            content[:position] + noise + rest,
            content[:position] + noise + content[position:],
            content[:position] + rest,
            b"",
            content + noise,
        ]
    )


def change_json(content: bytes, seed: int) -> bytes:
    """Replaces or deletes one value at any depth."""
    rng, values = random.Random(seed), json.loads(content)
    positions: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            positions.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(values)
    node, key = rng.choice(positions)
    if rng.random() < 0.2:
        del node[key]
    else:
        node[key] = rng.choice(VALUES)
    return json.dumps(values).replace('"deep"', DEEP).encode()
