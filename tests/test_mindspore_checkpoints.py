"""Checkpoints of MindSpore's own networks convert and give the scores of their originals.

`<network>/tests/golden/mindspore.json` has the names, shapes and scores of the originals in
MindSpore 2.10: ResNets and TSM of mindspore-ai/models (commit eab643f5), ResNets of mindcv (commit
51b0636). Those not named `full` have an eighth of the channels. The weights are generated, with
variances so small that a wrong eps changes the scores. The files are written here as the training
scripts of these repositories write them, with the state of MindSpore's own optimizers.
"""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn

from scripts.convert_checkpoint import main
from tests.helpers import load_smoke_config
from utils.commands.train import build_training
from utils.data.sampler import TrainSampler
from utils.data.unreadable import UnreadableFiles
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import Job, Network, find_build, find_network, list_networks
from utils.runtime import Runtime, eager_mode
from utils.testing.golden import generate_input, generate_weight, get_shapes, load_case
from utils.train.run_dir import RunDirectory
from utils.weights.checkpoint import load, save, weights_of
from utils.weights.checkpoint_file import parse, read

FILES = {name: ROOT / name / "tests" / "golden" / "mindspore.json" for name in ("resnet50", "tsm")}
CASES = {case["name"]: case for path in FILES.values() for case in load_case(path)}
RECIPES = {
    "models_resnet18": ["resnet50_r18_imagenet_zoo"],
    "models_resnet50": ["resnet50_r50_imagenet_zoo"],
    "models_resnet50_full": ["resnet50_r50_imagenet_zoo"],
    "models_se_resnet50": ["resnet50_se50_imagenet_zoo"],
    "mindcv_resnet18": ["resnet50_r18_imagenet_torchvision", "model.padding=same_pool"],
    "mindcv_resnet50": ["resnet50_r50_imagenet_torchvision", "model.padding=same_pool"],
    "models_tsm": ["tsm_r50_sthv2_8f", "data.segments=4"],
    "models_tsm_full": ["tsm_r50_sthv2_8f", "data.segments=4"],
}
SLOW = ("models_resnet50_full", "models_se_resnet50", "mindcv_resnet50", "models_tsm_full")
PUBLISHED = {"gamma": ("weight", 0.1), "beta": ("bias", 1.0)}
PUBLISHED |= {"moving_mean": ("running_mean", 0.5), "moving_variance": ("running_var", 0.01)}


def generate_array(name: str, shape: tuple) -> np.ndarray:
    """A weight of a case; batch norms have variances about 0.01."""
    module, _, leaf = name.rpartition(".")
    published, factor = PUBLISHED.get(leaf, (leaf, 1.0))
    return np.float32(factor) * generate_weight(f"{module}.{published}", shape)


def generate_arrays(name: str) -> dict[str, np.ndarray]:
    """The weights of a case under the names of the original."""
    return {n: generate_array(n, tuple(shape)) for n, shape in CASES[name]["weights"]}


def write_original(name: str, path: Path, dtype: type = np.float32) -> None:
    """Writes the weights of a case with the state of the optimizer that its repository uses."""
    arrays = {n: value.astype(dtype) for n, value in generate_arrays(name).items()}
    weights = [Parameter(Tensor(value), name=n) for n, value in arrays.items()]
    trained = [p for p in weights if ".moving_" not in p.name and not p.name.startswith("moving_")]
    rates = Tensor(np.full(3, 0.1, np.float32))
    notes = {}
    if name.startswith("models_tsm"):
        groups = [{"params": trained[:5], "lr": rates}, {"params": trained[5:], "lr": 5 * rates}]
        state = nn.SGD(groups, learning_rate=0.1, momentum=0.9, weight_decay=5e-4, loss_scale=1024)
    else:
        state = nn.Momentum(trained, rates, 0.9, weight_decay=1e-4, loss_scale=1024)
        notes = {"epoch_num": 90, "step_num": 625}
    entries = [*weights, *(p for p in state.get_parameters() if p.name not in arrays)]
    if name.startswith("mindcv"):
        entries += ParameterTuple(weights).clone("ema", init="same")
        entries.append(Parameter(Tensor(1024.0), name="scale_sense"))
    pairs = [{"name": p.name, "data": p} for p in entries]
    ms.save_checkpoint(pairs, str(path), append_dict=notes)


def load_recipe(name: str, *settings: str) -> tuple[Network, object]:
    """(network, config) with which a case is converted."""
    recipe, *changes = RECIPES[name]
    network = find_network(recipe.partition("_")[0])
    model = [f"model.first_width={CASES[name]['model']['first_width']}", "model.num_classes=7"]
    path = ROOT / network.name / "configs" / f"{recipe}.yaml"
    return network, load_config(network.config, path, [*changes, *model, *settings])


