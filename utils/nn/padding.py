"""How a network pads its strided convolutions and pools; the weights alone do not show it.

* `symmetric`: (kernel - 1) / 2 on every side, as in PyTorch.
* `same`: as MindSpore's pad_mode `same`. If the size of the input is even, a window of odd size and
  stride 2 gets one element less in front than behind, so it reads a grid that is shifted by one.
* `same_pool`: convolutions are symmetric, max pools are padded as by `same`.

Convolutions with stride 1 are the same in all three.
"""

from mindspore import nn

SYMMETRIC = "symmetric"
PADDINGS = (SYMMETRIC, "same", "same_pool")


class PaddedNetwork(nn.Cell):
    """A network that pads in one of these ways; its checkpoints say in which."""

    def __init__(self, padding: str):
        super().__init__()
        if padding not in PADDINGS:
            raise ValueError(f"model.padding is {padding}; known: {', '.join(PADDINGS)}")
        self.padding = padding
