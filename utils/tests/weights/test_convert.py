"""Conversion: formats by content, prefixes and odd entries of names, NaN and infinity."""

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor
from safetensors.numpy import save_file

from tests.helpers import find_smoke_yaml, load_smoke_config
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
        ({"neck.weight": np.ones(3)}, "unknown neck.weight.*--key"),
        ({"model.base_model.conv7.weight": np.ones(3)},
         r"unknown base_model.conv7.weight \(nearest: base_model.conv1.weight\)"),
        ({"base_model.conv1.weight": np.ones((16, 3, 7, 7))},
         "base_model.conv1.weight twice.*--key"),
        (make_source, "the file has several networks, model., ema.: --key chooses one"),
    ],
)  # fmt: skip
def test_other_names_are_refused_with_the_nearest_of_ours(beside, message):
    beside = beside("ema.") if callable(beside) else beside
    with pytest.raises(ValueError, match=message):
        convert_names({**make_source("model."), **beside})


@pytest.mark.parametrize("beside", [{"base_model.conv1.gain": np.float32(2)}, {"gain": 2.0}])
def test_a_number_without_axes_is_a_weight_unless_it_counts(beside, tmp_path):
    counts = {"base_model.bn1.num_batches_tracked": 7, "n_averaged": 3, "best_acc": 0.5}
    np.savez(tmp_path / "a.npz", **make_source(), **counts)
    assert sorted(read_source(tmp_path / "a.npz").dropped) == sorted(counts)
    np.savez(tmp_path / "a.npz", **make_source(), **beside)
    with pytest.raises(ValueError, match=rf"unknown {[*beside][0]}"):
        convert_names(read_source(tmp_path / "a.npz").arrays)
    arrays = {**make_source(), **beside}
    checkpoint.save(tmp_path / "a.ckpt", {name: Tensor(a) for name, a in arrays.items()})
    net = NETWORK.build_model(**load_smoke_config("tsm").model_arguments())
    with pytest.raises(ValueError, match=rf"unknown {[*beside][0]}"):
        checkpoint.load(net, tmp_path / "a.ckpt")


def test_integer_weights_are_refused_with_their_name():
    source = make_source()
    source["base_model.fc.weight"] = source["base_model.fc.weight"].astype(np.int8)
    with pytest.raises(ValueError, match="base_model.fc.weight is int8"):
        convert_names(source)


def write_shards(folder: Path) -> Path:
    """Two parts of a network, and their index."""
    parts = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    files = {name: parts[k % 2] for k, name in enumerate(make_source())}
    for part in parts:
        own = {name: a for name, a in make_source().items() if files[name] == part}
        save_file(own, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


def test_a_sharded_checkpoint_is_read_by_its_index(tmp_path):
    index = write_shards(tmp_path)
    np.testing.assert_equal(read_source(index).arrays, make_source())


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.update(more="model-00001-of-00002.safetensors"),
        lambda files: files.update(more="../model-00001-of-00002.safetensors"),
        dict.clear,
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(change, tmp_path):
    index = write_shards(tmp_path)
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_source(index)


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
    with pytest.raises(ValueError, match=f"{path}: convert it first: python .*convert_checkpoint"):
        checkpoint_file.read(path)


def test_a_key_chooses_weights_also_by_the_start_of_their_names(tmp_path):
    arrays = {"ema.a.weight": np.full(2, 3.0, np.float32), "a.bias": np.ones(2, np.float32)}
    np.savez(tmp_path / "a.npz", **arrays)
    checkpoint.save(tmp_path / "a.ckpt", {name: Tensor(value) for name, value in arrays.items()})
    for path in (tmp_path / "a.npz", tmp_path / "a.ckpt"):
        assert read_source(path, "ema").arrays["a.weight"].tolist() == [3, 3]
        with pytest.raises(ValueError, match=f"{path}: .*emma"):
            read_source(path, "emma")


def test_what_matches_in_names_is_replaced_in_the_order_of_the_renamings(tmp_path):
    """The last `=` separates, and what does not match stays."""
    np.savez(tmp_path / "a.npz", **{"net.1.weight": np.ones(1), "net.a.bias": np.ones(1)})
    renames = [r"^net\.(\d)=layer\1", r"(?=net)=x.", "layer1=block1"]
    arrays = read_source(tmp_path / "a.npz", renames=renames).arrays
    assert {*arrays} == {"block1.weight", "x.net.a.bias"}


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
