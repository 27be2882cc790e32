"""scripts/convert_checkpoint.py converts a file of PyTorch; tsm/eval.py evaluates the result."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from tests.helpers import find_smoke_yaml, read_result
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network
from utils.testing.golden import generate_weight
from utils.tests.parity import read_manifest
from utils.tests.weights.torch_pickles import plain, tensor, write_zip
from utils.weights import checkpoint
from utils.weights.checkpoint_file import read

SOURCE = ROOT / "tsm" / "tests" / "golden" / "tsm_r18_w2.pth.tar"
SMOKE = find_smoke_yaml("tsm")
ARGUMENTS = ["--network", "tsm", "--config_path", SMOKE, "--source", SOURCE]
SETTINGS = ["--model.first_width=2", "--model.num_classes=7", "--model.dropout=0.5"]
SETTINGS += ["--data.swap_labels=[]"]


def test_a_converted_checkpoint_has_the_arrays_of_its_source_and_is_evaluated(
    run_here, data_root, tmp_path
):
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
    lines = [line for line in (data_root / "test.txt").read_text().splitlines() if line[-1] != "7"]
    (tmp_path / "seven.txt").write_text("\n".join(lines) + "\n")
    data = [f"--data.root={data_root}", f"--data.test_list={tmp_path / 'seven.txt'}"]
    arguments = ["--config_path", SMOKE, "--checkpoint_path", target, *SETTINGS, *data]
    done = run_here("tsm/eval.py", *arguments, "--run.engine=mindspore")
    assert read_result(done)["videos"] == 7


def test_new_head_drops_the_classifier(run_here, tmp_path):
    target = tmp_path / "tsm.ckpt"
    arguments = [*ARGUMENTS, "--target", target, *SETTINGS, "--model.num_classes=5"]
    result = read_result(run_here("scripts/convert_checkpoint.py", *arguments, "--new_head"))
    assert result["missing"] == ["new_fc.weight", "new_fc.bias"]
    assert "new_fc.weight" not in read(target)


def test_another_set_of_weights_in_the_file_is_named(run_here, tmp_path):
    sets = (plain(key) + b"}" + plain("a") + tensor() + b"s" for key in ("state_dict", "model_ema"))
    source = write_zip(tmp_path / "a.pth", b"}" + b"".join(text + b"s" for text in sets))
    arguments = [*ARGUMENTS[:4], "--source", source, "--target", tmp_path / "new.ckpt"]
    lines = run_here("scripts/convert_checkpoint.py", *arguments).stderr
    assert "the weights are under state_dict; --key chooses others: model_ema" in lines


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
