"""Values and gradients of all losses against the recorded original."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from mvit_multi.dataset import build_target_row
from mvit_multi.heads import Mlp, MultiHead, list_projection_pairs
from mvit_multi.loss import MultiLoss, VarianceCovarianceLoss
from tests.golden_cases import generate_input, generate_weight, load_case, map_torch_names

CASES = load_case(Path(__file__).parent / "golden" / "mvit_multi_losses.json")
(THREE,) = (case for case in CASES["multi_head"] if case["name"] == "three datasets")


def make_array(recipe: dict) -> np.ndarray:
    value = recipe.get("scale", 1.0) * generate_input(recipe["seed"], recipe["shape"])
    value = value + recipe.get("shift", 0.0)
    if "constant_column" in recipe:
        value[:, recipe["constant_column"]] = 0.25
    return value.astype(np.float32)


@pytest.mark.parametrize("case", CASES["informative"], ids=lambda c: c["name"])
def test_the_informative_loss_equals_the_originals(case):
    weights = case["weights"]
    expect = case["expect"]
    loss = VarianceCovarianceLoss(weights["INF_STD_WEIGHT"], weights["INF_COVAR_WEIGHT"], None)
    value, grad = ms.value_and_grad(loss, 0)(Tensor(make_array(case["embedding"])))
    assert float(value.asnumpy()) == pytest.approx(expect["loss64"], rel=1e-5)
    assert np.linalg.norm(grad.asnumpy()) == pytest.approx(expect["grad_norm64"], rel=1e-4)
    first = grad.asnumpy().reshape(-1)[:8]
    np.testing.assert_allclose(first, expect["grad_first"], rtol=1e-3, atol=1e-6)
    parts = [VarianceCovarianceLoss(1.0, 0.0, None), VarianceCovarianceLoss(0.0, 1.0, None)]
    result = [float(part(Tensor(make_array(case["embedding"]))).asnumpy()) for part in parts]
    assert result == pytest.approx([expect["std_loss"], expect["cov_loss"]], rel=1e-4)


def test_the_informative_loss_accepts_a_float16_embedding():
    """Computed in float16 it would overflow."""
    x = Tensor((30 * generate_input(1, (8, 768))).astype(np.float16))
    assert np.isfinite(VarianceCovarianceLoss(25.0, 1.0, None)(x).asnumpy())


def make_loss(case: dict, **more) -> nn.Cell:
    return MultiLoss(
        tuple(case["classes"]),
        case.get("cross_projection", True),
        smoothing=case["label_smoothing"],
        smoothing_classes=case["smoothing_classes"],
        weights=tuple(case.get("loss_weights", ())),
        projection_weight=case.get("projection_weight", 1.0),
        add_to_scores=case.get("add_projection_to_prediction", False),
        **more,
    )


def build_targets(case: dict) -> Tensor:
    names = case["datasets"]
    lam = case["mixup_lam"]
    rows = [build_target_row(names.index(n), label, lam) for n, label in case["rows"]]
    return Tensor(np.stack(rows))


def list_output_names(case: dict) -> list[str]:
    """Names of heads and projections in the order of the network's outputs."""
    names = case["datasets"]
    projections = [f"{names[s]}_{names[t]}" for s, t in list_projection_pairs(names)]
    return [*names, *(name for name in projections if name in case["logits"])]


@pytest.mark.parametrize("case", CASES["multi_head"], ids=lambda c: c["name"])
def test_the_loss_of_several_heads_equals_the_originals(case):
    """All data sets in the batch, one absent, and no projections."""
    names = list_output_names(case)
    loss = make_loss(case)
    target = build_targets(case)
    scores = tuple(Tensor(make_array(case["logits"][name])) for name in names)

    def forward(*parts):
        return loss(parts, target)

    value, grads = ms.value_and_grad(forward, tuple(range(len(scores))))(*scores)
    assert float(value.asnumpy()) == pytest.approx(case["expect"]["loss64"], rel=1e-5)
    for name, grad in zip(names, grads):
        expected = case["expect"]["grad_norm"].get(name, 0.0)
        assert np.linalg.norm(grad.asnumpy()) == pytest.approx(expected, rel=1e-4, abs=1e-7), name


