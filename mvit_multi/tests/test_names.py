"""MViT: published counts, conversion, initialisation, mixing in the graph."""

import numpy as np
import pytest
from mindspore import Tensor

from mvit_multi.dataset import build_target_row
from mvit_multi.loss import MixClips
from mvit_multi.model import MEAN, STD_OF_PIXELS, MViT
from mvit_multi.network import NETWORK
from mvit_multi.tests.golden_case import MViTCase
from tests.golden_cases import generate_state_dict, get_shapes, load_case, read_expected_scores
from utils.data.mixing import Mix, make_cutmix
from utils.files import ROOT
from utils.nn.dropout import Dropout
from utils.nn.layers import Normalize, resize_table
from utils.tests.parity import assert_scores, without_values
from utils.weights.convert import convert

CONFIGS = ROOT / "mvit_multi" / "configs"
GOLDEN = ROOT / "mvit_multi" / "tests" / "golden"
TOY = {"frames": 4, "crop": 32, "depth": 3, "dim": 8, "stage_starts": (1,), "kv_stride": 4}
ONE = {"datasets": ("kinetics",), "num_classes": (5,), "single_head": True, "expander": False}
THREE = {"datasets": ("kinetics", "mit", "ssv2"), "num_classes": (5, 4, 3)}


def test_pretrained_weights_are_used_except_those_of_the_head():
    """For the released networks these are 516 of 518 tensors; names do not depend on the size."""
    one = MViT(**TOY, **ONE)
    three = MViT(**TOY, **THREE)
    source = generate_state_dict(one)
    converted = convert(source, shapes=get_shapes(three), network=NETWORK, new_head=True)
    assert sorted(converted.dropped) == ["head.projection.bias", "head.projection.weight"]
    assert len(converted.arrays) == len(one.trainable_params()) - 2
    assert len(converted.missing) == 22  # 12 of heads, 6 projections, 4 of the expander
    with pytest.raises(ValueError, match="--new_head"):
        convert(generate_state_dict(one), get_shapes(three), NETWORK)


@pytest.mark.usefixtures("eager")
def test_torchvisions_weights_give_torchvisions_scores():
    """The recorded scores are of torchvision's own network, with weights made from its names."""
    case = load_case(GOLDEN / "torchvision_mvit_v2_small.json")
    net = MViTCase(case).build_model()
    expected = read_expected_scores(case)
    assert_scores(net, case=case, expected=expected, limit=1e-5 * np.ptp(expected))


@without_values
def test_torchvisions_weights_need_the_settings_of_its_network():
    """Other settings of the network, and weights of version 1, are refused."""
    case = load_case(GOLDEN / "torchvision_mvit_v2_small.json")
    state = {name: np.zeros(shape, np.float32) for name, shape, _ in case["manifest"]}
    arguments = MViTCase(case).model_arguments()
    for change, message in (
        ({"variant": "multitrain"}, "unknown blocks.1.proj.bias.*other settings under model"),
        ({"single_head": False}, "unknown head.projection.bias"),
    ):
        shapes = get_shapes(MViT(**{**arguments, **change}))
        with pytest.raises(ValueError, match=message):
            convert(state, shapes, NETWORK)
    older = {**state, "pos_encoding.spatial_pos": np.zeros((144, 16), np.float32)}
    with pytest.raises(ValueError, match="MViT of version 1"):
        convert(older, get_shapes(MViT(**arguments)), NETWORK)


def test_relative_tables_of_another_crop_are_resized():
    """Half-pixel centres, ends repeated: values of PyTorch's linear interpolation of 0, 1, 2."""
    small, large = (MViT(**{**TOY, "crop": crop}, **ONE, variant="pyslowfast") for crop in (32, 48))
    source = generate_state_dict(small)
    name = "blocks.0.attn.rel_pos_h"
    table = convert(source, get_shapes(large), NETWORK).arrays[name]
    assert table.shape == (23, 8)
    np.testing.assert_allclose(table[[0, -1]], source[name][[0, -1]])
    expected = [0, 0.4, 1.0, 1.6, 2.0]  # at 0.6 * (i + 0.5) - 0.5, cut off below 0 and above 2
    np.testing.assert_allclose(resize_table(np.eye(3), 5) @ np.arange(3.0), expected, atol=1e-6)
    np.testing.assert_array_equal(resize_table(np.eye(4), 4), np.eye(4))


