"""Optimizers from parameter groups, always updating in the order of the network."""

from mindspore import Parameter, nn


def sgd(
    parameters: list[Parameter], groups: list[dict], momentum: float, nesterov: bool = False
) -> nn.SGD:
    """PyTorch's SGD over groups with `params`, `lr` (floats, one per update) and `weight_decay`.

    `parameters` lists all of them in the network's order, which the AllReduce splits count in;
    without `order_params` the groups would reorder them silently.
    """
    filled = [
        {
            "params": group["params"],
            "lr": [float(rate) for rate in group["lr"]],
            "weight_decay": float(group["weight_decay"]),
        }
        for group in groups
        if group["params"]
    ]
    return nn.SGD(
        [*filled, {"order_params": parameters}],
        learning_rate=filled[0]["lr"],
        momentum=momentum,
        nesterov=nesterov,
    )
