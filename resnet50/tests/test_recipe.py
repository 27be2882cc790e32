"""Rates, smoothing, decay groups and AllReduce buckets against the recorded originals."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from resnet50.config import Config
from resnet50.lr_generator import build_parameter_groups, get_lr, is_decayed
from resnet50.model import build_network
from resnet50.tests.golden_case import MEAN, STD
from tests.golden_cases import load_case, map_torch_names
from tests.helpers import load_smoke_config
from tests.toy_recipes import build_toy_training
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.load_config import load_config
from utils.nn.soft_targets import SmoothedCrossEntropy
from utils.tests.parity import without_values
from utils.train.adaptive import LARS
from utils.train.gradients import segment_ends
from utils.train.optimizers import SGD

CASES = load_case(Path(__file__).parent / "golden" / "resnet50_data.json")
CONFIGS = ROOT / "resnet50" / "configs"


def compute_rates(schedule: str, case: dict, per_epoch: int, **changes) -> np.ndarray:
    train = SimpleNamespace(
        schedule=schedule,
        lr=case.get("lr_max", case.get("base_lr")),
        base_batch=0,
        epochs=case.get("total_epochs", case.get("epochs")),
        schedule_epochs=0,
        warmup_epochs=case.get("warmup_epochs", 0),
        warmup_lr=case.get("lr_init", 0.0),
        end_lr=case["lr_end"] if "lr_end" in case else case["end_lr"],
        lr_changes="update",
    )
    vars(train).update(changes)
    return get_lr(train, per_epoch, 1)


def assert_points(result: np.ndarray, points: list) -> None:
    for index, expected in points:
        assert result[index] == pytest.approx(expected, rel=1e-6, abs=1e-12), index


@pytest.mark.parametrize("case", CASES["tutorial_cosine"] + CASES["tutorial_cosine_short"])
def test_the_cosine_rates_equal_the_tutorials(case):
    result = compute_rates("tutorial_cosine", case, case["steps_per_epoch"])
    assert len(result) == case["total_epochs"] * case["steps_per_epoch"]
    whole = list(enumerate(case.get("all_values_float32", [])))
    assert_points(result, case.get("values_float32", whole))


@pytest.mark.parametrize("case", CASES["zoo_other_modes"], ids=lambda case: case["mode"])
def test_the_other_rates_equal_the_zoos(case):
    result = compute_rates(case["mode"], case, case["steps_per_epoch"])
    assert_points(result, case["values_float32"])


@pytest.mark.parametrize("case", CASES["standard_cosine"])
def test_rates_with_warm_up_and_cosine_equal_the_originals(case):
    steps = {"epochs": case["total_steps"], "warmup_epochs": case["warmup_steps"]}
    assert_points(compute_rates("cosine", case, 1, **steps), case["values"])


@pytest.mark.parametrize("case", CASES["nvidia_per_epoch"])
def test_nvidias_rate_changes_once_per_epoch(case):
    result = compute_rates("cosine", case=case, per_epoch=3, lr_changes="epoch")
    assert_points(result[::3], case["values"])
    assert (result[::3] == result[2::3]).all()


def test_torchvisions_rate_falls_every_thirty_epochs():
    result = compute_rates("thirds", {"lr_max": 0.1, "lr_end": 0.0, "total_epochs": 90}, 2)
    assert_points(result[::2], [(0, 0.1), (29, 0.1), (30, 0.01), (59, 0.01), (60, 0.001)])


def test_rates_of_torchvisions_second_recipe_equal_its_schedulers():
    """LinearLR from 0.01 over 5 epochs, then CosineAnnealingLR over 595, one value an epoch."""
    cfg = load_config(Config, CONFIGS / "resnet50_r50_imagenet_torchvision_v2.yaml")
    lr = get_lr(cfg.train, 3, 8 * cfg.data.batch)
    assert len(lr) == 600 * 3
    assert (lr[::3] == lr[2::3]).all()
    epochs = np.arange(600)
    rising = 0.5 * (0.01 + 0.99 * epochs / 5)
    falling = 0.25 * (1 + np.cos(np.pi * (epochs - 5) / 595))
    np.testing.assert_allclose(lr[::3], np.where(epochs < 5, rising, falling), rtol=1e-12)


@pytest.mark.parametrize(
    ("recipe", "mode"),
    [("r50_imagenet", "linear"), ("r50_cifar10", "poly"), ("r152_imagenet", "step")],
)
def test_rates_of_the_zoos_recipes_equal_the_originals(recipe, mode):
    """Including the warm-up, which the zoo's `step` does not have."""
    (case,) = (case for case in CASES["zoo_other_modes"] if case["mode"] == mode)
    cfg = load_config(Config, CONFIGS / f"resnet50_{recipe}_zoo.yaml")
    lr = get_lr(cfg.train, case["steps_per_epoch"], 8 * cfg.data.batch)
    assert len(lr) == case["total_epochs"] * case["steps_per_epoch"]
    assert_points(lr, case["values_float32"])


