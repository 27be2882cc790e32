"""The losses of training on several data sets at once, in float32.

* classification: cross entropy of every clip with the head of its own data set;
* projection: cross entropy of the other heads' scores, projected to the classes of that data set;
* informative: the variance and covariance terms of VICReg, which keep the dimensions of an
  embedding spread out and uncorrelated over the batch.

Source: JunweiLiang/MultiTrain, commit 16723114.

Differences from the source: with several devices, gradients belong to the loss of the whole
batch. The source's are 1 / devices of that; `gradient_scale` reproduces them.

Mixup and cutmix mix clip i of N with clip N - 1 - i. One lambda, and for cutmix one box, is used
for the whole batch on all devices.
"""

from collections.abc import Sequence
from typing import Optional

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from mvit_multi.config import Config
from utils.nn.loss import Loss, build_class_weights
from utils.nn.soft_targets import mix_partners
from utils.runtime import Runtime

STD_WEIGHT = 25.0  # of the variance term in the informative loss
# Columns of a target (N, 7); then y0, y1, x0, x1 of a box
DATASET = 0
LABEL = 1
LAM = 2


def build_loss(cfg: Config, class_weights: Sequence[Sequence[float]], rt: Runtime) -> "MultiLoss":
    """The classification loss, plus that of the projections, plus a part of the informative one.

    `class_weights` has an entry for each data set.
    """
    settings = cfg.train
    informative = None
    if settings.informative_weight:
        gather = GatherEmbeddings(rt.rank, rt.size) if rt.size > 1 else None
        informative = VarianceCovarianceLoss(STD_WEIGHT, covariance_weight=1.0, gather=gather)
    return MultiLoss(
        cfg.class_counts,
        cross_projections=cfg.crosses,
        smoothing=settings.smoothing,
        smoothing_classes=settings.smoothing_classes,
        weights=settings.set_weights,
        projection_weight=settings.projection_weight,
        add_to_scores=settings.add_to_scores,
        informative=informative,
        informative_weight=settings.informative_weight,
        gradient_scale=1 / rt.size if settings.gradient == "original" else 1.0,
        class_weights=class_weights,
    )


class MultiLoss(Loss):
    """Outputs of the network in training and targets (..., 7) to the loss, a float32 scalar.

    The outputs are the scores (N, C_k) of K heads, then the scores of the projections, target by
    target, then the embedding (N, D). A target holds data set index, label, and the weight lambda
    of the clip in its mixture; the rest of the mixture is clip N - 1 - i.

    `class_weights` has the `train.class_weights` of each data set, all of them empty or none. They
    multiply the entries of a target, and the loss is divided by the mean weight of the labels; a
    label of another data set, in a mixture, counts as the clip's own.

    `smoothing_classes` is the number of classes that smoothing spreads over (0: those of each data
    set). `add_to_scores`: one cross entropy of a head's scores plus the projections to it, instead
    of one for each. `informative` is a `VarianceCovarianceLoss`. `gradient_scale` scales the
    gradient, not the loss.
    """

    def __init__(
        self,
        num_classes: tuple[int, ...],
        cross_projections: bool,
        smoothing: float = 0.1,
        smoothing_classes: int = 0,
        weights: tuple[float, ...] = (),
        projection_weight: float = 1.0,
        add_to_scores: bool = False,
        informative: Optional[nn.Cell] = None,
        informative_weight: float = 0.1,
        gradient_scale: float = 1.0,
        class_weights: Sequence[Sequence[float]] = ((),),
    ):
        super().__init__()
        self.class_weights = tuple(map(build_class_weights, class_weights))
        self.is_weighted = len(class_weights[0]) > 0
        self.num_classes = num_classes
        self.count = len(num_classes)
        self.others = self.count - 1 if cross_projections else 0
        self.weights = weights or (1.0,) * self.count
        self.projection_weight = projection_weight
        self.add_to_scores = add_to_scores
        self.informative = informative
        self.informative_weight = informative_weight
        self.smoothing = smoothing
        self.smoothing_classes = smoothing_classes
        self.gradient_scale = gradient_scale

    def construct(self, outputs: tuple, target: Tensor) -> Tensor:
        """Classification and projection loss: sum over data sets, mean over the whole batch."""
        target = ops.reshape(target, (-1, target.shape[-1]))
        loss = 0.0
        for k in range(self.count):
            soft = self.build_soft_targets(target, k)
            if self.is_weighted:
                soft = soft * self.class_weights[k]
            is_own = (target[:, DATASET] == k).astype(mstype.float32)
            scores = outputs[k].astype(mstype.float32)
            start = self.count + k * self.others
            projected = [
                outputs[i].astype(mstype.float32) for i in range(start, start + self.others)
            ]
            if self.add_to_scores:
                for other in projected:
                    scores = scores + self.projection_weight * other
                rows = soft_cross_entropy(scores, soft)
            else:
                rows = soft_cross_entropy(scores, soft)
                for other in projected:
                    weight = self.projection_weight / self.others
                    rows = rows + weight * soft_cross_entropy(other, soft)
            loss = loss + self.weights[k] * (is_own * rows).mean()
        if self.is_weighted:
            loss = loss / self.compute_mean_weight(target)
        if self.informative is not None:
            loss = loss + self.informative_weight * self.informative(outputs[-1])
        if self.gradient_scale != 1:
            constant = ops.stop_gradient(loss)
            loss = self.gradient_scale * loss + (1 - self.gradient_scale) * constant
        return loss

    def compute_mean_weight(self, target: Tensor) -> Tensor:
        """The mean over the clips of the class weight of their labels, mixed as these."""
        dataset = target[:, DATASET]
        own = ops.zeros_like(dataset)
        for k in range(self.count):
            # A label of another data set is cut off, and not used.
            label = ops.minimum(target[:, LABEL], self.num_classes[k] - 1).astype(mstype.int32)
            weight = ops.gather(self.class_weights[k], label, 0)
            own = own + (dataset == k).astype(mstype.float32) * weight
        partner = ops.where(dataset == ops.flip(dataset, (0,)), ops.flip(own, (0,)), own)
        return (target[:, LAM] * own + (1 - target[:, LAM]) * partner).mean()

    def build_soft_targets(self, target: Tensor, k: int) -> Tensor:
        """Targets (N, C_k) of data set k, smoothed and mixed; clips of other sets have no label."""
        classes = self.num_classes[k]
        off_value = self.smoothing / (self.smoothing_classes or classes)
        is_own = (target[:, DATASET] == k).astype(mstype.float32).reshape(-1, 1)
        label = target[:, LABEL].astype(mstype.int32)
        lam = target[:, LAM : LAM + 1]
        hot = ops.arange(classes).reshape(1, -1) == label.reshape(-1, 1)
        smooth = is_own * hot.astype(mstype.float32) * (1 - self.smoothing) + off_value
        return lam * smooth + (1 - lam) * ops.flip(smooth, (0,))

    def top1(self, outputs: tuple, target: Tensor) -> Tensor:
        """The accuracy of the clips with the heads of their own data sets."""
        target = ops.reshape(target, (-1, target.shape[-1]))
        accuracy = 0.0
        for k in range(self.count):
            is_own = target[:, DATASET] == k
            hit = outputs[k].argmax(axis=-1) == target[:, LABEL].astype(mstype.int32)
            accuracy = accuracy + ops.logical_and(is_own, hit).astype(mstype.float32).mean()
        return accuracy


