"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

from typing import Any

import numpy as np
from mindspore import nn

from resnet50.config import Train
from resnet50.lr_generator import build_parameter_groups
from resnet50.network import NETWORK
from tests import golden_cases as golden
from utils.nn.soft_targets import SmoothedCrossEntropy
from utils.train import optimizers

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class ResNetCase(golden.GoldenCase):
    """A case of torchvision's ResNet; `defaults` are that of MindSpore's tutorial."""

    network = NETWORK
    defaults = {"smoothing": 0.1, "smoothed": "excluded", "decay": "norms_and_biases"}

    def model_arguments(self) -> dict[str, Any]:
        config = self.case["config"]
        same = {"arch": config["arch"], "num_classes": config["num_classes"]}
        return {**same, "mean": MEAN, "std": STD}

    def build_loss(self) -> nn.Cell:
        recorded = {**self.defaults, **self.case.get("train", {})}
        return SmoothedCrossEntropy(recorded["smoothing"], recorded["smoothed"])

    def build_optimizer(self, net: nn.Cell, lr: np.ndarray, recorded: dict) -> nn.Optimizer:
        decay = {**self.defaults, **self.case["train"]}["decay"]
        train = Train(weight_decay=recorded["weight_decay"], decay=decay)
        weights = net.trainable_params()
        groups = build_parameter_groups(weights, train, lr)
        return optimizers.SGD(weights, groups, recorded["momentum"])

    def cell_name(self, point: str) -> str:
        """Empty for the average pool, which is not a cell here."""
        return "" if point == "avgpool" else point


CASE = ResNetCase
