"""Heads for several data sets, the projections between their classes, and the expander."""

from collections import OrderedDict
from collections.abc import Sequence

from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.initializer import Normal, initializer

from utils.nn.dropout import Dropout
from utils.nn.layers import GELU, Dense

STD = 0.02
HEAD_WIDTH = 2048
EXPANDER_WIDTH = 4096


def build_dense(cin: int, cout: int) -> Dense:
    """A fully connected layer with the initialisation of the sources."""
    return Dense(cin, cout=cout, weight_init=Normal(STD), bias_init="zeros")


class Mlp(nn.Cell):
    """Two fully connected layers with the exact GELU between them."""

    def __init__(self, cin: int, width: int, cout: int, dropout: float = 0.0):
        super().__init__()
        self.fc1 = build_dense(cin, width)
        self.fc2 = build_dense(width, cout)
        self.gelu = GELU()
        self.drop1 = Dropout(dropout, width) if dropout > 0 else None
        self.drop2 = Dropout(dropout, cout) if dropout > 0 else None

    def construct(self, x: Tensor) -> Tensor:
        x = self.gelu(self.fc1(x))
        x = self.fc2(x if self.drop1 is None else self.drop1(x))
        return x if self.drop2 is None else self.drop2(x)


class Projection(nn.Cell):
    """Projects scores of one data set's classes to another's, without bias. Weight (cout, cin)."""

    def __init__(self, cin: int, cout: int):
        super().__init__()
        self.weight = Parameter(initializer(Normal(STD), (cout, cin)), name="weight")
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        return self.product(x, ops.cast(self.weight, x.dtype))


def list_projection_pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """(source, target) indices of every projection, in the order of the original: by target."""
    count = range(len(names))
    return [(source, target) for target in count for source in count if source != target]


class MultiHead(nn.Cell):
    """A head for each data set, and projections between the classes of all pairs of data sets.

    Maps features (B, C), in training to the scores of all heads and then of all projections, in the
    order of `list_projection_pairs`; in evaluation to the probabilities of all heads.
    """

    def __init__(
        self,
        cin: int,
        names: Sequence[str],
        num_classes: Sequence[int],
        dropout: float,
        cross_projections: bool,
    ):
        super().__init__()
        heads = [Mlp(cin, width=HEAD_WIDTH, cout=count, dropout=dropout) for count in num_classes]
        self.heads = nn.SequentialCell(OrderedDict(zip(names, heads)))
        self.pairs = tuple(list_projection_pairs(names)) if cross_projections else ()
        self.count = len(heads)
        if self.pairs:
            projections = OrderedDict(
                (f"{names[s]}_{names[t]}", Projection(num_classes[s], num_classes[t]))
                for s, t in self.pairs
            )
            self.cross_dataset_heads = nn.SequentialCell(projections)

    def construct(self, x: Tensor) -> tuple:
        scores = ()
        for k in range(self.count):
            scores += (self.heads[k](x),)
        if not self.training:
            return compute_probabilities(scores)
        projected = ()
        for i, (source, _) in enumerate(self.pairs):
            projected += (self.cross_dataset_heads[i](scores[source]),)
        return scores + projected


class SingleHead(nn.Cell):
    """Dropout and one fully connected layer: the head of the single-dataset networks."""

    def __init__(self, cin: int, num_classes: int, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout, cin)
        self.projection = build_dense(cin, num_classes)

    def construct(self, x: Tensor) -> tuple:
        scores = (self.projection(self.dropout(x)),)
        return scores if self.training else compute_probabilities(scores)


def compute_probabilities(scores: tuple) -> tuple:
    """The softmax of every head's scores, in float32."""
    probabilities = ()
    for score in scores:
        probabilities += (ops.softmax(ops.cast(score, mstype.float32), -1),)
    return probabilities
