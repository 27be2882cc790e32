"""Damage to packed lists: one flipped bit, other bytes, and JSON with another value."""

import json
import random
from typing import Any

# What stands in the place of a value; the last is deeper than Python's parser goes.
NUMBERS = (True, -1, 0, 7, 2**70, 1.5, float("inf"))
VALUES = (None, *NUMBERS, "", "x", "../x", "\0", [], {}, [[]], "deep")
DEEP = "[" * 50_000


def flip_bit(content: bytes, seed: int, first: int = 0, end: int = 0) -> bytes:
    """One flipped bit between two places; the end of the content for 0."""
    chance, data = random.Random(seed), bytearray(content)
    data[chance.randrange(first, end or len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def change_bytes(content: bytes, seed: int) -> bytes:
    """A few bytes flipped, cut off, overwritten, added or taken away."""
    chance = random.Random(seed)
    position, length = chance.randrange(len(content)), chance.choice([1, 4, 32])
    noise, rest = chance.randbytes(length), content[position + length :]
    return chance.choice(
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
    """The text with one value, at any depth, that is another one or missing."""
    chance, values = random.Random(seed), json.loads(content)
    positions: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            positions.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(values)
    node, key = chance.choice(positions)
    if chance.random() < 0.2:
        del node[key]
    else:
        node[key] = chance.choice(VALUES)
    return json.dumps(values).replace('"deep"', DEEP).encode()
