"""Dry runs: `scripts/dry_run` compiles steps for Ascend and GPU on this machine.

A dry run shows that a graph compiles for the chip, and which kernels it launches in which order.
One takes 10 to 90 seconds; those of ResNet, TSM and X3D on the main chip are in every test run.
"""

from pathlib import Path
from textwrap import dedent

import pytest

from scripts.dry_run.simulator import CHIPS, DryRun, Machine, dry_run, simulate
from tests.helpers import assert_one_line_error, read_result
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network_of_yaml, list_networks

COMMAND = "scripts/analysis/dry_run.py"
RANKS = 8
FEW_CORES = 4  # of the host: with so few a step needs a setting of utils/runtime.py
# Launches of a training step of a smoke recipe at O2, rank 0 of 8, on ascend910b: may only go down.
BUDGET = {"resnet50": 327, "tsm": 484, "x3d": 695, "mvit_multi": 1084}
# Three AllReduce segments of a smoke yaml.
SPLIT = {
    "resnet50": "[layer2, layer3]",
    "tsm": "[layer2, layer3]",
    "x3d": "[s3, s4]",
    "mvit_multi": "[blocks.1, blocks.2]",
}
SEGMENTS = 3
GATHERS = {"mvit_multi": 2}  # AllReduces of a loss that gathers the batch, and of its gradient
KINDS = {"train": (), "accumulate": ("train.accumulation_steps=2",), "eval": ()}
# Networks besides the smoke yamls: name -> (network, yaml, overrides).
OTHERS = {
    "non_local": ("tsm", "tsm_r50_k400_8f_nl", ()),
    "mobilenetv2": ("tsm", "tsm_mobilenetv2_k400_8f", ()),
    "dense": ("x3d", "x3d_smoke", ("model.depthwise_impl=dense",)),
    "plain": ("mvit_multi", "mvit_multi_plain_s_k400_16x4", ()),
}
# Launches of a training step of a recipe at its full size, rank 0 of 8: may only go down.
RECIPE_BUDGET = {
    "resnet50_r50_imagenet_zoo": 750,
    "tsm_r50_k400_8f": 1100,
    "x3d_s_k400_13x6_ascend_8p": 2200,
    "mvit_multi_plain_s_k400_16x4": 5500,
}
# Those with a budget, one with kernels of its own, and the network's largest if it needs most
# memory.
RECIPES = (
    *RECIPE_BUDGET,
    "resnet50_se50_imagenet_zoo",
    "tsm_r50_ucf101_8f",
    "x3d_l_k400_16x5",
    "mvit_multi_b_k400_mit_ssv2_anet_32x3",
)


def find_yaml(network: str, stem: str = "") -> Path:
    return ROOT / network / "configs" / f"{stem or f'{network}_smoke'}.yaml"


def build_config_option(network: str) -> str:
    return f"--config_path={find_yaml(network)}"


def run_yaml(path: Path, chip: str, *overrides: str, ranks: int = 1, mode: str = "train") -> DryRun:
    network = find_network_of_yaml(path)
    cfg = load_config(network.config, path, overrides)
    return dry_run(network.name, cfg=cfg, machine=Machine(chip, ranks, FEW_CORES), mode=mode)


def run_smoke(network: str, chip: str, kind: str, *overrides: str) -> DryRun:
    """A dry run of a smoke yaml at O2: rank 0 of 8 of a training on Ascend."""
    overrides = ("run.amp=O2", *KINDS[kind], *overrides)
    if CHIPS[chip] == "GPU" or kind == "eval":
        return run_yaml(find_yaml(network), chip, *overrides, mode=kind)
    split = f"run.all_reduce={SPLIT.get(network, [])}"
    return run_yaml(find_yaml(network), chip, split, *overrides, ranks=RANKS)


def assert_kernels(result: DryRun, chip: str = "ascend910b") -> None:
    """Asserts that all kernels are kernels of the chip, and that there is one compiled graph."""
    assert result.finished, result.reason
    assert result.python == 0
    assert not result.any_type
    if CHIPS[chip] == "Ascend":  # on a GPU branches are separate graphs
        assert result.graphs == 1
        assert result.ai_cpu == ()
        assert not {name for name in result.names if name.startswith("MaxPool3D")}
        assert result.conv3d_float32 == 0


def assert_split(result: DryRun, kind: str, gathers: int) -> None:
    """Asserts one AllReduce per segment; half of the backward pass or more follows the first one.

    One AllReduce sums loss, top-1, requests and the overflow flag. With accumulation, which reduces
    gradients in a branch, the flag has a separate AllReduce.
    """
    others = 2 if kind == "accumulate" else 1
    assert len(result.all_reduces) == SEGMENTS + others + gathers
    if kind == "train":
        assert list(result.all_reduces.values())[gathers] >= 0.5