def test_rates_of_the_lars_yaml_equal_mlperfs():
    """32,768 images an update on 128 devices: 39 updates an epoch, 2,267 in all."""
    cfg = load_config(Config, CONFIGS / "resnet50_r50_imagenet_lars.yaml")
    order = TrainSampler(1_281_167, batch=cfg.data.batch, rank=0, size=128, seed=0)
    assert (order.effective_batch_size(1), order.steps_per_epoch) == (32_768, 39)
    lr = get_lr(cfg.train, 39, 32_768)
    assert len(lr) == pytest.approx(2267, abs=39)
    warm = 16 * 39
    assert_points(lr, [(0, 0.0), (warm // 2, 10.6), (warm, 21.2)])
    middle = warm + (len(lr) - warm) // 2
    assert lr[middle] == pytest.approx(21.2 / 4, rel=1e-3)
    assert 0 < lr[-1] < 1e-4


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_the_settings_choose_the_optimizer(name):
    settings = ["model.first_width=2", "train.nesterov=false", f"train.optimizer={name}"]
    settings += ["train.trust_coefficient=0.02", "train.epsilon=0.5"]
    cfg = load_smoke_config("resnet50", *settings)
    step, parts = build_toy_training("resnet50", cfg)
    optimizer = step.optimizer
    assert type(optimizer) is {"sgd": SGD, "lars": LARS}[name]
    if name == "lars":
        assert (optimizer.trust, optimizer.eps) == (0.02, 0.5)
        by_name = {p.name: k for k, p in enumerate(optimizer.parameters)}
        adapted = optimizer.adapted.asnumpy()
        assert adapted[by_name["layer1.0.conv1.weight"]]
        assert not adapted[by_name["layer1.0.bn1.gamma"]]
        assert not adapted[by_name["fc.bias"]]
        np.testing.assert_allclose(optimizer.rates.asnumpy(), [parts.lr] * 2, rtol=1e-6)


@pytest.mark.parametrize("case", CASES["label_smoothing"], ids=lambda c: str(c["logits_seed"]))
def test_both_label_smoothings_equal_the_originals(case):
    generator = np.random.Generator(np.random.PCG64(case["logits_seed"]))
    scores = generator.standard_normal(case["shape"]) * case["logits_scale"]
    scores = Tensor(scores.astype(np.float32))
    label = Tensor(np.array(case["labels"], np.int32))
    for others, name in (("excluded", "over_K_minus_1"), ("included", "uniform_over_K")):
        loss = SmoothedCrossEntropy(case["smoothing"], others)(scores, label)
        assert float(loss.asnumpy()) == pytest.approx(case[name], rel=1e-5)
    plain = float(SmoothedCrossEntropy(0.0, "included")(scores, label).asnumpy())
    assert plain == pytest.approx(case["cross_entropy"], rel=1e-5)


@without_values
def list_weights(arch: str) -> tuple[list[Parameter], dict[str, str]]:
    """The trained weights of a network, and the names in PyTorch."""
    net = build_network(arch, num_classes=1000, mean=MEAN, std=STD)
    return net.trainable_params(), map_torch_names(net)


def test_decay_groups_equal_the_originals():
    expected = CASES["weight_decay_groups"]["resnet50"]
    (weights, names) = list_weights("resnet50")
    train = SimpleNamespace(decay="norms_and_biases", weight_decay=0.5)
    decayed, spared = build_parameter_groups(weights, train, np.ones(3))
    assert [names[p.name] for p in decayed["params"]] == expected["decayed"]
    assert [names[p.name] for p in spared["params"]] == expected["not_decayed"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert (decayed["adapted"], spared["adapted"]) == (True, False)
    nvidia = [names[p.name] for p in weights if not is_decayed(p.name, "named_bn")]
    assert len(nvidia) == expected["nvidia_name_filter_not_decayed_count"]
    decays = set(expected["nvidia_decays_although_one_dimensional"])
    assert decays == set(expected["not_decayed"]) - set(nvidia)
    assert all(is_decayed(p.name, "everything") for p in weights)
    norms = {names[p.name] for p in weights if not is_decayed(p.name, "norms")}
    assert norms == {*expected["not_decayed"]} - {"fc.bias"}


@pytest.mark.parametrize("case", CASES["all_reduce_split"][:3], ids=lambda c: c["arch"])
def test_all_reduce_buckets_equal_the_originals(case):
    weights, names = list_weights(case["arch"])
    assert len(weights) == case["trainable_tensors"]
    ends = segment_ends([p.name for p in weights], case["all_reduce_fusion_config"])
    start = 0
    for end, bucket in zip(ends, case["buckets"]):
        inside = weights[start : end + 1]
        assert names[inside[0].name] == bucket["first"]
        assert names[inside[-1].name] == bucket["last"]
        assert sum(p.size for p in inside) == bucket["elements"]
        start = end + 1


@pytest.mark.parametrize(
    ("indices", "layers"),
    [([80, 210, 313], ["layer3.0.bn3", "layer3.15.conv1"]), ([180, 313], ["layer3.11.conv3"])],
)
def test_published_indices_are_layer_ends(indices, layers):
    weights, _ = list_weights("resnet101")
    assert segment_ends([p.name for p in weights], layers) == indices


@pytest.mark.parametrize("arch", ["resnet18", "se_resnet50"])
def test_xavier_draws_the_initial_weights_of_the_zoo(arch):
    """Convolutions uniform in +-sqrt(6 / (fan_in + fan_out)), dense layers normal up to 2 sigma."""
    net = build_network(arch, num_classes=50, mean=MEAN, std=STD, init="xavier")
    for name, cell in net.cells_and_names():
        if isinstance(cell, nn.Conv2d):
            weight = cell.weight.asnumpy()
            bound = np.sqrt(6 / (sum(weight.shape[:2]) * weight[0, 0].size))
            assert 0.98 * bound < np.abs(weight).max() <= bound * (1 + 1e-6), name
            assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.05), name
        elif isinstance(cell, nn.Dense):
            weight = cell.weight.asnumpy()
            assert 0.0195 < np.abs(weight).max() <= 0.02, name
            # The deviation of a standard normal variable that is cut at -2 and 2 is 0.8796.
            assert weight.std() == pytest.approx(0.008796, rel=0.02), name
            assert not cell.bias.asnumpy().any(), name
        elif isinstance(cell, nn.BatchNorm2d):
            assert (cell.gamma.asnumpy() == 1).all(), name
