"""Checkpoints of MindSpore's own networks convert and give the scores of their originals.

`<network>/tests/golden/mindspore.json` has the names, shapes and scores of the originals in
MindSpore 2.10: ResNets and TSM of mindspore-ai/models (commit eab643f5), ResNets of mindcv (commit
51b0636). Those not named `full` have an eighth of the channels. The weights are generated, with
variances so small that a wrong eps changes the scores. The files are written here as the training
scripts of these repositories write them, with the state of MindSpore's own optimizers.
"""

import json
from pathlib import Path
from typing import Any, Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn

from scripts.convert_checkpoint import main
from tests.golden_cases import generate_input, generate_weight, load_case
from tests.helpers import load_smoke_config
from utils.data.rows import UnreadableFiles
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import Network, find_build, find_network
from utils.runtime import Runtime, eager_mode
from utils.tests.parity import read_manifest, without_values
from utils.train.plan import Plan
from utils.train.run_dir import RunDirectory
from utils.train.train import build_training
from utils.weights.checkpoint import load, save, weights_of
from utils.weights.checkpoint_file import read_checkpoint
from utils.weights.convert import convert, read_source

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


def write_original(
    name: str, path: Path, dtype: Any = ms.float32, slices: tuple[str, ...] = (), **options: Any
) -> None:
    """Writes the weights of a case with the state of the optimizer that its repository uses.

    The suffix is that of a format of MindSpore's `save_checkpoint`, which takes the options. Of
    the weights in `slices` it writes one half, as each of two devices does.
    """
    arrays = generate_arrays(name)
    weights = [Parameter(Tensor(value, dtype), name=n) for n, value in arrays.items()]
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
    for pair in pairs:
        if pair["name"] in slices:
            pair["data"] = Tensor(arrays[pair["name"]][::2])
    options["append_dict"] = {**notes, **options.get("append_dict", {})}
    ms.save_checkpoint(pairs, str(path), format=path.suffix[1:], **options)


def load_recipe(name: str, *settings: str) -> tuple[Network, object]:
    """(network, config) with which a case is converted."""
    recipe, *changes = RECIPES[name]
    network = find_network(recipe.partition("_")[0])
    model = [f"model.first_width={CASES[name]['model']['first_width']}", "model.num_classes=7"]
    path = ROOT / network.name / "configs" / f"{recipe}.yaml"
    return network, load_config(network.config, path, [*changes, *model, *settings])


def convert_case(name: str, folder: Path, capsys) -> dict:
    """Writes the file of a case, converts it to `new.ckpt`, and returns what was reported."""
    write_original(name, folder / "original.ckpt")
    network, cfg = load_recipe(name)
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
LEAVES = {published: leaf for leaf, (published, _) in PUBLISHED.items()}
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
        padding = "symmetric" if cfg.model.padding != "symmetric" else "same"
        network, other = load_recipe(name, f"model.padding={padding}")
        net = network.build_model(**other.model_arguments())
        with pytest.raises(ValueError, match=f"new.ckpt: .*--model.padding={cfg.model.padding}"):
            load(net, tmp_path / "new.ckpt")


Change = Callable[[bytes], bytes]


CKPT = "original.ckpt"
SAFE = "original.safetensors"
CONTAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    # name: (file, options of `write_original`)
    "ckpt": (CKPT, {}),
    "ckpt, checksum": (CKPT, {"crc_check": True}),
    "ckpt, texts": (CKPT, {"append_dict": {"note": "of last night", "rate": 0.5}}),
    "ckpt, float16": (CKPT, {"dtype": ms.float16}),
    "ckpt, bfloat16": (CKPT, {"dtype": ms.bfloat16}),
    "safetensors": (SAFE, {}),
    "safetensors, checksum": (SAFE, {"crc_check": True}),
    "safetensors, bfloat16": (SAFE, {"dtype": ms.bfloat16}),
    "safetensors, chosen": (SAFE, {"choice_func": lambda name: "moments" not in name}),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_kind_of_file_has_the_same_weights(container, tmp_path):
    file, options = CONTAINERS[container]
    for name in ("models_resnet18", "models_tsm"):
        write_original(name, tmp_path / file, **options)
        source = read_source(tmp_path / file)
        assert source.padding == load_recipe(name)[1].model.padding
        assert source.changed_eps == CHANGED_EPS.get(name, 0)
        has_moments = name != "models_tsm" and "choice_func" not in options
        assert ("moments.conv1.weight" in source.dropped) == has_moments
        dtype = options.get("dtype", ms.float32)
        for weight, array in generate_arrays(name).items():
            value = Tensor(array, dtype).astype(ms.float32).asnumpy()
            if not source.changed_eps or "variance" not in weight:
                np.testing.assert_array_equal(source.arrays[weight], value, weight)


def change_a_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


