"""ResNet against torchvision (tolerances: see each test).

`resnet50*.json` were computed by torchvision; `variants.json` by `golden/reference.py`, with
torchvision's own networks.
"""

from pathlib import Path

import numpy as np
import pytest

from resnet50 import loss as losses
from resnet50 import model
from resnet50.golden_case import MEAN, STD, build_loss, build_network, build_train_step
from tests.separate_process import in_separate_process
from utils.testing.golden import load_case, map_torch_names
from utils.tests.parity import (
    assert_activations,
    assert_statistics,
    assert_updates,
    compute_gradients,
    make_clip,
    make_inputs,
)

GOLDEN = Path(__file__).parent / "golden"
SMALL, FULL = load_case(GOLDEN / "resnet50_small.json"), load_case(GOLDEN / "resnet50.json")
VARIANTS = {case["name"]: case for case in load_case(GOLDEN / "variants.json")}
QUICK = [name for name in VARIANTS if name not in ("resnet101", "resnet152")]
DEEP = [pytest.param(n, marks=pytest.mark.slow) for n in VARIANTS if n not in QUICK]


def assert_scores(case: dict) -> None:
    """Within 1e-4 of the spread."""
    expected = np.array(case["eval"]["logits"])
    scores = build_network(case)(make_clip(case)).asnumpy()
    assert np.abs(scores - expected).max() <= 1e-4 * np.ptp(expected)


def test_scores_equal_torchvisions():
    assert_scores(SMALL)


@pytest.mark.slow
def test_scores_at_full_size_equal_torchvisions():
    assert_scores(FULL)


@pytest.mark.parametrize("name", QUICK + DEEP)
def test_scores_of_every_depth_equal_torchvisions(name):
    assert_scores(VARIANTS[name])


@pytest.mark.parametrize("name", ["resnet50", *QUICK, *DEEP])
def test_activations_of_cells_equal_torchvisions(name):
    case = VARIANTS.get(name, SMALL)
    taps = {point: v for point, v in case["eval"]["taps"].items() if point != "avgpool"}
    assert_activations(build_network(case), taps, make_clip(case))


TRAINED = [
    SMALL,
    VARIANTS["resnet18"],
    pytest.param(VARIANTS["resnet34"], marks=pytest.mark.slow),
    pytest.param(VARIANTS["resnet101"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", TRAINED, ids=lambda c: c["config"]["arch"])
@in_separate_process
def test_training_loss_gradients_and_buffers_equal_torchvisions(case):
    """Tolerances: loss 1e-4, gradient norms 2 %, running statistics 1e-3.

    Each plus three times the error of PyTorch's float32 against float64: 0.25 % at 50 layers.
    """
    net, train = build_network(case).set_train(True), case["train"]
    image, label = make_inputs(case)
    value, scores, norms = compute_gradients(net, build_loss(case), image, label)
    noise = 3 * abs(train["loss"] / train["loss64"] - 1)
    assert value == pytest.approx(train["loss64"], rel=1e-4 + noise)
    others = train["other_losses64"]
    plain = float(losses.build_loss(0.0, "excluded")(scores, label).asnumpy())
    assert plain == pytest.approx(others["cross_entropy"], rel=1e-4)
    included = float(losses.build_loss(0.1, "included")(scores, label).asnumpy())
    name = "label_smoothing_0.1_uniform_over_all_K (PyTorch, NVIDIA)"
    assert included == pytest.approx(others[name], rel=1e-4)
    exact = train["grad_norm64"]
    noise = max(abs(train["grad_norm"][name] / norm - 1) for name, norm in exact.items())
    assert norms == pytest.approx(exact, rel=0.02 + 3 * noise)
    assert_statistics(net, train["buffers"], 1e-3)


@pytest.mark.parametrize("part", [pytest.param("step", marks=pytest.mark.slow), "step_decay"])
@in_separate_process
def test_five_updates_with_the_no_decay_groups_equal_torchvisions(part):
    recorded, step = SMALL["train"][part], build_train_step(SMALL, part)
    assert assert_updates(step, make_inputs(SMALL), recorded, "delta_norm") > 100


def test_names_and_counts_equal_torchvisions():
    for case in VARIANTS.values():
        net = model.build_network(**case["config"], mean=MEAN, std=STD)
        assert sum(p.size for p in net.trainable_params()) == case["parameters"]
    net, names = build_network(SMALL), map_torch_names(build_network(SMALL))
    expected = [n for n, _, _ in SMALL["manifest"] if not n.endswith("num_batches_tracked")]
    assert sorted(names.values()) == sorted(expected)
    assert [names[p.name] for p in net.trainable_params()] == [
        n for n in expected if "running" not in n
    ]


@pytest.mark.parametrize(
    ("arch", "classes", "parameters", "tensors"),
    [
        ("resnet18", 1000, 11_689_512, 62),
        ("resnet34", 1001, 21_798_185, 110),
        ("resnet50", 1000, 25_557_032, 161),
        ("resnet101", 10, 42_520_650, 314),
        ("resnet152", 1000, 60_192_808, 467),
        ("se_resnet50", 1000, 28_201_544, 175),
        ("se_resnet50", 1001, 28_203_593, 175),
    ],
)
def test_counts_equal_the_published_ones(arch, classes, parameters, tensors):
    weights = model.build_network(arch, num_classes=classes, mean=MEAN, std=STD).trainable_params()
    assert (sum(p.size for p in weights), len(weights)) == (parameters, tensors)
