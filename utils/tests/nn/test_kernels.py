"""utils/nn/kernels: every back end computes what the plain operators compute."""

import ctypes
import os
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal

from mvit_multi.attention import Attention, BlockPlan, ChannelsFirstDense
from tests.helpers import load_smoke_config
from tests.toy_recipes import build_toy_training
from tsm import train
from tsm.shift import Shift
from utils.files import ROOT
from utils.log import log
from utils.nn import kernels, layers
from utils.nn.conv3d import DepthwiseConv3d, FrameConv, PointwiseConv3d
from utils.nn.kernels.ascend import Ascend
from utils.nn.kernels.cpu import CompiledKernel, Cpu, library
from utils.nn.kernels.plain import Plain
from utils.runtime import CAPS, eager_mode
from utils.settings import Run
from utils.train.train import choose_kernels
from x3d.model import SE

CACHE = ROOT / ".cache" / "cpu_kernels"


def conv2d(*arguments, **options):
    return lambda: layers.conv2d(*arguments, **options)


def depthwise(kernel: tuple, stride: int, impl: str = "frames"):
    return lambda: DepthwiseConv3d(5, kernel=kernel, stride=stride, impl=impl)


def attention(token: bool, impl: str = "frames"):
    sizes = {"grid": (2, 4, 4), "table_grid": (2, 4, 4), "stride_q": 2, "stride_kv": 2}
    plan = BlockPlan(8, dim_out=16, heads=2, **sizes)
    return lambda: Attention(plan, eps=1e-6, relative=token, token=token, impl=impl)


class NormAndReLU(nn.Cell):
    """A batch norm of five channels and ReLU, as a block of a network has them."""

    def __init__(self, has_shortcut: bool = False):
        super().__init__()
        self.norm = layers.BatchNorm2d(5)
        self.norm_relu = layers.NormReLU()
        self.has_shortcut = has_shortcut

    def construct(self, x: Tensor) -> Tensor:
        shortcut = ops.flip(x, (0,)) if self.has_shortcut else None
        return self.norm_relu(self.norm, x, shortcut)


# A function that builds the Cell, the shape of its input.
CASES = {
    "3x3": (conv2d(5, 7, 3), (2, 5, 9, 10)),
    "3x3 of many channels": (conv2d(64, 128, 3), (1, 64, 8, 10)),
    "3x3 of many channels and an odd map": (conv2d(128, 64, 3), (3, 128, 5, 7)),
    "3x3 of many channels and tiles": (conv2d(64, 64, 3), (2, 64, 6, 200)),
    "3x3 stride 2": (conv2d(16, 32, 3, 2), (2, 16, 9, 10)),
    "7x7 stride 2": (conv2d(3, 16, 7, 2), (2, 3, 20, 20)),
    "1x1": (conv2d(5, 7, 1), (3, 5, 6, 4)),
    "1x1 stride 2": (conv2d(5, 7, 1, 2), (3, 5, 6, 4)),
    "1x1 stride 3 of a map that it does not divide": (conv2d(5, 7, 1, 3), (2, 5, 9, 5)),
    "3x3 in groups": (conv2d(8, 8, 3, groups=8), (2, 8, 6, 6)),
    "3x3 with bias": (conv2d(4, 4, 3, bias=True), (2, 4, 6, 6)),
    "pointwise": (lambda: PointwiseConv3d(6, 4, bias=True), (2, 6, 3, 4, 5)),
    "pointwise without bias": (lambda: PointwiseConv3d(6, 4), (2, 6, 3, 4, 5)),
    "pointwise stride 2": (lambda: PointwiseConv3d(6, 4, stride=2), (2, 6, 3, 4, 6)),
    "frames": (lambda: FrameConv(3, cout=8, kernel=3, stride=2), (2, 3, 4, 9, 9)),
    "depthwise": (depthwise((3, 3, 3), 1), (2, 5, 4, 7, 18)),
    "depthwise stride 2": (depthwise((3, 3, 3), 2), (2, 5, 4, 7, 18)),
    "depthwise stride 8": (depthwise((3, 3, 3), 8), (1, 5, 2, 17, 33)),
    "depthwise in time": (depthwise((5, 1, 1), 1), (2, 5, 4, 7, 18)),
    "batch norm": (lambda: layers.BatchNorm2d(5), (3, 5, 7, 4)),
    "batch norm of clips": (lambda: layers.BatchNorm3d(5), (3, 5, 2, 7, 4)),
    "batch norm and ReLU": (NormAndReLU, (3, 5, 7, 4)),
    "batch norm, shortcut and ReLU": (lambda: NormAndReLU(has_shortcut=True), (3, 5, 7, 4)),
    "layer norm": (lambda: layers.LayerNorm(40, 1e-6), (3, 65, 40)),
    "max pool": (lambda: layers.max_pool2d(3, 2), (2, 3, 9, 10)),
    "max pool with a large window": (lambda: layers.max_pool2d(5, 2), (2, 3, 9, 7)),
    "relu": (layers.ReLU, (3, 5, 7)),
    "silu": (layers.SiLU, (3, 5, 7)),
    "gelu": (layers.GELU, (30, 50, 7)),
    "dense": (lambda: layers.Dense(6, 4), (2, 3, 6)),
    "dense, channels first": (lambda: ChannelsFirstDense(6, 4, Normal()), (3, 5, 6)),
    "attention": (attention(token=True), (2, 1 + 2 * 4 * 4, 8)),
    "shift": (lambda: Shift(layers.conv2d(8, 8, 1), 4, 4), (8, 8, 3, 3)),
    "shifts of different numbers of channels": (
        lambda: nn.SequentialCell(
            Shift(layers.conv2d(8, 16, 1), 4, 4), Shift(layers.conv2d(16, 16, 1), 2, 2)
        ),
        (8, 8, 3, 3),
    ),
    "convolutions of different strides": (
        lambda: nn.SequentialCell(
            layers.conv2d(4, cout=6, kernel=3, stride=2), layers.conv2d(6, 4, 3)
        ),
        (2, 4, 9, 9),
    ),
}
ASCEND_CASES = {
    "max pool": CASES["max pool"],
    "max pool with stride 1": (lambda: layers.max_pool2d(3, 1), (2, 3, 5, 5)),
    "max pool with a large window": CASES["max pool with a large window"],
    "dense": CASES["dense"],
    "dense, channels first": CASES["dense, channels first"],
    "attention": (attention(token=False, impl="taps"), (2, 2 * 4 * 4, 8)),
    "attention with a class token": (attention(token=True, impl="taps"), (2, 1 + 2 * 4 * 4, 8)),
    "taps": (depthwise((3, 3, 3), 2, "taps"), (2, 5, 4, 7, 6)),
    "squeeze and excitation": (lambda: SE(16), (2, 16, 4, 3, 3)),
}


