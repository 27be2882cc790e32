"""The training loop between steps, without a network: reads of values, saving, failures, advice."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor, amp, nn
from mindspore import dtype as mstype

from scripts.analysis.build_networks import build_train_step
from tests.helpers import load_smoke_config
from utils.data.rows import UnreadableFiles
from utils.data.sampler import TrainSampler
from utils.networks import Job
from utils.nn.layers import BatchNorm2d
from utils.runtime import Runtime
from utils.settings import Run
from utils.train import training_loop
from utils.train.plan import TrainParts
from utils.train.train_step import create_counter
from utils.train.training_loop import TrainingLoop
from utils.train.validation import Validation


class Step:
    """What the loop uses of a train step: a counter, and a state."""

    accumulation_steps = 1

    def __init__(self, steps_done: int = 0, **state):
        self.micro_step = create_counter("micro_step")
        self.micro_step.set_data(Tensor(steps_done, mstype.int32))
        self.optimizer = SimpleNamespace(global_step=Tensor([steps_done], mstype.int32))
        self.arrays = state
        self.requests = []

    def state(self):
        return self.arrays

    def make_request(self, name: str) -> None:
        self.requests.append(name)

    def set_train(self) -> None:
        pass


class Directory:
    """A run directory that only counts."""

    def __init__(self, path):
        self.path = path
        self.resume_file = path / "resume.ckpt"
        self.saved = []

    def save(self, step, sampler, unreadable, save_epoch: bool) -> None:
        self.saved.append("epoch" if save_epoch else "state")

    def list_own_epochs(self) -> list:
        return [self.path / "epoch_003.ckpt"]


class Rows:
    """Training rows of which too many are unreadable if `fault` is not empty."""

    fault = ""
    sampler = TrainSampler(32, batch=4, rank=0, size=1, seed=0)
    unreadable = UnreadableFiles([])

    def find_fault(self) -> str:
        return self.fault


def make_loop(
    folder, steps_done=0, state=None, rows=None, rt=None, epochs=1, validation=None, warmup=0, **run
) -> TrainingLoop:
    """A training loop of one epoch, or of several, of two classes."""
    cfg = SimpleNamespace(
        run=Run(device="CPU", **run),
        train=SimpleNamespace(epochs=epochs, warmup_epochs=warmup, feature_draws=0),
        data=SimpleNamespace(mixes=False),
        has_several_labels=False,
        class_counts=(2,),
    )
    return TrainingLoop(
        Job(None, cfg, rt or Runtime()),
        TrainParts(None, None, None, lr=np.full(8 * epochs, 0.1)),
        Step(steps_done, **(state or {})),
        rows=rows or Rows(),
        directory=Directory(folder),
        validation=validation,
    )


class Outputs:
    """The values of a step on the device; reading them waits for the step."""

    def __init__(self, number: int, reads: list, overflows: int = 0, bad_data: int = 0):
        self.number = number
        self.reads = reads
        self.values = [float(number), 0.5, 1.0, overflows, 0.0, bad_data]

    def asnumpy(self):
        self.reads.append(self.number)
        return np.array(self.values, np.float32)


def run_step(loop: TrainingLoop, outputs: Outputs, wait=lambda k: None) -> bool:
    """One step; returns whether the loop asks to stop. `wait` is called before and in the step."""
    context = SimpleNamespace(net_outputs=outputs)
    requests = []
    call = SimpleNamespace(original_args=lambda: context)
    call.request_stop = lambda: requests.append(True)
    wait(0)
    loop.on_train_step_begin(call)
    wait(1)
    loop.on_train_step_end(call)
    return bool(requests)


@pytest.mark.parametrize("log_every", [100, 3])
def test_the_values_of_a_step_are_read_once_and_a_step_late(log_every, tmp_path, log_messages):
    """They are read at once only if the step is the first, logged, saved or the last."""
    loop = make_loop(tmp_path, log_every=log_every, save_every=1)
    loop.on_train_begin(None)
    reads = []
    after = []
    for number in range(1, 9):
        run_step(loop, Outputs(number, reads))
        after.append(len(reads))
    assert reads == list(range(1, 9))
    expected = [k if k % log_every == 0 or k in (1, 8) else k - 1 for k in range(1, 9)]
    assert after == expected
    lines = [line for line in log_messages if line.startswith("first step  loss 1 ")]
    assert len(lines) == 1
    assert re.search(r"  left \d+:\d\d:\d\d$", lines[0])
    assert loop.line["step"] == 8
    assert loop.directory.saved == ["epoch"]
    assert loop.first_step_seconds > 0


def test_the_logged_rate_is_that_of_the_newest_update(tmp_path):
    """Five steps are done, two of them without an update."""
    loop = make_loop(tmp_path, steps_done=4, log_every=1)
    loop.parts.lr[:] = np.arange(8) / 8
    loop.step.optimizer.global_step = Tensor([3], mstype.int32)
    loop.on_train_begin(None)
    run_step(loop, Outputs(5, []))
    assert loop.line["lr"] == 0.25


def test_too_many_overflows_fail_the_run_and_save_nothing(tmp_path, log_messages, monkeypatch):
    monkeypatch.setattr(training_loop, "MAX_OVERFLOWS", 2)
    loop = make_loop(tmp_path, save_steps=1)
    loop.on_train_begin(None)
    run_step(loop, Outputs(1, [], overflows=1))
    with pytest.raises(ValueError, match=r"^train.lr: 2 updates"):
        run_step(loop, Outputs(2, [], overflows=2))
    assert loop.directory.saved == ["state"]


@pytest.mark.parametrize("fault", ["data.max_unreadable: 9 videos", ""])
def test_unreadable_files_of_one_rank_fail_all_ranks_at_the_same_step(
    fault, tmp_path, log_messages
):
    """When the values of step 2 are read, each rank knows; the step before asked for it."""
    rows = Rows()
    rows.fault = fault
    loop = make_loop(tmp_path, rows=rows, rt=Runtime(0, 2))
    loop.on_train_begin(None)
    run_step(loop, Outputs(1, []))
    run_step(loop, Outputs(2, [], bad_data=1))
    assert set(loop.step.requests) == ({"bad_data"} if fault else set())
    with pytest.raises(ValueError, match=fault or "data.max_unreadable"):
        run_step(loop, Outputs(3, [], bad_data=1))


@pytest.mark.parametrize("damaged", ["weight", "moment"])
@pytest.mark.parametrize("end", ["last step", "signal"])
def test_a_state_that_is_not_finite_is_not_saved_and_fails_the_run(
    damaged, end, log_messages, tmp_path
):
    """The run fails even if no update has overflowed before: the last update can cause it."""
    state = {name: Tensor(np.ones(3, np.float32)) for name in ("weight", "moment")}
    state[damaged] = Tensor(np.array([1, np.inf, 1], np.float32))
    steps_done = 2 if end == "signal" else 7
    loop = make_loop(tmp_path, steps_done=steps_done, state=state, save_steps=1)
    loop.on_train_begin(None)
    run_step(loop, Outputs(1, []))
    with pytest.raises(ValueError, match="^train.lr: .*nothing was saved"):
        loop.finish()
    assert loop.directory.saved == []
    assert f"step {steps_done + 1} is not saved: its state is not finite" in log_messages


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_bfloat16_needs_no_loss_scale_and_keeps_float32_weights(level):
    """MindSpore's CPU back end does not run such a step, but it can be built."""
    overrides = [f"run.amp={level}", "run.amp_dtype=bfloat16", "run.dynamic_loss_scale=true"]
    cfg = load_smoke_config("resnet50", *overrides, "run.loss_scale=1024", "train.ema_decay=0.9")
    step = build_train_step("resnet50", cfg, Runtime())
    assert type(step.scaler) is amp.StaticLossScaler
    assert step.loss_scale == 1
    state = step.state()
    assert {name for name in state if "moving_mean" in name}
    assert {name for name in state if name.startswith("ema")}
    assert {str(value.dtype) for value in state.values()} == {"Float32", "Int32"}
    cells = [cell for _, cell in step.net.cells_and_names()]
    convolutions = [cell for cell in cells if isinstance(cell, nn.Conv2d)]
    assert all(cell.bf16 and not cell.fp16 for cell in convolutions)
    norms = [cell for cell in cells if isinstance(cell, BatchNorm2d)]
    assert not any(cell.bf16 or cell.fp16 for cell in norms)