def convert_case(name: str, folder: Path, capsys, *settings: str, dtype: type = np.float32) -> dict:
    """Writes the file of a case, converts it to `new.ckpt`, and returns what was reported."""
    write_original(name, folder / "original.ckpt", dtype)
    network, cfg = load_recipe(name, *settings)
    main(network, cfg=cfg, source=folder / "original.ckpt", target=folder / "new.ckpt")
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def compare_scores(net: nn.Cell, name: str) -> list[float]:
    """The largest difference from the scores of the original, over their spread, at each size."""
    errors = []
    for recorded in CASES[name]["scores"]:
        x = generate_input(3, recorded["shape"])
        expected = np.array(recorded["values"])
        n, channels, height, width = recorded["shape"]
        clip = x if channels == 3 else x.reshape(n, channels // 3, 3, height, width)
        with eager_mode():
            scores = net(Tensor(clip)).asnumpy()
        errors.append(np.abs(scores - expected).max() / np.ptp(expected))
    return errors


CHANGED_EPS = {"models_resnet18": 16, "models_resnet50": 53, "models_se_resnet50": 55}
STATES = {
    "models": {"moments", "learning_rate", "global_step", "momentum", "epoch_num", "step_num"},
    "mindcv": {"moments", "learning_rate", "global_step", "momentum", "epoch_num", "step_num"}
    | {"ema", "scale_sense"},
    "tsm": {"accum", "stat", "learning_rate_group_0", "learning_rate_group_1", "global_step"}
    | {"momentum"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
def test_a_checkpoint_gives_the_scores_of_its_original_at_even_and_odd_sizes(
    name, tmp_path, capsys
):
    report = convert_case(name, tmp_path, capsys)
    assert report["matched"] == len(CASES[name]["weights"])
    assert report["missing"] == []
    kind = "tsm" if "tsm" in name else name.partition("_")[0]
    assert set(report["dropped"]) == STATES[kind]
    assert report["changed_eps"] == CHANGED_EPS.get(name.removesuffix("_full"), 0)
    network, cfg = load_recipe(name)
    net = network.build_model(**cfg.model_arguments()).set_train(False)
    load(net, tmp_path / "new.ckpt")
    assert max(compare_scores(net, name)) < 1e-5
    if cfg.model.arch != "se_resnet50":
        others = {"symmetric", "same", "same_pool"} - {cfg.model.padding}
        other = load_recipe(name, f"model.padding={sorted(others)[0]}")[1]
        net = network.build_model(**other.model_arguments())
        words = f"new.ckpt: .*give --model.padding={cfg.model.padding} instead of"
        with pytest.raises(ValueError, match=words):
            load(net, tmp_path / "new.ckpt")


@pytest.mark.parametrize("name", ["models_resnet50", "mindcv_resnet18"])
def test_a_network_of_another_padding_gives_other_scores(name, tmp_path, capsys):
    """So the scores above depend on the padding."""
    convert_case(name, tmp_path, capsys)
    network, cfg = load_recipe(name, "model.padding=symmetric")
    net = network.build_model(**cfg.model_arguments()).set_train(False)
    for parameter_name, value in read(tmp_path / "new.ckpt").items():
        weights_of(net)[parameter_name].set_data(Tensor(value))
    assert compare_scores(net, name)[0] > 0.01


@pytest.mark.parametrize(
    ("name", "padding", "right"),
    [
        ("models_resnet18", "same", "symmetric"),
        ("models_resnet50", "symmetric", "same"),
        ("mindcv_resnet18", "symmetric", "same_pool"),
        ("mindcv_resnet18", "same", "same_pool"),
        ("models_tsm", "same", "symmetric"),
    ],
)
def test_a_config_file_of_another_padding_is_refused(name, padding, right, tmp_path, capsys):
    words = f"original.ckpt: .*give --model.padding={right} instead of {padding}"
    with pytest.raises(ValueError, match=words):
        convert_case(name, tmp_path, capsys, f"model.padding={padding}")
    assert not (tmp_path / "new.ckpt").exists()


def test_weights_of_pytorch_are_refused_with_another_padding(tmp_path):
    source = ROOT / "resnet50" / "tests" / "golden" / "resnet18_w2.pth"
    network = find_network("resnet50")
    settings = ["model.first_width=2", "model.arch=resnet18", "model.num_classes=10"]
    path = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_zoo.yaml"
    with pytest.raises(ValueError, match="give --model.padding=symmetric instead of same"):
        main(
            network,
            cfg=load_config(network.config, path, settings),
            source=source,
            target=tmp_path / "new.ckpt",
        )


def test_float16_weights_become_float32(tmp_path, capsys):
    convert_case("mindcv_resnet18", folder=tmp_path, capsys=capsys, dtype=np.float16)
    arrays = read(tmp_path / "new.ckpt")
    source = generate_arrays("mindcv_resnet18")
    for ours, theirs in {
        "conv1.weight": "conv1.weight",
        "layer2.0.downsample.1.moving_variance": "layer2.0.down_sample.1.moving_variance",
        "fc.bias": "classifier.bias",
    }.items():
        assert arrays[ours].dtype == np.float32
        np.testing.assert_array_equal(arrays[ours], source[theirs].astype(np.float16))


@pytest.mark.parametrize("name", ["models_resnet18", "models_resnet50", "mindcv_resnet18"])
def test_tsm_starts_from_a_checkpoint_and_its_trunk_computes_the_originals_features(
    name, tmp_path, capsys
):
    write_original(name, tmp_path / "original.ckpt")
    padding = load_recipe(name)[1].model.padding
    settings = [f"model.arch={CASES[name]['model']['arch']}", "model.first_width=8"]
    settings += [f"model.padding={padding}", "model.shift_div=0", "model.dropout=0.5"]
    cfg = load_smoke_config("tsm", *settings)
    network = find_network("tsm")
    main(
        network,
        cfg=cfg,
        source=tmp_path / "original.ckpt",
        target=tmp_path / "new.ckpt",
        new_head=True,
    )
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["missing"] == ["new_fc.weight", "new_fc.bias"]
    net = network.build_model(**cfg.model_arguments()).set_train(False)
    load(net, path=tmp_path / "new.ckpt", new_head=True, head=network.classifier)
    source = generate_arrays(name)
    head = "end_point" if name.startswith("models") else "classifier"
    classify = nn.Dense(*source[f"{head}.weight"].shape[::-1])
    classify.weight.set_data(Tensor(source[f"{head}.weight"]))
    classify.bias.set_data(Tensor(source[f"{head}.bias"]))
    assert max(compare_scores(nn.SequentialCell(net.base_model, classify), name)) < 1e-5


@pytest.mark.parametrize("name", list_networks())
def test_an_old_checkpoint_without_a_checksum_gets_one(name, tmp_path, capsys):
    network = find_network(name)
    cfg = load_smoke_config(name)
    net = network.build_model(**cfg.model_arguments())
    ms.save_checkpoint(
        [{"name": n, "data": p} for n, p in weights_of(net).items()], str(tmp_path / "old.ckpt")
    )
    assert not parse(tmp_path / "old.ckpt").has_checksum
    main(network, cfg=cfg, source=tmp_path / "old.ckpt", target=tmp_path / "new.ckpt")
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["matched"] == len(get_shapes(net))
    assert not report["dropped"]
    assert parse(tmp_path / "new.ckpt").has_checksum
    np.testing.assert_equal(read(tmp_path / "new.ckpt"), read(tmp_path / "old.ckpt"))


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_averages_and_weights_of_a_training_say_how_the_network_pads(level, tmp_path):
    settings = ("model.padding=same", "train.ema_decay=0.9", f"run.out={tmp_path}")
    cfg = load_smoke_config("resnet50", *settings, f"run.amp={level}")
    sampler = TrainSampler(4, batch=2, rank=0, size=1, seed=0)
    job = Job(find_network("resnet50"), cfg, Runtime())
    step = build_training(job, sampler, find_build("resnet50")).step
    save(tmp_path / "a.ckpt", weights_of(step.net))
    save(tmp_path / "a_ema.ckpt", step.ema_parameters())
    folder = RunDirectory(cfg, Runtime())
    folder.save(step, sampler, UnreadableFiles([]))
    folder.lock.close()
    for name in ("a.ckpt", "a_ema.ckpt", "resume.ckpt"):
        assert parse(tmp_path / name).texts["model.padding"].decode("utf-32-le") == "same"


def test_an_unknown_padding_in_a_file_is_refused(tmp_path):
    cfg = load_smoke_config("resnet50")
    net = find_network("resnet50").build_model(**cfg.model_arguments())
    entries = [{"name": n, "data": p} for n, p in weights_of(net).items()]
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint(entries, str(path), append_dict={"model.padding": "\x1b[31mzigzag"})
    with pytest.raises(ValueError, match=r"a.ckpt: model.padding \\x1b\[31mzigzag is not one of"):
        load(net, path)
