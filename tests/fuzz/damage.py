"""Random damage to the bytes of any file."""

import random

CHANGES = ("bit", "byte", "zeros", "noise", "cut", "remove", "insert", "repeat", "swap")


def mutate(content: bytes, seed: int) -> bytes:
    """The content with one to three random changes; the same for the same seed."""
    chance, data = random.Random(seed), bytearray(content)
    for _ in range(chance.randint(1, 3)):
        change_once(data, chance)
    return bytes(data)


def change_once(data: bytearray, chance: random.Random) -> None:
    """One change of up to 64 bytes, or a cut; the head of a file is met more often."""
    if not data:
        return
    ends = chance.choice([min(len(data), 400), len(data)])
    first, length = chance.randrange(ends), chance.choice([1, 2, 8, 64])
    change = chance.choice(CHANGES)
    part = data[first : first + length]
    if change == "bit":
        data[first] ^= 1 << chance.randrange(8)
    elif change == "byte":
        data[first] = chance.choice([0, 1, 127, 128, 255])
    elif change == "zeros":
        data[first : first + length] = bytes(len(part))
    elif change == "noise":
        data[first : first + length] = chance.randbytes(len(part))
    elif change == "cut":
        del data[first:]
    elif change == "remove":
        del data[first : first + length]
    elif change == "insert":
        data[first:first] = chance.randbytes(length)
    elif change == "repeat":
        data[first:first] = part
    else:
        other = chance.randrange(len(data))
        data[first], data[other] = data[other], data[first]