class EqualValidations(Validation):
    """Validations that never improve, without a network."""

    more: dict = {}

    def __init__(self, folder, **run):
        run = Run(device="CPU", eval_every=1, **run)
        super().__init__(lambda: {}, run=run, rt=Runtime(), step=None, folder=folder)

    def validate(self, epoch: int) -> dict:
        metrics = {"epoch": epoch, "loss": 1.0, "top1": 0.5, "videos": 4}
        metrics["mean_class_accuracy"] = 0.9
        self.lines[epoch] = {**metrics, **self.more}
        return self.lines[epoch]


def test_patience_ends_a_run_with_a_saved_epoch(tmp_path, log_messages):
    settings = {"eval_every": 1, "patience": 2, "save_every": 5}
    validation = EqualValidations(tmp_path, patience=2)
    loop = make_loop(tmp_path, epochs=9, validation=validation, **settings)
    loop.resume_validation()
    loop.on_train_begin(None)
    stops = [run_step(loop, Outputs(number, [])) for number in range(1, 24)]
    assert not loop.result()["complete"]
    stops.append(run_step(loop, Outputs(24, [])))
    assert stops == [False] * 23 + [True]
    assert loop.directory.saved == ["epoch"]
    loop.finish()  # not a run that a signal has stopped
    (line,) = [line for line in log_messages if "patience" in line]
    assert "epoch 1;" in line
    assert not [line for line in log_messages if "SIGTERM" in line]
    result = loop.result()
    assert result["complete"]
    assert (result["epochs"], result["best_epoch"], result["validation_loss"]) == (3.0, 1, 1.0)

    validation = EqualValidations(tmp_path, patience=2)
    again = make_loop(tmp_path, steps_done=24, epochs=9, validation=validation)
    again.run = loop.run
    again.resume_validation()
    assert again.ends_early, "the same command does not go on"
    validation = EqualValidations(tmp_path, patience=3)
    longer = make_loop(tmp_path, steps_done=24, epochs=9, validation=validation)
    longer.resume_validation()
    assert not longer.ends_early


