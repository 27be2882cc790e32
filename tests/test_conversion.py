"""scripts/convert_checkpoint.py converts a file of PyTorch; tsm/eval.py evaluates the result."""

import numpy as np

from tests.helpers import find_smoke_yaml, read_result
from utils.config import ROOT
from utils.testing.golden import generate_weight
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