@pytest.mark.usefixtures("eager")
def test_projections_may_be_added_to_scores():
    """One cross entropy of a head's scores plus all projections to it."""
    target = build_targets(THREE)
    scores = [make_array(THREE["logits"][name]) for name in list_output_names(THREE)]
    joint = make_loss({**THREE, "add_projection_to_prediction": True, "projection_weight": 0.5})
    value = float(joint(tuple(map(Tensor, scores)), target).asnumpy())
    plain = make_loss({**THREE, "cross_projection": False})
    sums = [scores[k] + 0.5 * (scores[3 + 2 * k] + scores[4 + 2 * k]) for k in range(3)]
    assert value == pytest.approx(float(plain(tuple(map(Tensor, sums)), target).asnumpy()))


class HeadsOnFeatures(nn.Cell):
    """Heads, projections and expander; the input is a feature."""

    def __init__(self, case: dict):
        super().__init__()
        width = case["feature"]["shape"][1]
        sets = {"names": case["datasets"], "num_classes": case["classes"]}
        self.head = MultiHead(width, **sets, dropout=0.0, cross_projections=True)
        self.expander = Mlp(width, 4096, width)

    def construct(self, feature: Tensor) -> tuple:
        return (*self.head(feature), self.expander(feature))


@pytest.mark.parametrize("case", CASES["from_features"], ids=lambda c: c["name"])
def test_the_total_loss_from_features_equals_the_originals(case):
    net = HeadsOnFeatures(case).set_train()
    expect = case["expect"]
    names = map_torch_names(net)
    shapes = {name: shape for name, shape, _ in case["manifest"]}
    assert {names[p.name]: list(p.shape) for p in net.trainable_params()} == shapes
    for parameter in net.trainable_params():
        parameter.set_data(Tensor(generate_weight(names[parameter.name], tuple(parameter.shape))))
    informative = VarianceCovarianceLoss(25.0, 1.0, None)
    weights = {"informative": informative, "informative_weight": case["inf_loss_weight"]}
    loss = make_loss(case, **weights)
    target = build_targets(case)
    feature = Parameter(Tensor(make_array(case["feature"])), name="feature")
    outputs = net(feature)
    recorded = [*case["datasets"], *list_output_names({**case, **expect})[3:]]
    for name, result in zip(recorded, outputs):
        np.testing.assert_allclose(result.asnumpy(), expect["logits"][name], atol=1e-5)
    value = float(informative(outputs[-1]).asnumpy())
    assert value == pytest.approx(expect["informative"], rel=1e-5)
    parameters = ms.ParameterTuple([feature, *net.trainable_params()])

    def forward():
        return loss(net(feature), target)

    value, grads = ms.value_and_grad(forward, None, parameters)()
    assert float(value.asnumpy()) == pytest.approx(expect["loss64"], rel=1e-5)
    norms = [np.linalg.norm(grad.asnumpy()) for grad in grads]
    assert norms[0] == pytest.approx(expect["feature_grad_norm"], rel=1e-4)
    for parameter, norm in zip(parameters[1:], norms[1:]):
        name = names[parameter.name]
        assert norm == pytest.approx(expect["grad_norm"][name], rel=1e-4, abs=1e-6), name


def compute_value_and_gradient(loss: nn.Cell, scores: list, target: Tensor) -> tuple:
    """The loss, and its gradient for the scores of the first head."""

    def forward(head_scores):
        return loss((head_scores, *scores[1:]), target)

    value, grad = ms.value_and_grad(forward)(scores[0])
    return float(value.asnumpy()), grad.asnumpy()


@pytest.mark.usefixtures("eager")
def test_the_gradient_scale_changes_the_gradient_and_not_the_loss():
    scores = [Tensor(make_array(THREE["logits"][name])) for name in list_output_names(THREE)]
    target = build_targets(THREE)
    value, grad = compute_value_and_gradient(make_loss(THREE), scores, target)
    scaled = make_loss(THREE, gradient_scale=0.25)
    same, quarter = compute_value_and_gradient(scaled, scores, target)
    assert value == pytest.approx(same)
    np.testing.assert_allclose(0.25 * grad, quarter, rtol=1e-6)