@pytest.mark.parametrize(("keep_best", "validated"), [("loss", True), ("none", False)])
def test_a_resumed_run_repeats_a_validation_that_a_setting_needs(keep_best, validated, tmp_path):
    validation = EqualValidations(tmp_path, keep_best=keep_best)
    loop = make_loop(tmp_path, steps_done=16, epochs=9, validation=validation, eval_every=1)
    loop.resume_validation()
    assert (2 in validation.lines) == validated
    between = EqualValidations(tmp_path, keep_best="loss")
    loop = make_loop(tmp_path, steps_done=12, epochs=9, validation=between, eval_every=1)
    loop.resume_validation()
    assert set(between.lines) <= {1, 2}
    assert 0 not in between.lines


@pytest.mark.parametrize(("low", "warmup", "epochs"), [(0.3, 0, [2]), (0.3, 2, [4]), (0.6, 0, [])])
def test_chance_is_said_once_after_the_warm_up(low, warmup, epochs, tmp_path, log_messages):
    validation = EqualValidations(tmp_path)
    validation.more = {"top1_low": low, "top1_high": 0.9}
    settings = {"eval_every": 1, "log_every": 99, "warmup": warmup}
    loop = make_loop(tmp_path, epochs=5, validation=validation, **settings)
    loop.on_train_begin(None)
    for _ in range(40):
        if run_step(loop, Outputs(1, [])):
            break
    validated = [line for line in log_messages if "top1 50.0%" in line and "videos" in line]
    advised = [k for k, line in enumerate(log_messages) if "validation top-1 50.0%" in line]
    assert [sum(line in validated for line in log_messages[:k]) for k in advised] == epochs


def test_log_lines_become_scalars(tmp_path, log_messages):
    loop = make_loop(tmp_path)
    scalars = {}
    loop.events = SimpleNamespace(add_scalar=lambda tag, value, step: scalars.update({tag: value}))
    loop.write_values({"epoch": 0.5, "step": 3, "loss": 2.5, "lr": 0.125, "loss_scale": 1.0})
    assert scalars == {"train/loss": 2.5, "train/lr": 0.125, "train/loss_scale": 1.0}
    scalars.clear()
    sets = {"axes": {"top1": 0.75, "top5": None}}
    loop.write_values({"epoch": 1, "top1": 0.5, "loss": 1.5, "videos": 8, "sets": sets})
    expected = {"validation/top1": 0.5, "validation/loss": 1.5, "validation_axes/top1": 0.75}
    assert scalars == expected


def test_a_resumed_run_replaces_the_steps_that_it_repeats_in_tensorboard(tmp_path, monkeypatch):
    """`purge_step`: the first step whose older values TensorBoard hides."""
    tensorboard = pytest.importorskip("tensorboardX")
    options = {}
    monkeypatch.setattr(tensorboard, "SummaryWriter", lambda folder, **o: options.update(o))
    make_loop(tmp_path, steps_done=4, tensorboard=True).on_train_begin(None)
    assert options["purge_step"] == 5


def test_a_line_has_the_means_and_times_of_its_window(tmp_path, monkeypatch):
    """Without the time of an evaluation, with a clock that the test moves."""
    clock = [100.0]
    monkeypatch.setattr(training_loop.time, "monotonic", lambda: clock[0])

    def move_clock(*seconds: float):
        return lambda k: clock.__setitem__(0, clock[0] + seconds[k])

    loop = make_loop(tmp_path, log_every=2)
    loop.on_train_begin(None)
    run_step(loop, Outputs(1, []), move_clock(1, 3))
    run_step(loop, Outputs(2, []), move_clock(0, 4))
    assert loop.line == {
        "epoch": 0.25,
        "step": 2,
        "loss": 1.5,
        "top1": 0.5,
        "lr": 0.1,
        "loss_scale": 1.0,
        "overflows": 0,
        "clips_per_second": 1.0,
        "waiting": 0.125,
        "seconds_left": 24,
    }
    clock[0] += 1000
    loop.restart_window()
    for number in (3, 5):
        run_step(loop, Outputs(number, []), move_clock(0, 1))
    assert (loop.line["loss"], loop.line["clips_per_second"], loop.seconds) == (4.0, 4.0, 10.0)


def test_a_late_line_names_much_waiting_once(tmp_path, log_messages):
    loop = make_loop(tmp_path)
    loop.late = 0
    for waiting in (0.05, 0.5, 0.5):
        loop.write_values({"loss": 2.1, "waiting": waiting})
    assert ["50 %" in line for line in log_messages if "steps wait" in line] == [True]
