"""Layers that read their weights through a method, which a training can redirect."""

from mindspore import Parameter, Tensor, nn


class Reader(nn.Cell):
    """A layer that reads each of its `readable` weights with `read`.

    `utils.train.flat_weights` sets `is_flat` and `sources`: for each of these weights a Cell that
    returns its values for its shape, or None. Only a training reads them.
    """

    readable: tuple[str, ...] = ()  # names of attributes, each a Parameter or None

    def __init__(self):
        super().__init__()
        self.is_flat = False
        self.sources = ()

    def read(self, weight: Parameter, index: int) -> Tensor:
        """The values of a weight, which is number `index` of `readable`."""
        if self.training and self.is_flat:
            source = self.sources[index]
            return weight if source is None else source(weight.shape)
        return weight