class VarianceCovarianceLoss(nn.Cell):
    """The informative loss of an embedding (N, D), in float32: variance and covariance of VICReg.

    The variance term is the mean of max(0, 1 - standard deviation) over the dimensions. The
    covariance term is the sum of squared covariances of different dimensions, divided by D.
    `gather` collects the embeddings of all devices.
    """

    def __init__(self, std_weight: float, covariance_weight: float, gather: Optional[nn.Cell]):
        super().__init__()
        self.std_weight = std_weight
        self.covariance_weight = covariance_weight
        self.gather = gather
        self.product = ops.MatMul(transpose_a=True)

    def construct(self, embedding: Tensor) -> Tensor:
        x = embedding.astype(mstype.float32)
        if self.gather is not None:
            x = self.gather(x)
        n, d = x.shape
        x = x - x.mean(0, True)
        variance = ops.square(x).sum(0) / (n - 1)
        std_loss = ops.relu(1 - ops.sqrt(variance + 1e-4)).mean()
        covariance = self.product(x, x) / (n - 1)
        covariance_loss = (ops.square(covariance).sum() - ops.square(variance).sum()) / d
        return self.std_weight * std_loss + self.covariance_weight * covariance_loss


class GatherEmbeddings(nn.Cell):
    """Collects the rows of all R devices, (N, D) to (R * N, D), with gradients to all of them.

    AllReduce adds arrays that are zero except for the rows of one device; every back end supports
    that. Its gradient is the sum of the gradients of all devices, so the mean over devices, which
    data parallel training takes, is the gradient of the loss of the whole batch.
    """

    def __init__(self, rank: int, size: int):
        super().__init__()
        self.rank_mask = Tensor([[[float(r == rank)]] for r in range(size)], mstype.float32)
        self.sum = ops.AllReduce()

    def construct(self, x: Tensor) -> Tensor:
        d = x.shape[1]
        return self.sum(ops.reshape(self.rank_mask * ops.expand_dims(x, 0), (-1, d)))


def soft_cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """-sum(target * log_softmax(scores)) of every row, (N,); targets need not sum to 1."""
    return -(target * ops.log_softmax(scores, -1)).sum(1)


class MixClips(nn.Cell):
    """Clips uint8 (B, S, 3, T, H, W), S clips of a video, and targets (B, S, 7), to network input.

    The result is float32 (B * S, 3, T, H, W), normalised, and mixed as the targets say. Without
    `mixes` clips stay uint8 and the network normalises them.
    """

    def __init__(self, normalize: nn.Cell, mixes: bool):
        super().__init__(auto_prefix=False)
        self.normalize = normalize
        self.mixes = mixes

    def construct(self, clip: Tensor, target: Tensor) -> Tensor:
        x = ops.reshape(clip, (-1, *clip.shape[2:]))
        if not self.mixes:
            return x
        x = self.normalize(x)
        row = target[0, 0]
        return mix_partners(x, ops.flip(x, (0,)), row[2], row[3:])