class AscendOnCpu(Ascend):
    """The operators for Ascend, without those that MindSpore has on Ascend only."""

    batch_norm = staticmethod(Plain.batch_norm)
    layer_norm = Plain.layer_norm
    gelu = Plain.gelu
    channel_means = Plain.channel_means
    shift_frames = staticmethod(Plain.shift_frames)


def compute_gradients(cell: nn.Cell, x: Tensor, slopes: Tensor) -> tuple:
    """The output, and the gradients of input and weights for the gradients `slopes` of the output.

    Only the beginning of `slopes` is used, as many numbers as the output has.
    """
    weights = ms.ParameterTuple(cell.trainable_params())

    def forward(x):
        y = cell(x)
        return (y * slopes[: y.size].reshape(y.shape)).sum(), y

    compute = ms.value_and_grad(forward, 0, weights, has_aux=True)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        compute = ms.jit(compute)
    (_, y), (x_gradient, gradients) = compute(x)
    return y, x_gradient, *gradients


def load_kernels() -> Cpu:
    try:
        return Cpu(library.load(CACHE))
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cpu_kernels() -> Cpu:
    return load_kernels()


def randomize(cell: nn.Cell) -> None:
    random = np.random.RandomState(1)
    for weight in cell.get_parameters():
        values = random.uniform(0.5, 1.5, weight.shape) * random.choice([-1, 1], weight.shape)
        values = np.abs(values) if "variance" in weight.name else values
        weight.set_data(Tensor(values.astype(np.float32)))


def run_training(cell: nn.Cell, shape: tuple) -> list[np.ndarray]:
    """Output, gradients and parameters after a training step of a random input."""
    cell.set_train()
    randomize(cell)
    random = np.random.RandomState(2)
    x = Tensor((3 * random.standard_normal(shape)).astype(np.float32))
    slopes = Tensor(random.standard_normal(160_000).astype(np.float32))
    arrays = (*compute_gradients(cell, x, slopes), *cell.get_parameters())
    return [array.asnumpy() for array in arrays]


def assert_same_training(build, shape: tuple, back_end: Plain) -> None:
    """Compares a compiled step of a Cell from this back end with an eager step of a plain one."""
    with eager_mode():
        expected = run_training(build(), shape)
    with kernels.use(back_end):
        cell = build()
    for array, other in zip(run_training(cell, shape), expected):
        np.testing.assert_allclose(array, other, rtol=2e-5, atol=1e-5 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("name", CASES)
def test_kernels_for_a_cpu_compute_the_same(name, cpu_kernels):
    assert_same_training(*CASES[name], cpu_kernels)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if "channels" in name or "1x1" in name])