def assert_overflow_status(result: DryRun) -> None:
    """Asserts that the flags of a 910A cover this step only, and that all ranks get them."""
    operators = [kernel.operator for kernel in result.order]
    assert operators.count("NPUGetFloatStatusV2") == 1
    first = next(name for name in operators if not name.startswith("Stream"))
    assert first == "NPUClearFloatStatusV2"
    assert max(result.all_reduces) > operators.index("NPUGetFloatStatusV2")


def list_smoke_runs() -> list:
    """Returns (network, chip, kind); slow except a training step of TSM on 910B.

    The other chips differ from 910B in their kernels, which a training step has all of. One step
    accumulates for all networks, and one whose loss gathers the batch.
    """
    quick = {("tsm", "ascend910b", "train")}
    cases = [("tsm", "ascend910b", "accumulate"), ("mvit_multi", "ascend910b", "accumulate")]
    for network in list_networks():
        cases += [(network, "ascend910b", "train"), (network, "ascend910b", "eval")]
        cases += [(network, "ascend910", "train"), (network, "gpu", "train")]
    marks = {case: () if case in quick else pytest.mark.slow for case in cases}
    return [pytest.param(*case, id="-".join(case), marks=marks[case]) for case in cases]


@pytest.mark.parametrize(("network", "chip", "kind"), list_smoke_runs())
def test_a_step_launches_kernels_of_the_chip_and_hides_all_reduces(network, chip, kind, compiler):
    result = run_smoke(network, chip, kind)
    assert_kernels(result, chip)
    if CHIPS[chip] == "GPU" or kind == "eval":
        assert not result.all_reduces
        return
    assert_split(result, kind, GATHERS.get(network, 0))
    if chip == "ascend910":
        assert_overflow_status(result)
    elif kind == "train":
        assert result.launches <= BUDGET[network]
        assert result.peak_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("chip", ["ascend910b", "gpu"])
def test_other_networks_launch_only_kernels_of_the_chip(name, chip, compiler):
    network, stem, overrides = OTHERS[name]
    assert_kernels(run_yaml(find_yaml(network, stem), chip, "run.amp=O2", *overrides), chip)


@pytest.mark.slow
@pytest.mark.parametrize("network", list_networks())
def test_a_step_with_a_frozen_backbone_ends_its_backward_pass_at_the_classifier(network, compiler):
    """One segment is left to reduce, and no kernel of the backbone's backward pass."""
    result = run_smoke(network, "ascend910b", "train", "train.freeze=backbone")
    assert_kernels(result)
    assert len(result.all_reduces) == 2 + GATHERS.get(network, 0)
    assert result.launches < 0.7 * BUDGET[network]
    backward = {name for name in result.names if "Grad" in name or "Backprop" in name}
    assert not {name for name in backward if "Conv" in name or "Norm" in name or "Pool" in name}


# More launches than in float16: max pools and tables of relative positions are in float32.
BFLOAT16_CASTS = 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "overrides"),
    [*((network, ()) for network in list_networks()), ("x3d", ("train.freeze=backbone",))],
)
def test_bfloat16_launches_the_kernels_of_float16(network, overrides, compiler):
    """A frozen backbone has batch norms with fixed statistics."""
    result = run_smoke(network, "ascend910b", "train", "run.amp_dtype=bfloat16", *overrides)
    assert_kernels(result)
    assert result.launches <= BUDGET[network] + BFLOAT16_CASTS


@pytest.mark.slow
def test_jit_level_o1_fuses_kernels(compiler):
    fused = run_smoke("tsm", "ascend910b", "train", "run.jit_level=O1")
    assert_kernels(fused)
    assert any(name.startswith("GraphKernel_") for name in fused.names)
    assert fused.launches < BUDGET["tsm"]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["x3d", "mvit_multi"])
def test_float32_needs_no_3d_convolution_on_a_910a(network, compiler):
    """Ascend 910A has 3D convolutions for float16 only."""
    result = run_smoke(network, "ascend910", "train", "run.amp=O0")
    assert_kernels(result, "ascend910")
    assert not {name for name in result.names if name.startswith("Conv3D")}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_fits_into_its_device_memory(recipe, compiler):
    (path,) = ROOT.glob(f"*/configs/{recipe}.yaml")
    run = load_config(find_network_of_yaml(path).config, path).run
    result = run_yaml(path, "ascend910b", ranks=RANKS)
    assert_kernels(result)
    assert result.launches <= RECIPE_BUDGET.get(recipe, result.launches)
    assert 0 < result.peak_bytes <= run.device_memory << 30


