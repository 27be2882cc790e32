"""The losses of training on several data sets at once, in float32.

classification: cross entropy of every clip under its own data set's head; projection: the same of
what the other heads' scores, projected, say of those classes; informative: keeps the dimensions of
an embedding spread out and uncorrelated over the batch (VICReg's variance and covariance terms).
Source: JunweiLiang/MultiTrain, commit 16723114.

Departures: with several devices, gradients are those of the loss of the whole batch. The source's
are 1 / devices of it; `share` reproduces that.
"""

from typing import Optional

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

WHICH, LABEL, SHARE = 0, 1, 2  # columns of a target (N, 7); then y0, y1, x0, x1 of a box


class MultiLoss(nn.Cell):
    """Outputs of the network in training and targets (..., 7) to one float32 number.

    The outputs are scores (N, C_k) of K heads, then of the projections, target by target, then the
    embedding (N, D). A target holds data set, label, share of the clip in its mixture; the rest
    of a mixture is the clip that stands as far from the end of the batch.

    `smoothing_classes` is the number of classes that smoothing spreads over; 0: each set's own.
    `add_to_scores`: one cross entropy of a head's scores plus the projections to it, instead of one
    for each. `gather` collects the embeddings of all devices. `share` scales the gradient.
    """

    def __init__(
        self,
        num_classes: tuple[int, ...],
        cross: bool,
        smoothing: float = 0.1,
        smoothing_classes: int = 0,
        weights: tuple[float, ...] = (),
        projection_weight: float = 1.0,
        add_to_scores: bool = False,
        informative: Optional[nn.Cell] = None,
        informative_weight: float = 0.1,
        share: float = 1.0,
    ):
        super().__init__()
        self.num_classes, self.count = num_classes, len(num_classes)
        self.others = self.count - 1 if cross else 0
        self.weights = weights or (1.0,) * self.count
        self.projection_weight, self.add_to_scores = projection_weight, add_to_scores
        self.informative, self.informative_weight = informative, informative_weight
        self.smoothing, self.smoothing_classes, self.share = smoothing, smoothing_classes, share

    def construct(self, outputs: tuple, target: Tensor) -> Tensor:
        loss = self.supervised(outputs, ops.reshape(target, (-1, target.shape[-1])))
        if self.informative is not None:
            loss = loss + self.informative_weight * self.informative(outputs[-1])
        if self.share != 1:
            loss = self.share * loss + (1 - self.share) * ops.stop_gradient(loss)
        return loss

    def supervised(self, outputs: tuple, target: Tensor) -> Tensor:
        """Classification and projection: sums over the sets, means over the whole batch."""
        total = 0.0
        for k in range(self.count):
            soft = self.soft_targets(target, k)
            own = (target[:, WHICH] == k).astype(mstype.float32)
            scores, first = float32(outputs[k]), self.count + k * self.others
            projected = [float32(outputs[i]) for i in range(first, first + self.others)]
            if self.add_to_scores:
                for other in projected:
                    scores = scores + self.projection_weight * other
                rows = cross_entropy(scores, soft)
            else:
                rows = cross_entropy(scores, soft)
                for other in projected:
                    each = self.projection_weight / self.others
                    rows = rows + each * cross_entropy(other, soft)
            total = total + self.weights[k] * (own * rows).mean()
        return total

    def soft_targets(self, target: Tensor, k: int) -> Tensor:
        """(N, C_k): smoothed, then mixed; a clip of another set is a row without a label."""
        classes = self.num_classes[k]
        off = self.smoothing / (self.smoothing_classes or classes)
        own = (target[:, WHICH] == k).astype(mstype.float32).reshape(-1, 1)
        label, share = target[:, LABEL].astype(mstype.int32), target[:, SHARE : SHARE + 1]
        hot = own * (ops.arange(classes).reshape(1, -1) == label.reshape(-1, 1)).astype(
            mstype.float32
        )
        smooth = hot * (1 - self.smoothing) + off
        return share * smooth + (1 - share) * ops.flip(smooth, (0,))

    def top1(self, outputs: tuple, target: Tensor) -> Tensor:
        """The share of clips that their own head gets right."""
        target = ops.reshape(target, (-1, target.shape[-1]))
        right = 0.0
        for k in range(self.count):
            own = target[:, WHICH] == k
            hit = outputs[k].argmax(axis=-1) == target[:, LABEL].astype(mstype.int32)
            right = right + ops.logical_and(own, hit).astype(mstype.float32).mean()
        return right


class Informative(nn.Cell):
    """Mean lack of spread and squared covariances of (N, D), weighed, always in float32."""

    def __init__(self, std_weight: float, covariance_weight: float, gather: Optional[nn.Cell]):
        super().__init__()
        self.std_weight, self.covariance_weight = std_weight, covariance_weight
        self.gather = gather
        self.product = ops.MatMul(transpose_a=True)

    def construct(self, embedding: Tensor) -> Tensor:
        x = float32(embedding)
        if self.gather is not None:
            x = self.gather(x)
        n, d = x.shape
        x = x - x.mean(0, True)
        variance = ops.square(x).sum(0) / (n - 1)
        std_loss = ops.relu(1 - ops.sqrt(variance + 1e-4)).mean()
        covariance = self.product(x, x) / (n - 1)
        covariance_loss = (ops.square(covariance).sum() - ops.square(variance).sum()) / d
        return self.std_weight * std_loss + self.covariance_weight * covariance_loss


class Gather(nn.Cell):
    """Rows of all devices, (N, D) to (R * N, D), differentiable through every one of them.

    A sum of arrays that are zero but for one device's rows: what every back end can do. Its
    gradient is the sum of all devices' gradients, so that the mean over devices, which data
    parallel training takes, is the gradient of the whole batch's loss.
    """

    def __init__(self, rank: int, size: int):
        super().__init__()
        self.place = Tensor([[[float(r == rank)]] for r in range(size)], mstype.float32)
        self.sum = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        d = x.shape[1]
        return self.sum(ops.reshape(self.place * ops.expand_dims(x, 0), (-1, d)))


def float32(x: Tensor) -> Tensor:
    return x.astype(mstype.float32)


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """-sum of target x log softmax, row by row; the target is used as it is. (N,)"""
    return -(target * ops.log_softmax(scores, -1)).sum(1)


build_loss = MultiLoss  # the name by which scripts find a room's loss
