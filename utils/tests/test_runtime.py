"""utils/runtime.py: the environment of a process, and the device of a run."""

import os
from dataclasses import replace
from functools import partial

import mindspore as ms
import pytest
from mindspore import device_context

from utils import runtime
from utils.entry import prepare_process
from utils.settings import Run

VARIABLES = "GLOG_v", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


@pytest.fixture
def environment(monkeypatch):
    """The environment of this process, without the variables that `prepare_process` sets."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # restored after the test, whatever it sets
        monkeypatch.delenv(name)
    return monkeypatch


def test_variables_of_the_user_have_precedence(environment):
    environment.setenv("GLOG_v", "1")
    environment.setenv("OMP_WAIT_POLICY", "active")
    prepare_process("a program")
    assert [os.environ.get(name) for name in VARIABLES] == ["1", "active", None]


@pytest.fixture
def device(monkeypatch):
    """A list of the arguments of ms.set_device."""
    calls = []
    monkeypatch.setattr(ms, "set_device", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(runtime, "set_device_options", lambda run: None)
    for name in ("DEVICE_ID", "MS_WORKER_NUM", "MS_ROLE"):
        monkeypatch.delenv(name, raising=False)
    return calls


@pytest.mark.parametrize("tf32", [False, True])
def test_a_gpu_tries_all_algorithms_and_its_libraries_know_whether_tf32_is_allowed(
    tf32, environment
):
    """The variable is set before the device is opened, because NVIDIA's libraries read it then."""
    environment.setenv("NVIDIA_TF32_OVERRIDE", "")  # restored after the test
    environment.delenv("NVIDIA_TF32_OVERRIDE")
    calls = {}
    modules = {"precision": ("conv", "matmul"), "tuning": ("fprop", "dgrad", "wgrad")}
    for name in modules["precision"]:
        call = partial(calls.__setitem__, name)
        environment.setattr(device_context.gpu.op_precision, f"{name}_allow_tf32", call)
    for name in modules["tuning"]:
        call = partial(calls.__setitem__, name)
        environment.setattr(device_context.gpu.op_tuning, f"conv_{name}_algo", call)
    variable = partial(os.environ.get, "NVIDIA_TF32_OVERRIDE", "unset")
    environment.setattr(ms, "set_device", lambda *_: calls.update(override=variable()))
    environment.setattr(ms.runtime, "dispatch_threads_num", lambda _: None)  # once in a process
    runtime.start_device(Run(device="GPU", tf32=tf32, jit_level="auto"))
    assert calls == {
        "conv": tf32,
        "matmul": tf32,
        **dict.fromkeys(modules["tuning"], "performance"),
        "override": "unset" if tf32 else "0",
    }


@pytest.mark.parametrize("name", ["CPU", "GPU", "Ascend"])
def test_bfloat16_is_refused_where_mindspore_does_not_have_it(name, device, monkeypatch):
    """A recipe in bfloat16 trains on a CPU all the same, in float32."""
    monkeypatch.setattr(ms.amp, "_ascend_910a_target", lambda: True)
    run = Run(device=name, amp="O2", amp_dtype="bfloat16")
    with pytest.raises(ValueError, match="^run.amp_dtype"):
        runtime.start_device(replace(run, cpu_amp="O2"))
    if name != "GPU":
        monkeypatch.setattr(ms.amp, "_ascend_910a_target", lambda: False)
        runtime.start_device(run)


@pytest.mark.parametrize(("text", "arguments"), [("3", (3,)), ("0", (0,)), ("", ()), (None, ())])
def test_a_run_on_one_device_uses_device_id(device, monkeypatch, text, arguments):
    if text is not None:
        monkeypatch.setenv("DEVICE_ID", text)
    runtime.start(Run(device="Ascend"))
    assert device == [("Ascend", *arguments)]
