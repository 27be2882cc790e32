"""Files of export.py without a config file: their description, weights, and contradictions."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.helpers import assert_one_line_error, load_smoke_config, read_result
from utils.files import ROOT
from utils.inference import model as api
from utils.networks import find_network, load_own_config
from utils.weights import checkpoint, checkpoint_file
from utils.weights.checkpoint_file import read_checkpoint
from utils.weights.convert import read_source
from utils.weights.description import describe, parse, read_description

TSM = find_network("tsm")
NAMES = [f"class {k}" for k in range(8)]


@pytest.fixture(scope="module")
def described(tmp_path_factory) -> Path:
    """The checkpoint of a tiny TSM with its settings and class names."""
    path = tmp_path_factory.mktemp("described") / "best.ckpt"
    toy = ["run.device=CPU", "model.first_width=8", "data.segments=2", "data.crop=32"]
    cfg = load_smoke_config("tsm", *toy, "data.resize=40", "run.out=out/tiny")
    description = describe("tsm", cfg, classes={"": NAMES}, metrics={"top1": 0.5}, source="x.pth")
    weights = checkpoint.weights_of(TSM.build_model(**cfg.model_arguments()))
    checkpoint.save(path, weights, description=description)
    return path


def export(run_here, source: Path, folder: Path, kind: str, *options: str):
    words = ["--checkpoint_path", source, "--format", kind, "--target", folder / "net", *options]
    return run_here("tsm/export.py", *words)


@pytest.mark.parametrize("kind", ["mindir", "onnx"])
def test_an_exported_file_needs_no_config_file(kind, described, run_here, tmp_path):
    """Its settings are those of the checkpoint, with the batch of the file."""
    file = tmp_path / f"net.{kind}"
    read_result(export(run_here, described, tmp_path, kind, "--batch=3", "--eval.crops=1"))
    own = read_description(read_checkpoint(described))
    description = read_description(file)
    for name in ("network", "name", "classes", "metrics", "source", "version"):
        assert getattr(description, name) == getattr(own, name)
    assert str(ROOT).encode() not in file.read_bytes()  # it is made to be shared
    network, cfg = load_own_config(file)
    assert cfg.data.root == load_own_config(described)[1].data.root
    assert (network, cfg.eval.batch, cfg.eval.crops) == (TSM, 3, 1)
    frames = np.zeros((8, 40, 48, 3), np.uint8)
    assert {name for name, _ in api.load(file).predict(frames, top=8)} == {*NAMES}
    file.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=f"net.{kind}"):
        load_own_config(file)


def test_safetensors_have_the_weights_and_the_description(described, run_here, tmp_path):
    result = read_result(export(run_here, described, tmp_path, "safetensors"))
    file = tmp_path / "net.safetensors"
    weights = checkpoint_file.read(described)
    parameters = ms.load_checkpoint(str(file), format="safetensors")
    own = {name: parameter.asnumpy() for name, parameter in parameters.items()}
    for arrays in (load_file(file), own):
        assert arrays.keys() == weights.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, weights[name], strict=True)
    with safe_open(file, "numpy") as opened:
        texts = opened.metadata()
    assert texts["format"] == "ms"
    assert parse(texts["zoo"], file).classes == {"": NAMES}
    assert read_source(file).padding == "symmetric"
    assert (result["bytes"], result["arrays"]) == (file.stat().st_size, len(weights))
    done = export(run_here, described, tmp_path, "safetensors", "--precision=fp16")
    assert_one_line_error(done, "--precision")
