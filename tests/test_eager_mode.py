"""`run.mode: eager`: MindSpore calls the Python code of a network at every step."""

import json
import sys
from pathlib import Path

import mindspore as ms
import pytest

from tests.helpers import find_smoke_yaml, load_smoke_config, read_result, run_json
from tests.toy_recipes import draw_samples, list_toy_settings
from utils.inference.engines import choose_engine
from utils.networks import find_network
from utils.nn.kernels.plain import Plain
from utils.train.train import choose_kernels

SMALL = {
    "tsm": ["eval.clips=1"],
    "x3d": ["train.precise_bn=1", "eval.clips=2"],
    "mvit_multi": [],
    "resnet50": ["model.first_width=2"],
}


@pytest.fixture
def graph_mode_afterwards():
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


def break_in_construct(monkeypatch, network: str) -> list[tuple]:
    """Adds `breakpoint()` to the network's `construct`; returns the shapes that a debugger sees."""
    cfg = load_smoke_config(network)
    kind = type(find_network(network).build_model(**cfg.model_arguments()))
    construct = kind.construct
    shapes = []

    def construct_and_break(self, *inputs):
        breakpoint()  # noqa: T100
        return construct(self, *inputs)

    def look() -> None:
        shapes.append(sys._getframe(1).f_locals["inputs"][0].shape)

    monkeypatch.setattr(kind, "construct", construct_and_break)
    monkeypatch.setattr(sys, "breakpointhook", look)
    return shapes


def read_losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("network", SMALL)
def test_a_network_trains_and_evaluates_in_eager_mode_as_in_a_graph(
    network, run_here, tmp_path, monkeypatch, graph_mode_afterwards
):
    draw_samples(network, tmp_path / "data")
    settings = [f"data.root={tmp_path / 'data'}", *list_toy_settings(network), *SMALL[network]]
    arguments = ["--config_path", find_smoke_yaml(network)]
    arguments += [f"--{setting}" for setting in settings]
    arguments += ["--run.log_every=1", "--train.epochs=1"]
    # The weights change little: otherwise rounding errors grow from step to step.
    arguments += ["--train.warmup_epochs=0", "--train.lr=1e-4"]
    losses = {}
    for mode in ("graph", "eager"):
        out = tmp_path / mode
        if mode == "eager":
            shapes = break_in_construct(monkeypatch, network)
        command = [*arguments, f"--run.mode={mode}", f"--run.out={out}", "--run.eval_every=1"]
        trained = run_here(f"{network}/train.py", *command)
        read_result(trained)
        assert ("run.mode eager: no graph" in trained.stderr) == (mode == "eager")
        losses[mode] = read_losses(out)
    steps = len(losses["eager"]) - 1
    assert steps > 1
    assert losses["eager"] == pytest.approx(losses["graph"], rel=1e-4)
    assert len(shapes) > steps
    shapes.clear()
    command = [*arguments, "--run.mode=eager", "--checkpoint_path", out / "epoch_001.ckpt"]
    done = run_here(f"{network}/eval.py", *command)
    read_result(done)
    assert len(shapes) > 0
    assert "MindSpore computes the network" in done.stderr


@pytest.mark.slow
def test_two_ranks_train_in_eager_mode_as_in_a_graph(pair_args, pair_run, tmp_path):
    """So a MindSpore without graphs on several ranks still trains: only AllReduce must work."""
    options = [*pair_args, "--run.mode=eager", f"--run.out={tmp_path / 'run'}"]
    run_json("scripts/launch.py", "2", "tsm/train.py", *options)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(pair_run[2]), rel=1e-4)


def test_eager_mode_is_computed_by_mindspore():
    eager = load_smoke_config("tsm", "run.mode=eager")
    assert choose_engine(eager.run) == "mindspore"
    assert type(choose_kernels(eager.run, "CPU")) is Plain
    with pytest.raises(ValueError, match="run.mode eager needs run.engine mindspore, not openvino"):
        load_smoke_config("tsm", "run.mode=eager", "run.engine=openvino")
