"""Layers that read their weights through a method, which a training can redirect."""

from mindspore import Parameter, Tensor, nn


class WeightReader(nn.Cell):
    """A layer that reads its weights `weight_names` with `read`.

    For flat weights (`utils.train.flat_layers`), `is_flat` is set, and `views`: for each of these
    weights a Cell that returns its values for its shape, or None. Only a training reads them.
    """

    weight_names: tuple[str, ...] = ()  # names of attributes, each a Parameter or None

    def __init__(self):
        super().__init__()
        self.is_flat = False
        self.views = ()

    def read(self, weight: Parameter, index: int) -> Tensor:
        """The values of a weight, which is number `index` of `weight_names`."""
        if self.training and self.is_flat:
            view = self.views[index]
            return weight if view is None else view(weight.shape)
        return weight
