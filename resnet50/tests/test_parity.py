"""ResNet against torchvision (tolerances: see each test).

`resnet50*.json` were computed by torchvision; `variants.json` by `golden/reference.py`, with
torchvision's own networks.
"""

from pathlib import Path

import pytest

from resnet50 import model
from resnet50.tests.golden_case import MEAN, STD, ResNetCase
from tests.golden_cases import load_case
from tests.separate_process import in_separate_process
from utils.nn.soft_targets import SmoothedCrossEntropy
from utils.tests import parity

GOLDEN = Path(__file__).parent / "golden"
SMALL = load_case(GOLDEN / "resnet50_small.json")
VARIANTS = {case["name"]: case for case in load_case(GOLDEN / "variants.json")}
CASES = {"resnet50": SMALL, "full size": load_case(GOLDEN / "resnet50.json"), **VARIANTS}


@pytest.mark.parametrize("name", parity.mark_slow_except(CASES, "resnet50", "resnet18"))
def test_scores_and_activations_equal_torchvisions(name):
    case = CASES[name]
    net = ResNetCase(CASES[name]).build_model()
    parity.assert_scores(net, case, case["eval"]["logits"])
    parity.assert_activations(net, case, ResNetCase(case).cell_name)


TRAINED = [name for name, case in CASES.items() if "train" in case]


@pytest.mark.parametrize("name", parity.mark_slow_except(TRAINED, "resnet18"))
@in_separate_process
def test_training_loss_gradients_and_buffers_equal_torchvisions(name):
    assert_training(CASES[name])


@in_separate_process
def test_a_training_step_on_the_cpu_kernels_equals_torchvisions():
    with parity.use_cpu_kernels():
        assert_training(CASES["resnet18"])


def assert_training(case: dict) -> None:
    """Tolerances: loss 1e-4, gradient norms 2 %, running statistics 1e-3.

    Each plus three times the error of PyTorch's float32 against float64: 0.25 % at 50 layers.
    """
    train = case["train"]
    net = ResNetCase(case).build_model(training=True)
    image, label = parity.make_inputs(case)
    loss = ResNetCase(case).build_loss()
    value, scores, norms = parity.compute_gradients(net, loss, image, label)
    noise = 3 * abs(train["loss"] / train["loss64"] - 1)
    assert value == pytest.approx(train["loss64"], rel=1e-4 + noise)
    others = train["other_losses64"]
    plain = float(SmoothedCrossEntropy(0.0, "excluded")(scores, label).asnumpy())
    assert plain == pytest.approx(others["cross_entropy"], rel=1e-4)
    included = float(SmoothedCrossEntropy(0.1, "included")(scores, label).asnumpy())
    name = "label_smoothing_0.1_uniform_over_all_K (PyTorch, NVIDIA)"
    assert included == pytest.approx(others[name], rel=1e-4)
    exact = train["grad_norm64"]
    noise = max(abs(train["grad_norm"][name] / norm - 1) for name, norm in exact.items())
    assert norms == pytest.approx(exact, rel=0.02 + 3 * noise)
    parity.assert_statistics(net, train["buffers"], 1e-3)


@pytest.mark.parametrize("part", parity.mark_slow_except(["step", "step_decay"], "step_decay"))
@in_separate_process
def test_five_updates_with_the_no_decay_groups_equal_torchvisions(part):
    step = ResNetCase(SMALL).build_train_step(part)
    inputs = parity.make_inputs(SMALL)
    compared = parity.assert_updates(step, inputs, SMALL["train"][part], lengths="delta_norm")
    assert compared > 100


@parity.without_values
def test_names_and_counts_equal_torchvisions():
    for case in VARIANTS.values():
        net = model.build_network(**case["config"], mean=MEAN, std=STD)
        assert parity.count_trained(net)[0] == case["parameters"]
    net = model.build_network("resnet50", num_classes=1000, mean=MEAN, std=STD)
    parity.assert_manifest(net, SMALL["manifest"])
