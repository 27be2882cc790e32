"""Conversion: formats by content, prefixes and odd entries of names, NaN and infinity."""

import functools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.helpers import find_smoke_yaml
from utils.load_config import load_config
from utils.networks import find_network
from utils.weights import checkpoint, checkpoint_file
from utils.weights.convert import Converted, convert, read_source

FILES = Path(__file__).parent / "torch_files"
NETWORK = find_network("tsm")


@functools.cache
def list_shapes() -> dict[str, tuple[int, ...]]:
    cfg = load_config(NETWORK.config, find_smoke_yaml("tsm"))
    weights = checkpoint.weights_of(NETWORK.build_model(**cfg.model_arguments()))
    return {name: tuple(p.shape) for name, p in weights.items()}


def make_source(prefix: str = "") -> dict[str, np.ndarray]:
    return {
        prefix + name: np.full(shape, k, np.float32)
        for k, (name, shape) in enumerate(list_shapes().items())
    }


def convert_names(source: dict[str, np.ndarray], **options: bool) -> Converted:
    return convert(source, list_shapes(), NETWORK, **options)


PREFIXES = ("module.", "model.", "backbone.", "net.", "_orig_mod.", "module.model.", "module.pre.")


@pytest.mark.parametrize("prefix", [*PREFIXES, "a.b.c.d.", "encoder_q."])
def test_any_prefix_of_all_names_is_removed(prefix):
    converted = convert_names(make_source(prefix))
    np.testing.assert_equal(converted.arrays, make_source())
    assert not converted.dropped


def test_a_classifier_may_be_outside_of_the_prefix():
    source = {
        name if name.startswith("new_fc.") else f"backbone.{name}": array
        for name, array in make_source().items()
    }
    np.testing.assert_equal(convert_names(source).arrays, make_source())


def test_weights_of_a_loss_beside_the_network_are_dropped():
    source = {**make_source("model."), "criterion.weight": np.ones(8), "val_acc.tp": np.ones(8)}
    assert convert_names(source).dropped == ["criterion.weight", "val_acc.tp"]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"neck.weight": np.ones(3)},
         r"unknown neck.weight \(nearest: .*; --key model takes only the weights"),
        ({"model.base_model.conv7.weight": np.ones(3)},
         r"unknown base_model.conv7.weight \(nearest: base_model.conv1.weight\)"),
        ({"base_model.conv1.weight": np.ones((16, 3, 7, 7))},
         "twice base_model.conv1.weight; --key model takes only the weights"),
        (make_source, "the file has several networks, model., ema.: --key chooses one"),
    ],
)  # fmt: skip
def test_other_names_are_refused_with_the_nearest_of_ours(beside, message):
    beside = beside("ema.") if callable(beside) else beside
    with pytest.raises(ValueError, match=message):
        convert_names({**make_source("model."), **beside})


def test_names_of_no_known_format_are_shown():
    with pytest.raises(ValueError, match="nor torchvision's; the first are a.b, encoder.weight"):
        convert_names({"a.b": np.ones(1), "encoder.weight": np.ones(1)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused_with_the_name(value):
    source = {name: array.astype(np.float64) for name, array in make_source().items()}
    source["base_model.bn1.running_var"] = source.pop("base_model.bn1.moving_variance")
    source["base_model.bn1.running_var"][3] = value
    with pytest.raises(ValueError, match=r"NaN or infinite, base_model.bn1.moving_variance: its"):
        convert_names(source)


def write_npz(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), **{"a.weight": np.ones(2, np.float32)})
    path.with_suffix(".npz").rename(path)


def write_mindspore(path: Path) -> None:
    checkpoint.save(path.with_suffix(".ckpt"), {"a.weight": Tensor(np.ones(2, np.float32))})
    path.with_suffix(".ckpt").rename(path)


@pytest.mark.parametrize("name", ["a.ckpt", "a.pth", "a.pth.tar", "a.bin", "a", "a.safetensors"])
@pytest.mark.parametrize(
    "content",
    ["checkpoint.pt", "checkpoint_legacy.pt", "dtypes.safetensors", write_npz, write_mindspore],
)
def test_the_content_of_a_file_tells_its_format(content, name, tmp_path):
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        shutil.copyfile(FILES / content, path)
    assert {"a.weight", "module.fc.weight", "float32"} & set(read_source(path).arrays)
    if content == write_mindspore:
        assert list(checkpoint_file.read(path)) == ["a.weight"]
        return
    with pytest.raises(ValueError, match=f"{path}: convert it first: python scripts/convert_check"):
        checkpoint_file.read(path)


def test_a_key_chooses_weights_also_by_the_start_of_their_names(tmp_path):
    arrays = {"ema.a.weight": np.full(2, 3.0, np.float32), "a.bias": np.ones(2, np.float32)}
    np.savez(tmp_path / "a.npz", **arrays)
    checkpoint.save(tmp_path / "a.ckpt", {name: Tensor(value) for name, value in arrays.items()})
    for path in (tmp_path / "a.npz", tmp_path / "a.ckpt"):
        assert read_source(path, "ema").arrays["a.weight"].tolist() == [3, 3]
        with pytest.raises(ValueError, match=f"{path}: .*emma"):
            read_source(path, "emma")


@pytest.mark.parametrize(
    ("text", "names"),
    [(r"^net\.(\d)=layer\1", ["layer1.weight", "net.a.bias"]), (r"(?=net)=x.", ["x.net.1.weight"])],
)
def test_what_matches_in_names_is_replaced(text, names, tmp_path):
    """The last `=` separates, and what does not match stays."""
    np.savez(tmp_path / "a.npz", **{"net.1.weight": np.ones(1), "net.a.bias": np.ones(1)})
    assert {*names} <= {*read_source(tmp_path / "a.npz", renames=[text]).arrays}


@pytest.mark.parametrize("text", ["a", "(=b", r"net=\2", "head=b", "net.*=b"])
def test_a_bad_renaming_is_refused(text, tmp_path):
    """Neither `=` nor an expression, an unknown group, no match, and two names that become one."""
    np.savez(tmp_path / "a.npz", **{"net.1.weight": np.ones(1), "net.a.bias": np.ones(1)})
    with pytest.raises(ValueError, match=f"--rename {re.escape(text)}: "):
        read_source(tmp_path / "a.npz", renames=[text])


def test_an_odd_name_makes_no_copy_of_a_weight(tmp_path):
    arrays = {"net.a.weight": np.ones(2), "net.b.weight": np.ones(2), "a.weight": np.zeros(2)}
    np.savez(tmp_path / "a.npz", **arrays)
    assert read_source(tmp_path / "a.npz").arrays.keys() == arrays.keys()
