"""Shift, pooling and streaming against the golden operator cases; settings that are refused."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from tests.golden_cases import generate_input, load_case
from tests.helpers import load_smoke_config
from tsm.export_cells import OnlineTSM
from tsm.model import TSM
from tsm.network import NETWORK
from tsm.shift import TemporalPool, shift_past
from tsm.tests.golden_case import TSMCase
from utils.inference.checkpoint import prepare_for_inference
from utils.inference.export import check_options, export
from utils.nn import amp
from utils.nn.kernels.plain import TemporalShift
from utils.tests.parity import mark_slow_except

GOLDEN = Path(__file__).parent / "golden"
OPS = load_case(GOLDEN / "tsm_data.json")["ops"]
VARIANTS = {case["name"]: case for case in load_case(GOLDEN / "variants.json")}


@pytest.mark.parametrize("case", OPS["shift"], ids=lambda c: str(c["input_shape"]))
def test_the_shift_and_its_gradient_equal_the_originals(case):
    x = Tensor(generate_input(case["input_seed"], case["input_shape"]))
    weight = Tensor(generate_input(case["grad_seed"], case["input_shape"]))

    def weighted(x):
        y = TemporalShift(case["n_segment"], x.shape[1] // case["shift_div"])(x)
        return (y * weight).sum(), y

    (_, y), grad = ms.value_and_grad(weighted, has_aux=True)(x)
    np.testing.assert_allclose(y.asnumpy(), case["output"], rtol=1e-6)
    np.testing.assert_allclose(grad.asnumpy(), case["input_grad"], rtol=1e-6)


@pytest.mark.parametrize("case", OPS["temporal_pool"], ids=lambda c: str(c["input_shape"]))
def test_the_temporal_pool_equals_the_original(case):
    x = Tensor(generate_input(case["input_seed"], case["input_shape"]))
    y = TemporalPool(ms.nn.Identity(), case["n_segment"])(x).asnumpy()
    np.testing.assert_allclose(y, case["output"], rtol=1e-6)


def test_streaming_equals_the_offline_past_shift():
    case = OPS["streaming_shift"][0]
    x = generate_input(case["input_seed"], case["input_shape"])
    shifted = shift_past(Tensor(x), len(x), x.shape[1] // 8).asnumpy()
    np.testing.assert_allclose(shifted, case["shifted"], rtol=1e-6)


@pytest.mark.usefixtures("eager")
def test_a_network_of_differences_sees_each_frame_minus_the_one_before():
    pixels = np.random.RandomState(0).randint(0, 256, (2, 4, 9, 32, 32)).astype(np.uint8)
    settings = {"segments": 4, "arch": "resnet18", "first_width": 8, "frames_per_segment": 2}
    differences = TSM(3, modality="rgb_diff", **settings).set_train(False)
    frames = TSM(3, **settings).set_train(False)
    ms.load_param_into_net(frames, differences.parameters_dict())
    expected = np.diff(pixels.reshape(2, 4, 3, 3, 32, 32) / 255.0, axis=2).reshape(2, 4, 6, 32, 32)
    expected = frames(Tensor(expected.astype(np.float32))).asnumpy()  # float32 is not normalised
    np.testing.assert_allclose(differences(Tensor(pixels)).asnumpy(), expected, 1e-4, 1e-6)


UNIDIRECTIONAL = [name for name in VARIANTS if name.endswith("unidirectional")]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", mark_slow_except(UNIDIRECTIONAL, "mobilenetv2_8f_unidirectional"))
def test_streaming_scores_equal_the_recorded_frame_scores(name):
    """One frame at a time, with buffers, against the recorded frame scores."""
    case = VARIANTS[name]
    clips = generate_input(case["input_seed"], case["input_shape"])  # (N, T, 3, H, W)
    online = OnlineTSM(TSMCase(case).build_model()).set_train(False)
    for clip, expected in zip(clips, np.array(case["eval"]["frame_scores64"])):
        buffers = online.initial_buffers(*clip.shape[-2:])
        for frame, scores in zip(clip, expected):
            output, *buffers = online(Tensor(frame[None]), *buffers)
            np.testing.assert_allclose(output.asnumpy()[0], scores, atol=1e-4)


def test_an_exported_step_gives_the_recorded_frame_scores(tmp_path):
    """In ONNX Runtime alone, with the outputs of a step as inputs of the next."""
    onnxruntime = pytest.importorskip("onnxruntime")
    case = VARIANTS["mobilenetv2_8f_unidirectional"]
    clips = generate_input(case["input_seed"], case["input_shape"])
    sides = [f"data.crop={clips.shape[-1]}", f"data.resize={clips.shape[-1]}"]
    spec = NETWORK.describe_export(load_smoke_config("tsm", "model.online=true", *sides), True)
    file = tmp_path / "step.onnx"
    options = check_options(1, format="onnx", target=file, input="float32", online=True)

    def load(level: str, rewrite=None):
        return prepare_for_inference(TSMCase(case).build_model(), level, rewrite)

    export(load, spec, options, "tsm")
    session = onnxruntime.InferenceSession(file)
    names = [source.name for source in session.get_inputs()]
    assert (names[:2], len(names)) == (["input", "buffer_0"], 11)
    for clip, expected in zip(clips, np.array(case["eval"]["frame_scores64"])):
        buffers = [np.zeros(source.shape, np.float32) for source in session.get_inputs()[1:]]
        for frame, scores in zip(clip, expected):
            output, *buffers = session.run(None, dict(zip(names, [frame[None], *buffers])))
            np.testing.assert_allclose(output[0], scores, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arch": "resnet99"}, "model.arch"),
        ({"arch": "mobilenetv2", "shift_place": "block"}, "mobilenetv2"),
        ({"segments": 7, "temporal_pool": True}, "data.segments"),
        ({"before_softmax": False, "consensus": "identity"}, "model.consensus"),
    ],
)
def test_incompatible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TSM(**{"num_classes": 3, "segments": 8, **settings})


@pytest.mark.usefixtures("eager")
def test_pixels_are_normalised_and_scores_are_float32_in_mixed_precision():
    pixels = np.random.RandomState(0).randint(0, 256, (1, 2, 3, 32, 32)).astype(np.uint8)
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
    std = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    clip = Tensor(((pixels / np.float32(255) - mean) / std).astype(np.float32))
    exact = TSM(3, segments=2, arch="resnet18", first_width=8).set_train(False)
    expected = exact(clip).asnumpy()
    np.testing.assert_allclose(exact(Tensor(pixels)).asnumpy(), expected, atol=1e-6)
    for level in ("O1", "O2", "O3"):
        net = TSM(3, segments=2, arch="resnet18", first_width=8).set_train(False)
        for mine, original in zip(net.get_parameters(), exact.get_parameters()):
            mine.set_data(original.value())
        half = amp.cast(net, level)
        scores = half(clip)
        assert scores.dtype == ms.float32
        assert [p.name for p in half.get_parameters()] == [p.name for p in exact.get_parameters()]
        error = np.abs(scores.asnumpy() - expected).max()
        assert 0 < error < 0.02 * np.abs(expected).max(), level
