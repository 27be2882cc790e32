"""Optimizers from parameter groups, always updating in the order of the network."""

from mindspore import Parameter, nn


def sgd(
    parameters: list[Parameter], groups: list[dict], momentum: float, nesterov: bool = False
) -> nn.SGD:
    """PyTorch's SGD over groups with `params`, `lr` (floats, one per update) and `weight_decay`.

    `parameters` lists all of them in the network's order, which the AllReduce splits count in;
    without `order_params` the groups would reorder them silently.
    """
    groups = [group for group in groups if group["params"]]
    rates = [[float(rate) for rate in group["lr"]] for group in groups]
    filled = []
    for group, lr in zip(groups, rates):
        filled.append({"params": group["params"], "weight_decay": float(group["weight_decay"])})
        # A rate per group becomes a rate per parameter in the graph, each with its own cell.
        if any(other != lr for other in rates):
            filled[-1]["lr"] = lr
    return nn.SGD(
        [*filled, {"order_params": parameters}],
        learning_rate=rates[0],
        momentum=momentum,
        nesterov=nesterov,
    )
