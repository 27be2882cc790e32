"""scripts/convert_checkpoint.py converts a file of PyTorch, and back."""

import re
from dataclasses import replace

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from scripts.convert_checkpoint import main as convert_file
from tests.golden_cases import generate_weight
from tests.helpers import find_smoke_yaml, load_smoke_config, read_result, save_random_weights
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network, list_networks
from utils.runtime import Runtime
from utils.tests.parity import read_manifest, without_values
from utils.train.plan import Plan
from utils.weights import checkpoint
from utils.weights.checkpoint_file import read
from utils.weights.convert import convert, convert_back
from utils.weights.torch_reader import load_state

SOURCE = ROOT / "tsm" / "tests" / "golden" / "tsm_r18_w2.pth.tar"
SMOKE = find_smoke_yaml("tsm")
ARGUMENTS = ["--network", "tsm", "--config_path", SMOKE, "--source", SOURCE]
SETTINGS = ["--model.first_width=2", "--model.num_classes=7", "--model.dropout=0.5"]
SETTINGS += ["--data.swap_labels=[]"]


def test_a_converted_checkpoint_has_the_arrays_of_its_source(run_here, tmp_path):
    target = tmp_path / "tsm.ckpt"
    arguments = [*ARGUMENTS, "--target", target, *SETTINGS]
    result = read_result(run_here("scripts/convert_checkpoint.py", *arguments))
    assert (result["matched"], result["missing"]) == (102, [])
    assert result["dropped"] == {"num_batches_tracked": 20}
    arrays = read(target)
    for name, shape in {
        "base_model.conv1.weight": (2, 3, 7, 7),
        "base_model.layer1.0.conv1.net.weight": (2, 2, 3, 3),
        "base_model.layer4.1.bn2.moving_variance": (16,),
        "new_fc.bias": (7,),
    }.items():
        source = generate_weight(name.replace("moving_variance", "running_var"), shape)
        np.testing.assert_array_equal(arrays[name], source, name)


@pytest.mark.slow
def test_a_network_with_non_local_blocks_starts_from_imagenet(run_here, tmp_path):
    yaml = ROOT / "tsm" / "configs" / "tsm_r50_k400_8f_nl.yaml"
    names = read_manifest(ROOT / "tsm/tests/golden/names/torchvision_resnet50.txt.gz")
    state = {n: Parameter(Tensor(np.ones(s, np.float32)), name=n) for n, s in names.items() if s}
    checkpoint.save(tmp_path / "source.ckpt", state)
    arguments = ["--config_path", yaml, "--source", tmp_path / "source.ckpt", "--new_head"]
    target = tmp_path / "target.ckpt"
    done = run_here("scripts/convert_checkpoint.py", *arguments, "--target", target)
    assert read_result(done)["initial"] == 60
    cfg = load_config(find_network("tsm").config, yaml)
    net = find_network("tsm").build_model(**cfg.model_arguments())
    before = net.base_model.layer2[0].nl.theta.weight.asnumpy().copy()
    missing = checkpoint.load(net, target, new_head=True, head=find_network("tsm").classifier)
    assert missing == ["new_fc.weight", "new_fc.bias"]
    after = net.base_model.layer2[0].nl.theta.weight.asnumpy()
    assert after.std() > 0
    assert not np.array_equal(after, before), "the values of the file"


@pytest.mark.parametrize("name", list_networks())
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_checkpoint_goes_back_to_pytorch_bit_for_bit(name, suffix, run_here, tmp_path):
    """Under the original's names, with the counters of batches that `strict=True` demands."""
    network = find_network(name)
    source = save_random_weights(load_smoke_config(name), tmp_path / "a.ckpt", name)
    target = tmp_path / f"a{suffix}"
    words = ["--source", source, "--target", target, "--to=pytorch"]
    assert run_here("scripts/convert_checkpoint.py", *words).returncode == 0
    state = load_state(target)
    arrays = read(source)
    norms = {n.removesuffix("moving_mean") for n in arrays if n.endswith("moving_mean")}
    counters = {f"{norm}num_batches_tracked" for norm in norms}
    assert {n for n in state if n.endswith("num_batches_tracked")} == counters
    assert not [n for n in state if re.search(r"gamma|beta|moving", n)]
    shapes = {n: array.shape for n, array in arrays.items()}
    np.testing.assert_equal(convert(state, shapes, network).arrays, arrays)


MOBILE = {"arch": "mobilenetv2"}
ONLINE = {**MOBILE, "num_classes": 27, "online": True, "dropout": 0.0}


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("tsm_r50_k400_nl", {"non_local": True}),
        ("tsm_mobilenetv2_k400", MOBILE),
        ("online_mobilenetv2_jester", ONLINE),
    ],
)
@without_values
def test_names_in_pytorch_are_those_of_the_published_file(file, settings):
    network = find_network("tsm")
    net = network.build_model(**{"num_classes": 400, "segments": 8, **settings})
    published = read_manifest(ROOT / f"tsm/tests/golden/names/{file}.txt.gz")
    names = convert_back(net, network.parameter_names(), settings)
    assert {*names} == {name.removeprefix("module.") for name in published}


@pytest.mark.parametrize(
    ("padding", "target", "options", "words"),
    [
        ("symmetric", "a.npz", {}, "--target"),
        ("symmetric", "a.pth", {"new_head": True}, "--new_head"),
        ("same", "a.pth", {}, "model.padding=same"),
    ],
)
def test_what_pytorch_cannot_have_is_refused(padding, target, options, words, tmp_path):
    cfg = load_smoke_config("resnet50", f"model.padding={padding}")
    source = save_random_weights(cfg, tmp_path / "a.ckpt", "resnet50")
    network = find_network("resnet50")
    with pytest.raises(ValueError, match=words):
        convert_file(network, cfg, source=source, target=tmp_path / target, to="pytorch", **options)
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize("relative", [True, False])
def test_positions_of_other_clips_are_resized_where_a_training_starts(relative, tmp_path):
    """As by convert_checkpoint.py. Absolute ones never are, nor any in an evaluation."""
    network = find_network("mvit_multi")
    settings = [f"model.relative={str(relative).lower()}", "model.depth=2", "model.dim=8"]
    settings += ["model.stage_starts=[1]"]
    sizes = (["data.frames=4", "data.crop=16"], ["data.frames=8", "data.crop=32"])
    cfgs = [load_smoke_config("mvit_multi", *settings, *size) for size in sizes]
    nets = [network.build_model(**cfg.model_arguments()) for cfg in cfgs]
    source = tmp_path / "a.ckpt"
    checkpoint.save(source, checkpoint.weights_of(nets[0]))
    with pytest.raises(ValueError, match="data.crop"):
        checkpoint.load(nets[1], source)
    train = replace(cfgs[1].train, pretrained=source, new_head=False)
    plan = Plan(network, replace(cfgs[1], train=train), Runtime(), None)
    if not relative:
        with pytest.raises(ValueError, match="data.crop"):
            plan.load_and_freeze(nets[1])
        return
    plan.load_and_freeze(nets[1])
    convert_file(network, cfgs[1], source=source, target=tmp_path / "b.ckpt")
    for name, expected in read(tmp_path / "b.ckpt").items():
        np.testing.assert_array_equal(checkpoint.weights_of(nets[1])[name].asnumpy(), expected)
