"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from typing import Any

import numpy as np
from mindspore import nn

from tests import golden_cases as golden
from utils.nn.loss import CrossEntropy
from utils.train import optimizers
from x3d.config import Train
from x3d.lr_generator import build_parameter_groups
from x3d.network import NETWORK


class X3DCase(golden.GoldenCase):
    """A case of PySlowFast's X3D."""

    network = NETWORK

    def model_arguments(self) -> dict[str, Any]:
        config = self.case["config"]
        impl = self.depthwise_impl
        return {
            "num_classes": config["num_classes"],
            "frames": config["num_frames"],
            "crop": config["train_crop_size"],
            "depth_factor": config["variant_factors"]["depth_factor"],
            "dropout": 0.0,
            "depthwise_impl": impl if config["channelwise_3x3x3"] else "dense",
            "stem_impl": impl if config["stem_temporal_conv_grouped"] else "dense",
        }

    def build_loss(self) -> nn.Cell:
        return CrossEntropy()

    def build_optimizer(self, net: nn.Cell, lr: np.ndarray, recorded: dict) -> nn.Optimizer:
        weights = net.trainable_params()
        groups = build_parameter_groups(weights, Train(weight_decay=recorded["weight_decay"]), lr)
        return optimizers.SGD(weights, groups, recorded["momentum"], recorded["nesterov"])

    def cell_name(self, point: str) -> str:
        """Empty for the pool, which is not a cell here."""
        return "" if point == "head.avg_pool" else point


CASE = X3DCase
