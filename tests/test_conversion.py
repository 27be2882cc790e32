"""scripts/convert_checkpoint.py converts a file of PyTorch; tsm/eval.py evaluates the result."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import run_json, run_script
from utils.config import ROOT
from utils.testing.golden import generate_weight
from utils.weights.checkpoint import read

SOURCE = ROOT / "tsm" / "tests" / "golden" / "tsm_r18_w2.pth.tar"
SMOKE = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
ARGUMENTS = ["--network", "tsm", "--config_path", SMOKE, "--source", SOURCE]
SETTINGS = ["--model.first_width=2", "--model.num_classes=7", "--model.dropout=0.5"]
SETTINGS += ["--data.swap_labels=[]"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("converted") / "tsm.ckpt"
    result = run_json("scripts/convert_checkpoint.py", *ARGUMENTS, "--target", target, *SETTINGS)
    assert result["matched"] == 102
    assert result["missing"] == []
    assert all(name.endswith("num_batches_tracked") for name in result["dropped"])
    return target


def test_a_converted_array_equals_its_source(converted):
    result = read(converted)
    expected = {
        "base_model.conv1.weight": ("base_model.conv1.weight", (2, 3, 7, 7)),
        "base_model.layer1.0.conv1.net.weight": (
            "base_model.layer1.0.conv1.net.weight",
            (2, 2, 3, 3),
        ),
        "base_model.layer4.1.bn2.moving_variance": ("base_model.layer4.1.bn2.running_var", (16,)),
        "new_fc.bias": ("new_fc.bias", (7,)),
    }
    for target, (source, shape) in expected.items():
        np.testing.assert_array_equal(result[target], generate_weight(source, shape), target)


def test_the_converted_checkpoint_can_be_evaluated(converted, data_root):
    lines = [line for line in (data_root / "test.txt").read_text().splitlines() if line[-1] != "7"]
    (data_root / "seven.txt").write_text("\n".join(lines) + "\n")
    data = [f"--data.root={data_root}", "--data.test_list=seven.txt"]
    arguments = ["--config_path", SMOKE, "--checkpoint_path", converted, *SETTINGS, *data]
    assert run_json("tsm/eval.py", *arguments)["videos"] == 7


def test_new_head_drops_the_classifier(tmp_path):
    target = tmp_path / "tsm.ckpt"
    arguments = [*ARGUMENTS, "--target", target, *SETTINGS, "--model.num_classes=5"]
    completed = run_script("scripts/convert_checkpoint.py", *arguments)
    assert completed.returncode == 2
    assert "new_fc.weight is [7, 16] instead of [5, 16]" in completed.stderr
    assert "--new_head" in completed.stderr
    assert not target.exists()
    result = run_json("scripts/convert_checkpoint.py", *arguments, "--new_head")
    assert result["missing"] == ["new_fc.weight", "new_fc.bias"]
    assert "new_fc.weight" not in read(target)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.pth", None, "no such file"),
        ("text.pth", b"no weights in here", "text.pth"),
        ("cut.pth.tar", SOURCE.read_bytes()[:20000], "cut.pth.tar"),
        ("packed.pth", gzip.compress(b"x", mtime=0), "packed.pth"),
    ],
    ids=["missing", "text", "cut", "packed"],
)
def test_an_unreadable_file_is_a_user_error(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    files = ["--source", tmp_path / name, "--target", tmp_path / "t.ckpt"]
    arguments = [*ARGUMENTS[:4], *files, *SETTINGS]
    completed = run_script("scripts/convert_checkpoint.py", *arguments)
    assert completed.returncode == 2
    assert words in completed.stderr.strip().splitlines()[-1]
    assert "Traceback" not in completed.stderr
    assert not (tmp_path / "t.ckpt").exists()
