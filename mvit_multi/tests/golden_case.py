"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

import re
from typing import Any

import numpy as np
from mindspore import nn

from mvit_multi.config import Train
from mvit_multi.dataset import build_target_row
from mvit_multi.loss import MultiLoss, VarianceCovarianceLoss
from mvit_multi.lr_generator import build_parameter_groups
from mvit_multi.network import NETWORK
from tests import golden_cases as golden
from utils.train.adaptive import AdamW


class MViTCase(golden.GoldenCase):
    """A case of MultiTrain's or PySlowFast's MViTv2."""

    network = NETWORK
    defaults = {"label_smoothing": 0.0, "smoothing_classes": 0}

    def model_arguments(self) -> dict[str, Any]:
        config = self.case["config"]
        plain = config["MVIT.CLS_EMBED_ON"]
        single = not config.get("MODEL.USE_MULTI_HEAD", False)
        names = ("one",) if single else tuple(config["MODEL.MULTI_DATASETS"])
        classes = config["MODEL.NUM_CLASSES"]
        return {
            "datasets": names,
            "num_classes": (classes,) if single else tuple(config["MODEL.MULTI_NUM_CLASSES"]),
            "frames": config["DATA.NUM_FRAMES"],
            "crop": config["DATA.TRAIN_CROP_SIZE"],
            "depth": config["MVIT.DEPTH"],
            "dim": config["MVIT.EMBED_DIM"],
            "heads": config["MVIT.NUM_HEADS"],
            "stage_starts": tuple(block for block, _ in config["MVIT.DIM_MUL"]),
            "kv_stride": config["MVIT.POOL_KV_STRIDE_ADAPTIVE"][1],
            "drop_path": 0.0,
            "dropout": 0.0,
            "variant": "pyslowfast" if plain else "multitrain",
            "relative": config.get("MVIT.REL_POS_EMBED", plain),
            "single_head": single,
            "cross_projections": config.get("MODEL.MULTI_ADD_CROSS_PROJ", False),
            "expander": config.get("MODEL.USE_INF_EXPANDER", False),
            "depthwise_impl": self.depthwise_impl,
        }

    def build_loss(self) -> nn.Cell:
        config = self.case["config"]
        arguments = self.model_arguments()
        recorded = {**self.defaults, **self.case["train"]}
        informative = None
        if arguments["expander"]:
            weights = config["MODEL.INF_STD_WEIGHT"], config["MODEL.INF_COVAR_WEIGHT"]
            informative = VarianceCovarianceLoss(*weights, gather=None)
        return MultiLoss(
            arguments["num_classes"],
            cross_projections=arguments["cross_projections"],
            smoothing=recorded["label_smoothing"],
            smoothing_classes=recorded["smoothing_classes"],
            projection_weight=config.get("MODEL.MULTI_PROJ_LOSS_WEIGHT", 1.0),
            add_to_scores=config.get("MODEL.MULTI_CROSS_PROJ_ADD_TO_PRED", False),
            informative=informative,
            informative_weight=config.get("MODEL.INF_LOSS_WEIGHT", 0.0),
        )

    def build_target(self) -> np.ndarray:
        """The target of a training batch: float32 (N, 7)."""
        names = self.model_arguments()["datasets"]
        lam = self.case["train"].get("mixup_lam", 1.0)
        rows = [(names[0], row) if isinstance(row, int) else row for row in self.case["labels"]]
        return np.array([build_target_row(names.index(n), label, lam) for n, label in rows])

    def build_optimizer(self, net: nn.Cell, lr: np.ndarray, recorded: dict) -> nn.Optimizer:
        train = Train(weight_decay=recorded["weight_decay"])
        weights = net.trainable_params()
        groups = build_parameter_groups(weights, train=train, lr=lr, depth=len(net.plans))
        return AdamW(weights, groups, recorded["betas"], recorded["eps"])

    def cell_name(self, point: str) -> str:
        """Empty if the output here has the channels first, or if evaluation does not compute it."""
        other_order = re.search(r"attn\.(qkv|pool_[qkv])$|^blocks\.\d+\.proj(_max_pool)?$", point)
        return "" if other_order or point == "expander" else point


CASE = MViTCase
