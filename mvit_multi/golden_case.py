"""Network, loss and train step of a golden case, for the parity tests and `compare_step.py`."""

import re
from types import SimpleNamespace

import numpy as np
from mindspore import nn

from mvit_multi.loss import Informative, build_loss
from mvit_multi.lr_generator import parameter_groups
from mvit_multi.mixup import target_row
from mvit_multi.model import MViT
from mvit_multi.network import NETWORK
from utils.config import Run
from utils.runtime import Runtime
from utils.testing.golden import case_state, put_state
from utils.train import optimizers
from utils.train.train_step import TrainStep

# The settings that a replay may change, under case["train"].
RECIPE = {"label_smoothing": 0.0, "smoothing_classes": 0}


def settings(case: dict, form: str = "frames") -> dict:
    """The case's settings as the arguments of `MViT`."""
    config = case["config"]
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
        "grow": tuple(block for block, _ in config["MVIT.DIM_MUL"]),
        "kv_stride": config["MVIT.POOL_KV_STRIDE_ADAPTIVE"][1],
        "drop_path": 0.0,
        "dropout": 0.0,
        "plain": plain,
        "relative": config.get("MVIT.REL_POS_EMBED", plain),
        "single": single,
        "cross": config.get("MODEL.MULTI_ADD_CROSS_PROJ", False),
        "expander": config.get("MODEL.USE_INF_EXPANDER", False),
        "form": form,
    }


def network(case: dict, training: bool = False, form: str = "frames") -> MViT:
    """The case's network with its weights."""
    net = MViT(**settings(case, form))
    put_state(net, case_state(case, net), NETWORK)
    return net.set_train(training)


def loss(case: dict) -> nn.Cell:
    config, arguments, train = case["config"], settings(case), case["train"]
    informative = None
    if arguments["expander"]:
        weights = config["MODEL.INF_STD_WEIGHT"], config["MODEL.INF_COVAR_WEIGHT"]
        informative = Informative(*weights, gather=None)
    return build_loss(
        arguments["num_classes"],
        arguments["cross"],
        smoothing=train.get("label_smoothing", RECIPE["label_smoothing"]),
        smoothing_classes=train.get("smoothing_classes", RECIPE["smoothing_classes"]),
        projection_weight=config.get("MODEL.MULTI_PROJ_LOSS_WEIGHT", 1.0),
        add_to_scores=config.get("MODEL.MULTI_CROSS_PROJ_ADD_TO_PRED", False),
        informative=informative,
        informative_weight=config.get("MODEL.INF_LOSS_WEIGHT", 0.0),
    )


def target(case: dict) -> np.ndarray:
    """The case's labels as the train step takes them: float32 (N, 7)."""
    names, share = settings(case)["datasets"], case["train"].get("mixup_lam", 1.0)
    rows = [(names[0], row) if isinstance(row, int) else row for row in case["labels"]]
    return np.array([target_row(names.index(n), label, share) for n, label in rows])


def train_step(case: dict, part: str) -> TrainStep:
    """The recorded updates' optimizer; `part` is `step`."""
    net, recipe = network(case, training=True), case["train"][part]["optimizer"]
    train = SimpleNamespace(
        accumulate=1,
        clip_norm=recipe["clip_grad_l2norm"],
        ema=0.0,
        weight_decay=recipe["weight_decay"],
    )
    weights, lr = net.trainable_params(), np.full(5, recipe["lr"])
    opt = optimizers.AdamW(
        weights, parameter_groups(weights, train, lr), recipe["betas"], recipe["eps"]
    )
    return TrainStep(net, loss(case), opt, Run(device="CPU"), train, Runtime(), 5).set_train()


def cell_name(point: str) -> str:
    """Where a tap of the original is taken here.

    Not where ours stand channels first, and not what an evaluation leaves out.
    """
    other_order = re.search(r"attn\.(qkv|pool_[qkv])$|^blocks\.\d+\.proj(_max_pool)?$", point)
    return "" if other_order or point == "expander" else point
