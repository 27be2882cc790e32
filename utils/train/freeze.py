"""`train.freeze`: weights that a training leaves as they are."""

import re

from mindspore import nn

from utils.log import log
from utils.messages import join_names
from utils.nn.layers import freeze_norms

BACKBONE = "backbone"  # everything but the classifier


def freeze(net: nn.Cell, setting: str, classifier: str) -> None:
    """Freezes the weights that `train.freeze` names; logs how many are trained.

    They get no gradient. A batch norm without a trained weight evaluates: it uses its running
    statistics, which stay as they are. `classifier` is `Network.classifier`. Raises ValueError if
    the setting names no weight, or all of them.
    """
    if not setting:
        return
    weights = net.trainable_params()
    if setting == BACKBONE:
        frozen = [weight for weight in weights if not re.search(classifier, weight.name)]
    else:
        frozen = [weight for weight in weights if re.search(setting, weight.name)]
    if not frozen:
        names = join_names([weight.name for weight in weights], 3)
        raise ValueError(f"train.freeze: no weight that is trained matches {setting!r}: {names}")
    if len(frozen) == len(weights):
        raise ValueError(f"train.freeze: {setting!r} matches all weights, so none would be trained")
    for weight in frozen:
        weight.requires_grad = False
    norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    freeze_norms(n for n in norms if not (n.gamma.requires_grad or n.beta.requires_grad))
    trained = net.trainable_params()
    log.info(
        "train.freeze %s: %d of %d arrays of weights are trained, %.4g of %.4g million numbers",
        *(setting, len(trained), len(weights)),
        *(sum(weight.size for weight in group) / 1e6 for group in (trained, weights)),
    )
