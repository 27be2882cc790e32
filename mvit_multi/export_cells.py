"""The exported MViTv2: shape of a clip, the probabilities of all heads as one output."""

import json
from typing import Union

from mindspore import Tensor, nn, ops

from mvit_multi.config import Config
from utils.inference.export import ExportSpec


def describe_export(cfg: Config) -> ExportSpec:
    """The file says which columns of its output are of each data set: [first, last + 1]."""
    columns = {}
    begin = 0
    for dataset in cfg.data.sets:
        columns[dataset.name] = [begin, begin + dataset.num_classes]
        begin += dataset.num_classes
    info = {"columns": json.dumps(columns)}
    shape = cfg.get_clip_shape(cfg.data.crop)
    return ExportSpec(shape, output="probabilities", info=info, wrap=ConcatHeads)


class ConcatHeads(nn.Cell):
    """Concatenates the probabilities of all heads, (B, sum of C_k), for export.

    The features (B, C) stay an output of their own.
    """

    def __init__(self, net: nn.Cell):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, clip: Tensor, with_features: bool = False) -> Union[Tensor, tuple]:
        outputs = self.net(clip, with_features)
        if with_features:
            return ops.cat(outputs[:-1], 1), outputs[-1]
        return ops.cat(outputs, 1)
