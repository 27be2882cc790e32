"""Random damage to the bytes of any file."""

import random

CHANGES = ("bit", "byte", "zeros", "noise", "cut", "remove", "insert", "repeat", "swap")


def mutate(content: bytes, seed: int) -> bytes:
    """Returns the content with one to three random changes, a function of the seed."""
    chance, data = random.Random(seed), bytearray(content)
    for _ in range(chance.randint(1, 3)):
        change_once(data, chance)
    return bytes(data)


def change_once(data: bytearray, chance: random.Random) -> None:
    """Makes one change of up to 64 bytes, or a cut. The head of a file is changed more often."""
    if not data:
        return
    ends = chance.choice([min(len(data), 400), len(data)])
    start, length = chance.randrange(ends), chance.choice([1, 2, 8, 64])
    change = chance.choice(CHANGES)
    part = data[start : start + length]
    if change == "bit":
        data[start] ^= 1 << chance.randrange(8)
    elif change == "byte":
        data[start] = chance.choice([0, 1, 127, 128, 255])
    elif change == "zeros":
        data[start : start + length] = bytes(len(part))
    elif change == "noise":
        data[start : start + length] = chance.randbytes(len(part))
    elif change == "cut":
        del data[start:]
    elif change == "remove":
        del data[start : start + length]
    elif change == "insert":
        data[start:start] = chance.randbytes(length)
    elif change == "repeat":
        data[start:start] = part
    else:
        other = chance.randrange(len(data))
        data[start], data[other] = data[other], data[start]