def test_kernels_compiled_without_avx512_compute_the_same(name, monkeypatch):
    monkeypatch.setattr(library, "OPTIONS", (*library.OPTIONS, "-mno-avx512f"))
    assert_same_training(*CASES[name], load_kernels())


@pytest.mark.parametrize("has_shortcut", [False, True])
def test_a_kernel_of_norm_and_relu_has_the_bits_of_separate_kernels(has_shortcut, cpu_kernels):
    """`compare_step.py` takes the separate kernels."""
    with kernels.use(cpu_kernels):
        joined, separate = (NormAndReLU(has_shortcut) for _ in range(2))
    separate.norm_relu.kernel = None
    for array, other in zip(*(run_training(cell, (3, 5, 7, 9)) for cell in (joined, separate))):
        np.testing.assert_array_equal(array, other)


def call_kernel(kernels_library: ctypes.CDLL, name: str, inputs: list, output: np.ndarray) -> None:
    """Calls a kernel as MindSpore does: pointers, numbers of axes and shapes of all arrays."""
    arrays = [*inputs, output]
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    axes = (ctypes.c_int * len(arrays))(*(array.ndim for array in arrays))
    addresses = (ctypes.c_void_p * len(arrays))(*map(ctypes.addressof, shapes))
    assert kernels_library[name](len(arrays), pointers, axes, addresses, None, None, None) == 0


def test_convolutions_have_the_same_bits_on_any_number_of_threads(cpu_kernels):
    """3x3 convolutions of 64 channels with stride 1: the kernels of winograd.cc."""
    kernels_library = ctypes.CDLL(str(cpu_kernels.library))
    random = np.random.RandomState(0)
    x, dy = random.standard_normal((2, 2, 64, 30, 28)).astype(np.float32)
    w = random.standard_normal((64, 64, 3, 3)).astype(np.float32)
    settings = np.ones(5, np.int32)
    results = []
    usual = kernels_library.omp_get_max_threads()
    for threads in (1, 3):
        kernels_library.omp_set_num_threads(threads)
        y, dx, dw = (np.zeros_like(array) for array in (x, x, w))
        call_kernel(kernels_library, "convolution", [x, w, settings], y)
        call_kernel(kernels_library, "convolution_input_grad", [dy, w, x, settings], dx)
        call_kernel(kernels_library, "convolution_weight_grad", [dy, x, w, settings], dw)
        results.append((y, dx, dw))
    kernels_library.omp_set_num_threads(usual)
    for array, other in zip(*results):
        assert array.any()
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("name", ASCEND_CASES)
def test_operators_for_ascend_compute_the_same(name):
    assert_same_training(*ASCEND_CASES[name], AscendOnCpu())


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_every_cell_uses_the_kernels_of_its_back_end(name, is_training, cpu_kernels, monkeypatch):
    """An eager run only has the shapes of the plain Cell: kernels would read views as arrays."""
    calls = []
    call = CompiledKernel.__call__

    def record(kernel: CompiledKernel, *inputs):
        calls.append(kernel)
        return call(kernel, *inputs)

    monkeypatch.setattr(CompiledKernel, "__call__", record)
    monkeypatch.setattr(CompiledKernel, "only_shapes", True)
    build, shape = CASES[name]
    x = Tensor(np.ones(shape, np.float32))
    own, plain = (cell.set_train(is_training) for cell in build_with_each(build, cpu_kernels))
    with eager_mode():
        expected = plain(x).shape
        assert not calls
        assert own(x).shape == expected
        assert calls or (name.startswith("batch norm") and not is_training)


def test_a_shift_of_frames_for_ascend_pads_on_the_right_side():
    """ConstantPadND has a CPU kernel in graphs only."""
    x = Tensor(np.arange(2 * 3 * 4, dtype=np.float32).reshape(1, 2, 3, 2, 2))
    for by in (-2, -1, 0, 1, 2):
        shifted = ms.jit(Ascend.shift_frames)(x, by).asnumpy()
        np.testing.assert_array_equal(shifted, Plain.shift_frames(x, by).asnumpy())


def test_norm_and_overflow_check_of_gradients_are_those_of_numpy(cpu_kernels):
    random = np.random.RandomState(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in [(300, 200), (7,)]]
    expected = np.sqrt(sum(np.square(x.astype(np.float64)).sum() for x in arrays))
    gradients = tuple(map(Tensor, arrays))
    damaged = (gradients[0], Tensor(np.array([1, np.nan, 2], np.float32)))
    for back_end in (Plain(), cpu_kernels):
        norm = back_end.vector_norm()(gradients).asnumpy()
        np.testing.assert_allclose(norm, expected, rtol=1e-5)
        is_finite = back_end.all_finite()
        assert is_finite(gradients)
        assert not is_finite(damaged)


