"""Values that all ranks exchange: sums and running statistics."""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from utils.runtime import Runtime


class AllReduceSum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x)


def sum_over_ranks(values: np.ndarray) -> np.ndarray:
    """Integers added over all ranks, on every rank.

    The sum is float32, the one type that every back end adds, and exact below 2^24.
    """
    return AllReduceSum()(Tensor(values, mstype.float32)).asnumpy().astype(np.int64)


def sum_count(count: int, rt: Runtime) -> int:
    """The sum of all ranks' counts."""
    return count if rt.size == 1 else int(sum_over_ranks(np.array([count]))[0])


def broadcast_bn_statistics(net: nn.Cell, rt: Runtime) -> None:
    """Gives all ranks the running statistics of rank 0, which saves the checkpoints.

    Each rank has gathered its own. After this, all ranks evaluate the network of the checkpoint.
    """
    statistics = [p for p in net.get_parameters() if not p.requires_grad and "moving_" in p.name]
    if rt.size == 1 or not statistics:
        return
    own_statistics = np.concatenate([p.asnumpy().ravel() for p in statistics])
    values = AllReduceSum()(
        Tensor(own_statistics * np.float32(rt.is_main_process), mstype.float32)
    ).asnumpy()
    ends = np.cumsum([p.size for p in statistics])
    for parameter, part in zip(statistics, np.split(values, ends[:-1])):
        parameter.set_data(Tensor(part.reshape(parameter.shape), parameter.dtype))