def test_a_table_of_repeated_rows_needs_no_memory():
    """A file of 1 kB can contain such a table, with strides of 0."""
    net = MViT(**TOY, **ONE, variant="pyslowfast")
    name = "blocks.0.attn.rel_pos_h"
    source = generate_state_dict(net)
    source[name] = np.broadcast_to(np.arange(8, dtype=np.float32), (1 << 40, 8))
    table = convert(source, get_shapes(net), NETWORK).arrays[name]
    np.testing.assert_array_equal(table, [np.arange(8)] * len(table))
    for shape in ((1 << 40, 9), (0, 8)):
        source[name] = np.broadcast_to(np.float32(0), shape)
        with pytest.raises(ValueError, match=rf"rel_pos_h is \[{shape[0]}, {shape[1]}\] instead"):
            convert(source, get_shapes(net), NETWORK)


def test_initial_weights_follow_the_original():
    net = MViT(**{**TOY, "dim": 64}, **THREE)
    assert net.blocks[0].mlp.fc1.weight.asnumpy().std() == pytest.approx(0.02, rel=0.05)
    assert np.abs(net.patch_embed.proj.weight.asnumpy()).max() <= 441**-0.5
    assert np.abs(net.blocks[0].attn.pool_q.weight.asnumpy()).max() <= 27**-0.5
    assert not net.blocks[0].mlp.fc1.bias.asnumpy().any()
    plain = MViT(**{**TOY, "dim": 64}, **ONE, variant="pyslowfast")
    assert (plain.blocks[0].norm1.beta.asnumpy() == np.float32(0.02)).all()
    assert plain.patch_embed.proj.weight.asnumpy().std() == pytest.approx(0.02, rel=0.05)


@without_values
def test_drop_path_increases_linearly_and_dropout_follows_the_recipe():
    case = load_case(CONFIGS.parent / "tests" / "golden" / "mvit_data.json")["drop_path"]
    settings = {**TOY, "depth": case["depth"], "drop_path": case["rate"], "dropout": 0.5}
    net = MViT(**settings, **THREE)
    drops = {n: cell.p for n, cell in net.cells_and_names() if isinstance(cell, Dropout)}
    for i, rate in enumerate(case["per_block"]):
        assert [drops[f"blocks.{i}.drop{k}"] for k in (1, 2)] == pytest.approx([rate] * 2)
    heads = [p for name, p in drops.items() if name.startswith("head")]
    assert heads == [0.5] * 6  # between the layers of a head, and on its scores


@pytest.mark.parametrize(
    "mix", [Mix(0.7), make_cutmix(0.6, y=2, x=5, height=6, width=8)], ids=["mixup", "cutmix"]
)
def test_a_batch_is_mixed_with_its_reverse(mix):
    """Cutmix copies a box; for mixup the box is empty."""
    clip = np.random.RandomState(0).randint(0, 255, (2, 2, 3, 2, 6, 8)).astype(np.uint8)
    target = np.stack([np.stack([build_target_row(0, 0, *mix)] * 2)] * 2)
    normalize = Normalize(MEAN, std=STD_OF_PIXELS, channels=3, axis=1, rank=5)
    result = MixClips(normalize, True)(Tensor(clip), Tensor(target)).asnumpy()
    x = (clip.reshape(4, 3, 2, 6, 8) / 255 - 0.45) / 0.225
    y0, y1, x0, x1 = mix.box
    expected = x.copy() if any(mix.box) else 0.7 * x + 0.3 * x[::-1]
    expected[..., y0:y1, x0:x1] = x[::-1, ..., y0:y1, x0:x1]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
