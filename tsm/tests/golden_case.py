"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from typing import Any

import numpy as np
from mindspore import nn

from tests import golden_cases as golden
from tsm.config import Train
from tsm.lr_generator import build_parameter_groups
from tsm.model import freeze_batch_norms
from tsm.network import NETWORK
from utils.nn.loss import CrossEntropy
from utils.train import optimizers


class TSMCase(golden.GoldenCase):
    """A case of the original's TSM."""

    network = NETWORK
    defaults = {"head_lr_mult": 5.0}

    def model_arguments(self) -> dict[str, Any]:
        config = self.case["config"]
        same = ("shift_place", "temporal_pool", "non_local", "consensus", "before_softmax")
        return {
            **{name: config[name] for name in same},
            "num_classes": config["num_class"],
            "segments": config["num_segments"],
            "arch": config["base_model"],
            "shift_div": config["shift_div"] if config["is_shift"] else 0,
            "online": config.get("unidirectional", False),
            "dropout": config["dropout"],
            "modality": config["modality"].lower(),
            "frames_per_segment": config["new_length"],
        }

    def build_model(self, training: bool = False) -> nn.Cell:
        """In training without dropout."""
        net = super().build_model()
        if training:
            if net.dropout is not None:
                net.dropout.p = 0.0
            freeze_batch_norms(net, "partial" if self.case["config"]["partial_bn"] else "trained")
        return net.set_train(training)

    def build_loss(self) -> nn.Cell:
        return CrossEntropy(before_softmax=self.case["config"]["before_softmax"])

    def build_optimizer(self, net: nn.Cell, lr: np.ndarray, recorded: dict) -> nn.Optimizer:
        head_lr_mult = {**self.defaults, **self.case["train"]}["head_lr_mult"]
        train = Train(weight_decay=recorded["weight_decay"])
        weights = net.trainable_params()
        groups = build_parameter_groups(weights, train=train, lr=lr, flow=False)
        groups = optimizers.scale_head(groups, self.network.classifier, head_lr_mult)
        return optimizers.SGD(weights, groups, recorded["momentum"])

    def cell_name(self, point: str) -> str:
        """A shifted convolution is `conv1.net`; empty for the average pool, which is not a cell."""
        if "avgpool" in point:
            return ""
        point = point.replace("conv1 (input after", "conv1.net (input after")
        point = point.replace("conv.0 (input after", "conv.0.net (input after")
        return point.replace("layer2 (input after the pool)", "layer2.net (input)")


CASE = TSMCase
