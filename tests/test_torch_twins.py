"""The PyTorch networks of `benchmarks/torch/` give the scores of ours for the same weights."""

import importlib

import numpy as np
import pytest
from mindspore import Tensor

from scripts.analysis.build_networks import make_dummy_batch
from scripts.convert_checkpoint import write_zip
from tests.golden_cases import compute_scores, load_weights
from tests.helpers import run_script
from tests.toy_recipes import YAMLS, load_toy_recipe
from utils.networks import find_network, list_networks
from utils.nn.layers import SYMMETRIC
from utils.weights.checkpoint import weights_of
from utils.weights.convert import convert_back, read_source

QUICK = ("tsm_smoke", "resnet50_smoke", "x3d_smoke", "mvit_multi_smoke")
QUICK += ("mvit_multi_plain_s_k400_16x4", "tsm_mobilenetv2_jester_online")


# Arguments of a network that change no operator of an evaluation.
NUMBERS = {"num_classes", "datasets", "mean", "std", "init", "dropout", "drop_path", "recompute"}


def list_cases():
    """One yaml for every network; slow except those of QUICK."""
    paths = {}
    for path in sorted(YAMLS, key=lambda path: path.stem not in QUICK):
        arguments = load_toy_recipe(path).model_arguments()
        operators = {name: value for name, value in arguments.items() if name not in NUMBERS}
        paths.setdefault(repr((path.parents[1].name, operators)), path)
    for path in paths.values():
        marks = () if path.stem in QUICK else pytest.mark.slow
        if path.stem != "resnet50_se50_imagenet_zoo":  # never published for PyTorch
            yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", list_cases())
def test_a_torch_network_gives_the_same_scores(path, tmp_path):
    torch = pytest.importorskip("torch")
    cfg = load_toy_recipe(path)
    network = path.parents[1].name
    arguments = cfg.model_arguments()
    if "recompute" in arguments:
        arguments["recompute"] = False  # MViT's reference refuses it; scores do not depend on it
    torch_net = importlib.import_module(f"benchmarks.torch.{network}").build_network(**arguments)
    randomize_weights(torch, torch_net)
    torch.save(torch_net.state_dict(), tmp_path / "net.pth")
    net = find_network(network).build_model(**arguments)
    load_weights(net, read_source(tmp_path / "net.pth").arrays, find_network(network))
    clip = make_dummy_batch(network, cfg)[0].asnumpy()
    clip = clip.reshape(-1, *find_network(network).get_input_shape(cfg))
    with torch.no_grad():
        result = torch_net.eval()(torch.from_numpy(clip))
    result_parts = result if isinstance(result, list) else [result]
    expected = np.concatenate([part.numpy() for part in result_parts], -1)
    ours = compute_scores(net.set_train(False), Tensor(clip))
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(ours, expected, atol=2e-5 * np.ptp(expected) + 1e-7)
    if weights_of(net).padding in ("", SYMMETRIC):
        naming = find_network(network).parameter_names()
        back = convert_back(net, naming, {})  # the reference of the online network has TSM's names
        write_zip(tmp_path / "back.pth", back)
        state = torch.load(tmp_path / "back.pth", weights_only=True)
        for name, values in torch_net.state_dict().items():
            assert torch.equal(values, state[name]), name
        torch_net.load_state_dict(state, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("network", list_networks())
def test_golden_cases_are_the_results_of_the_torch_networks(network):
    pytest.importorskip("torch")
    done = run_script(f"{network}/tests/golden/reference.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def randomize_weights(torch, torch_net) -> None:
    """Sets random weights and random statistics of batch norms."""
    torch.manual_seed(0)
    for name, value in torch_net.state_dict().items():
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
        elif value.ndim == 1:
            value.normal_(0, 0.1)
        elif "pos_" in name:  # position tables start near 0
            value.mul_(20)