REFUSED: dict[str, tuple[str, Change, dict[str, Any], tuple[str, ...]]] = {
    # name: (file, change of its content, options of `write_original`, words of the error)
    "ckpt, damage": (CKPT, change_a_bit, {"crc_check": True}, ("checksum",)),
    "damage": (SAFE, change_a_bit, {"crc_check": True}, ("checksum",)),
    "slices": (CKPT, bytes, {"slices": ("layer1.0.conv2.weight", "bn1.gamma")}, ("shape",)),
    "a stage": (
        "rank_1/stage.ckpt",
        bytes,
        {"choice_func": lambda name: "layer4" not in name},
        ("missing layer4.0.conv1.weight",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_converted_is_refused_for_its_reason(case, tmp_path):
    file, change, options, words = REFUSED[case]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    write_original("models_resnet50", path, **options)
    path.chmod(0o600)  # MindSpore makes its files read-only
    path.write_bytes(change(path.read_bytes()))
    network, cfg = load_recipe("models_resnet50")
    with pytest.raises(ValueError, match=f"^{path}: ") as error:
        main(network, cfg=cfg, source=path, target=tmp_path / "new.ckpt")
    assert all(word in str(error.value) for word in words)
    assert str(error.value).isprintable()
    assert not (tmp_path / "new.ckpt").exists()


def test_a_config_file_of_another_padding_is_refused(tmp_path):
    """Also for weights of PyTorch."""
    source = ROOT / "resnet50" / "tests" / "golden" / "resnet18_w2.pth"
    settings = ("model.first_width=2", "model.num_classes=10", "model.padding=same")
    network, cfg = load_recipe("models_resnet18", *settings)
    with pytest.raises(ValueError, match=f"^{source}: .*--model.padding=symmetric"):
        main(network, cfg=cfg, source=source, target=tmp_path / "new.ckpt")
    assert not (tmp_path / "new.ckpt").exists()


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
    files = {"source": tmp_path / "original.ckpt", "target": tmp_path / "new.ckpt"}
    main(network, cfg=cfg, **files, new_head=True)
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


@without_values
def test_tsm_starts_from_mindcvs_mobilenet():
    """Its arrays are those of torchvision's file, under the names of mindcv."""
    names = read_manifest(ROOT / "tsm/tests/golden/names/torchvision_mobilenet_v2.txt.gz")
    arrays = {name: generate_weight(name, shape) for name, shape in names.items() if shape}
    blocks = [f"3.layers.{k}" for k in (0, 1, 3, 4)]
    blocks += [f"{block}.layers.{k}" for block in range(4, 20) for k in (0, 1, 3, 4, 6, 7)]
    modules = dict.fromkeys(n.rpartition(".")[0] for n in arrays if n.startswith("features."))
    renamed = dict(zip(modules, ["0", "1", *blocks, "20", "21"], strict=True))
    network = find_network("tsm")
    net = network.build_model(num_classes=5, segments=8, arch="mobilenetv2")
    shapes = {name: tuple(p.shape) for name, p in weights_of(net).items()}
    mindcv = {}
    for name, array in arrays.items():
        module, _, leaf = name.rpartition(".")
        leaf = LEAVES[leaf] if module in renamed and array.ndim == 1 else leaf
        mindcv[f"features.{renamed[module]}.{leaf}" if module in renamed else name] = array
    assert "features.20.weight" in mindcv
    assert "features.3.layers.1.gamma" in mindcv
    converted = convert(mindcv, shapes, network=network, new_head=True).arrays
    assert len(converted) == len(shapes) - 2
    expected = convert(arrays, shapes, network=network, new_head=True).arrays
    np.testing.assert_equal(converted, expected)


def test_averages_and_weights_of_a_training_say_how_the_network_pads(tmp_path):
    """At O2 the network is inside another Cell."""
    settings = ("model.padding=same", "train.ema_decay=0.9", f"run.out={tmp_path / 'run'}")
    cfg = load_smoke_config("resnet50", *settings, "run.amp=O2")
    sampler = TrainSampler(4, batch=2, rank=0, size=1, seed=0)
    plan = Plan(find_network("resnet50"), cfg, Runtime(), sampler)
    step = build_training(plan, find_build("resnet50"))[0]
    save(tmp_path / "a.ckpt", weights_of(step.net))
    save(tmp_path / "a_ema.ckpt", step.ema_parameters())
    folder = RunDirectory(cfg, Runtime())
    folder.save(step, sampler, UnreadableFiles([]))
    folder.lock.close()
    for name in ("a.ckpt", "a_ema.ckpt", "run/resume.ckpt"):
        assert read_checkpoint(tmp_path / name).texts["model.padding"] == "same"


@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_a_file_of_plain_mindspore_takes_the_padding_of_the_settings_with_a_warning(
    padding, tmp_path, log_messages
):
    cfg = load_smoke_config("resnet50", f"model.padding={padding}")
    net = find_network("resnet50").build_model(**cfg.model_arguments())
    ms.save_checkpoint(net, str(tmp_path / "a.ckpt"))
    assert read_source(tmp_path / "a.ckpt").padding == ""
    load(net, tmp_path / "a.ckpt")
    assert f"model.padding={padding}" in log_messages[-1]


def test_an_unknown_padding_in_a_file_is_refused(tmp_path):
    cfg = load_smoke_config("resnet50")
    net = find_network("resnet50").build_model(**cfg.model_arguments())
    entries = [{"name": n, "data": p} for n, p in weights_of(net).items()]
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint(entries, str(path), append_dict={"model.padding": "\x1b[31mzigzag"})
    with pytest.raises(ValueError, match=r"a.ckpt: model.padding \\x1b\[31mzigzag is not one of"):
        load(net, path)
