"""Replaces Cells of a network by forms that inference engines for ONNX compute faster.

An engine copies the data when axes are merged or split; MindSpore does not.
"""

from collections.abc import Mapping
from typing import Callable, Union

from mindspore import nn

from utils.nn.conv3d import Conv3d, DepthwiseConv3d, FrameConv, PointwiseConv3d
from utils.nn.fuse_conv_bn import replace_cell

Builders = Mapping[type, Callable[[nn.Cell], nn.Cell]]


def replace_cells(net: nn.Cell, builders: Builders) -> None:
    """Replaces every Cell of a type in `builders` by what its builder makes of it.

    The parameters keep their names.
    """
    for _, parent in list(net.cells_and_names()):
        for name, cell in list(parent.name_cells().items()):
            build = builders.get(type(cell))
            if build is not None:
                names = [(parameter, parameter.name) for parameter in cell.get_parameters()]
                replace_cell(parent, name, build(cell))
                for parameter, full_name in names:  # a Cell adds its own name to them
                    parameter.name = full_name


def group_depthwise(cell: DepthwiseConv3d) -> nn.Cell:
    """One grouped 3-D kernel."""
    grouped = DepthwiseConv3d(cell.channels, kernel=cell.kernel, stride=cell.stride, impl="grouped")
    grouped.weight = cell.weight
    return grouped


def convolve_clip(cell: Union[FrameConv, PointwiseConv3d]) -> nn.Cell:
    """A 3-D convolution of the clip instead of a 2-D one of its frames, or of merged axes."""
    cout, cin, *kernel = cell.weight.shape
    conv = Conv3d(cin, cout=cout, kernel=tuple(kernel), stride=cell.stride)
    conv.weight = cell.weight
    return conv


def stride_clip(cell: PointwiseConv3d) -> nn.Cell:
    """With a stride, a 3-D convolution; the translation to ONNX makes one of the others."""
    if cell.stride == 1 or cell.bias is not None:
        return cell
    return convolve_clip(cell)


FOR_ONNX: Builders = {
    DepthwiseConv3d: group_depthwise,
    FrameConv: convolve_clip,
    PointwiseConv3d: stride_clip,
}
