"""Random damage to the bytes of any file."""

import random

CHANGES = ("bit", "byte", "zeros", "noise", "number", "cut", "remove", "insert", "repeat", "swap")
NUMBERS = (0, 1, 65535, 1 << 24, 1 << 30, 65500 << 16, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate(content: bytes, seed: int) -> bytes:
    """Returns the content with one to four random changes, a function of the seed."""
    chance = random.Random(seed)
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        change_once(data, chance)
    return bytes(data)


def change_once(data: bytearray, chance: random.Random) -> None:
    """Makes one change of up to 512 bytes, or a cut. Both ends of a file are changed more often."""
    if not data:
        return
    ends = chance.choice([min(len(data), 400), len(data)])
    start = chance.randrange(ends)
    length = chance.choice([1, 2, 8, 64, 512])
    if chance.random() < 0.3:
        start = len(data) - 1 - start
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
    elif change == "number":
        order = chance.choice(["big", "little"])
        data[start : start + 4] = chance.choice(NUMBERS).to_bytes(4, order)
    elif change == "cut":
        del data[start:]
    elif change == "remove":
        del data[start : start + length]
    elif change == "insert":
        data[start:start] = chance.randbytes(length)
    elif change == "repeat":
        data[start:start] = part * chance.choice([1, 1, 50])
    else:
        other = chance.randrange(len(data))
        data[start], data[other] = data[other], data[start]
