"""The Cells that the heat maps (Grad-CAM) of a network are computed from."""

from collections.abc import Sequence
from typing import Callable, NamedTuple, Protocol, runtime_checkable

import numpy as np
from mindspore import nn


class CamCells(NamedTuple):
    """What `find_cam_cells` of a network returns.

    `layer` returns the features of which `arrange` makes feature maps (T, C, H, W), if the network
    has read one clip. `scores` are the Cells, one for each head, that return the raw scores
    (..., classes).
    """

    layer: nn.Cell
    scores: Sequence[nn.Cell]
    arrange: Callable[[np.ndarray], np.ndarray]


@runtime_checkable
class HasCamCells(Protocol):
    """A network with heat maps."""

    def find_cam_cells(self) -> CamCells:
        """The Cells of the network that explain a prediction: the last ones with a place."""