BUILD = """
    import importlib, json, sys
    from pathlib import Path

    sys.path.insert(0, sys.argv[1])
    from utils import runtime
    from utils.load_config import load_config
    from utils.settings import Run
    from utils.networks import find_network_of_yaml
    from utils.nn import kernels
    from utils.inference.checkpoint import draw_no_weights

    runtime.start(Run(device="Ascend"))
    built, failed = [], {}
    for path in sorted(Path(sys.argv[1]).glob("*/configs/*.yaml")):
        network = find_network_of_yaml(path)
        arguments = load_config(network.config, path, ["run.device=Ascend"]).model_arguments()
        if (network.name, arguments) in built:
            continue
        built.append((network.name, arguments))
        try:
            with draw_no_weights(), kernels.use(kernels.select("Ascend")):
                network.build_model(**arguments)
        except Exception as error:
            failed[path.stem] = str(error)
    print(json.dumps({"finished": True, "failed": failed}), flush=True)
"""


def test_the_network_of_every_yaml_can_be_built_for_ascend(compiler, tmp_path):
    (tmp_path / "build.py").write_text(dedent(BUILD))
    result = simulate([str(tmp_path / "build.py"), str(ROOT)], Machine("ascend910b"))
    assert result.finished, result.reason
    assert result.details["failed"] == {}


# Three flaws of a step: a branch without a result, a float32 Conv3D, a padded MaxPool2d.
FLAWED = """
    import json, sys
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    class Flawed(nn.Cell):
        def __init__(self, is_flawed):
            super().__init__()
            self.is_flawed = is_flawed
            self.conv, self.pool = nn.Conv3d(3, 16, 3), nn.MaxPool2d(3, 2, "pad", 1)
            self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count")

        def construct(self, x):
            if self.is_flawed:
                x = self.pool(self.conv(x).sum(2))
                self.skip(x.sum() > 0)
            else:
                self.update(x.sum() > 0)
            return x.sum() + self.count

        def skip(self, positive):
            if positive:
                ops.assign_add(self.count, 1)

        def update(self, positive):
            if positive:
                ops.assign_add(self.count, 1)
            return positive

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("Ascend")
    net = Flawed(sys.argv[1] == "flawed")
    try:
        net(ms.Tensor(np.zeros((2, 3, 8, 64, 64), np.float32))).asnumpy()
        result = {"finished": True}
    except Exception as error:
        result = {"finished": False, "reason": str(error)}
    print(json.dumps(result), flush=True)
"""


@pytest.fixture
def flawed(tmp_path) -> str:
    (tmp_path / "flawed.py").write_text(dedent(FLAWED))
    return str(tmp_path / "flawed.py")


def test_a_dry_run_shows_python_float32_conv3d_and_ai_cpu_kernels(compiler, flawed):
    """`assert_kernels` fails for each of them."""
    result = simulate([flawed, "flawed"], Machine("ascend910b"))
    assert (result.python, result.conv3d_float32) == (1, 1)
    assert result.any_type
    assert result.graphs > 1
    assert result.ai_cpu == ("MaxPool3DWithArgmax",)


def test_the_command_prints_a_table_and_json(compiler, run_here, monkeypatch):
    """MS_SIMULATION_LEVEL of the user has no effect."""
    arguments = ["--chip", "ascend910b", "--run.amp=O2", "--mode", "eval"]
    arguments += [build_config_option("resnet50")]
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "3")
    completed = run_here(COMMAND, *arguments)
    result = read_result(completed)
    assert (result["finished"], result["fits"], result["graphs"]) == (True, True, 1)
    assert f"kernels                  {result['kernels']}, of which" in completed.stdout
    assert "calls of Python          0\n" in completed.stdout


def test_a_graph_that_cannot_be_compiled_is_one_line_and_status_1(compiler, run_here):
    options = ["--chip=ascend910b", "--model.depthwise_impl=grouped"]
    completed = run_here(COMMAND, build_config_option("x3d"), *options)
    assert completed.returncode == 1
    assert len(completed.stderr.splitlines()) == 1
    assert "On Ascend platform, group = 1 must be satisfied" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "--chip"),
        ("--chip=ascend910b --cann=/none", "--cann: /none"),
        ("--chip=ascend910 --run.jit_level=auto", "--cann"),
        ("--chip=gpu --ranks=8", "--ranks"),
    ],
)
def test_a_user_error_is_one_line_and_status_2(arguments, words, run_here):
    completed = run_here(COMMAND, build_config_option("resnet50"), *arguments.split())
    assert completed.stdout == ""
    assert_one_line_error(completed, words)


def test_a_training_with_a_simulation_variable_is_an_error(run_here, monkeypatch):
    monkeypatch.setenv("MS_SIMULATION_LEVEL", "1")
    completed = run_here("tsm/train.py", build_config_option("tsm"))
    assert completed.stdout == ""
    assert_one_line_error(completed, "MS_SIMULATION_LEVEL is set", COMMAND)
