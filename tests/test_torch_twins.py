"""The PyTorch twins of `benchmarks/` are the networks, shown by converting weights."""

import ast
import importlib

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import run_script
from tests.test_every_yaml import YAMLS, toy
from utils.build_networks import make_dummy_batch
from utils.config import ROOT
from utils.networks import find_network, list_networks
from utils.testing.golden import compute_scores, load_weights
from utils.weights.convert import read_source

# baseline.py runs the twins beside the networks; golden.py fills them like golden cases.
TWINS = sorted(
    path
    for path in (ROOT / "benchmarks" / "torch").glob("*.py")
    if path.stem not in ("baseline", "golden")
)
QUICK = (
    "tsm_smoke",
    "resnet50_smoke",
    "x3d_smoke",
    "mvit_multi_smoke",
    "mvit_multi_plain_s_k400_16x4",
    "tsm_mobilenetv2_jester_online",
)


@pytest.mark.parametrize("path", TWINS, ids=lambda p: p.stem)
def test_a_twin_does_not_import_the_code_it_is_compared_with(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            assert top not in ("mindspore", "utils", "scripts", *list_networks()), name


def cases():
    for path in YAMLS:
        marks = () if path.stem in QUICK else pytest.mark.slow
        if path.stem != "resnet50_se50_imagenet_zoo":  # never published for PyTorch
            yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", cases())
def test_a_twin_evaluates_like_the_network(path, tmp_path):
    torch = pytest.importorskip("torch")
    cfg, network = toy(path), path.parents[1].name
    twin = importlib.import_module(f"benchmarks.torch.{network}").build_network(
        **cfg.model_arguments()
    )
    shake(torch, twin)
    torch.save(twin.state_dict(), tmp_path / "twin.pth")
    net = find_network(network).model.build_network(**cfg.model_arguments())
    load_weights(net, read_source(tmp_path / "twin.pth"), find_network(network))
    clip = make_dummy_batch(network, cfg)[0].asnumpy()
    shape = find_network(network).dataset.get_input_shape(cfg.data)
    clip = clip.reshape(-1, *shape)
    with torch.no_grad():
        result = twin.eval()(torch.from_numpy(clip))
    expected = np.concatenate([part.numpy() for part in listed(result)], -1)
    ours = compute_scores(net.set_train(False), Tensor(clip))
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(ours, expected, atol=2e-5 * np.ptp(expected) + 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("network", list_networks())
def test_the_golden_cases_are_the_results_of_the_twins(network):
    pytest.importorskip("torch")
    done = run_script(f"{network}/tests/golden/reference.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def shake(torch, twin) -> None:
    """Weights, and statistics of batch norms, of no special value."""
    torch.manual_seed(0)
    for name, value in twin.state_dict().items():
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
        elif value.ndim == 1:
            value.normal_(0, 0.1)
        elif "pos_" in name:  # tables of positions, which start near 0
            value.mul_(20)


def listed(outputs) -> list:
    return outputs if isinstance(outputs, list) else [outputs]