def build_with_each(build, back_end: Plain) -> tuple[nn.Cell, nn.Cell]:
    """(the Cell with the operators of `back_end`, the plain one)."""
    with kernels.use(back_end):
        cell = build()
    return cell, build()


@pytest.mark.parametrize("cell_class", [layers.SiLU, layers.GELU])
def test_activations_of_huge_numbers_are_those_of_mindspore(cell_class, cpu_kernels):
    """Below -87 the exponential of float32 is limited, and 1e38 times the rest was not 0."""
    x = Tensor(np.array([-np.inf, -1e38, -1e30, -100, 1e30, 1e38, np.inf, np.nan], np.float32))
    own, expected = (
        compute_gradients(cell, x, Tensor(np.ones(8, np.float32)))
        for cell in build_with_each(cell_class, cpu_kernels)
    )
    for array, other in zip(own, expected):
        np.testing.assert_allclose(array.asnumpy(), other.asnumpy(), atol=1e-30)


def test_a_build_in_float32_on_a_cpu_has_the_kernels(cpu_kernels):
    back_ends = []

    def build(cfg, plan):
        back_ends.append(kernels.current())
        return train.build(cfg, plan)

    build_toy_training("tsm", load_smoke_config("tsm", "model.first_width=2"), build)
    assert isinstance(back_ends[0], Cpu)
    assert type(kernels.current()) is Plain
    assert type(choose_kernels(Run(device="CPU", cpu_amp="O2"), "CPU")) is Plain
    assert type(choose_kernels(Run(device="Ascend"), "Ascend")) is Ascend


@pytest.fixture
def compile_with(cpu_kernels, tmp_path, monkeypatch):
    """A function that loads the library with a shell script as `g++`; returns (its path, reports).

    "$target" is the output of the script, "$good" the library. MindSpore's large library is
    replaced by that of the kernels.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    good = cpu_kernels.library
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(library, "MINDSPORE_ONEDNN", good)

    def compile_with(script: str = 'cp "$good" "$target"') -> tuple[Path, list[str]]:
        head = f'#!/bin/bash\ntarget="${{@: -1}}"\ngood="{good}"\n'
        (folder / "g++").write_text(f"{head}{script}\n")
        (folder / "g++").chmod(0o755)
        lines = []
        return library.load(tmp_path / "cache", lines.append), lines

    return compile_with


@pytest.mark.parametrize("script", ["kill -9 $$", "head -c 3000000 /dev/zero >&2; exit 1"])
def test_what_a_bad_or_killed_compiler_wrote_is_not_kept(script, compile_with, tmp_path):
    with pytest.raises(OSError) as caught:
        compile_with(script)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000
    (tmp_path / "cache" / "tmpabc" / "kernels").mkdir(parents=True)
    path, lines = compile_with()
    assert len(lines) == 1
    assert compile_with() == (path, [])
    names = {path.name for path in (tmp_path / "cache").iterdir()}
    assert names == {".lock", library.compute_checksum()}


@pytest.mark.parametrize("name", ["PATH", library.SWITCH])
def test_without_a_compiler_or_by_a_variable_mindspores_kernels_are_used(name, monkeypatch):
    lines = []
    monkeypatch.setattr(log, "info", lambda line, *values: lines.append(line % values))
    monkeypatch.setenv(name, "0")
    assert type(choose_kernels(Run(device="CPU"), "CPU")) is Plain
    (line,) = lines
    assert ("g++" if name == "PATH" else library.SWITCH) in line


def test_kernels_are_compiled_again_for_other_instructions(monkeypatch, tmp_path):
    """Linux calls them flags on x86-64, and Features on aarch64."""
    monkeypatch.setattr(library, "CPUINFO", tmp_path / "cpuinfo")
    checksums = set()
    for line in ("flags\t\t: sse", "flags\t\t: sse avx", "Features\t: fp", "Features\t: fp sve"):
        library.CPUINFO.write_text(f"processor\t: 0\n{line}\nmore\t: none\n")
        checksums.add(library.compute_checksum())
    assert len(checksums) == 4


@pytest.mark.parametrize("cap", ["AVX2", ""])
def test_a_program_without_the_cap_learns_of_avx512(cap, monkeypatch, tmp_path, caplog):
    (tmp_path / "cpuinfo").write_text("flags : avx2 avx512f\n")
    monkeypatch.setattr(kernels, "CPUINFO", tmp_path / "cpuinfo")
    for name in CAPS:
        monkeypatch.delenv(name, raising=False)
    if cap:
        monkeypatch.setenv(CAPS[0], cap)
    kernels.warn_of_avx512.cache_clear()
    for _ in range(2):
        layers.BatchNorm2d(4)
    assert caplog.text.count("ONEDNN_MAX_CPU_ISA=AVX2") == (0 if cap else 1)
