"""Checkpoints that describe themselves: written by a training, read without a config file."""

import json
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest

from tests.helpers import load_smoke_config
from tsm.network import NETWORK
from utils.files import ROOT
from utils.inference.checkpoint import build_network, load_network
from utils.load_config import to_dict
from utils.weights.checkpoint import save, weights_of
from utils.weights.checkpoint_file import read_checkpoint
from utils.weights.description import describe, drop_folders, parse, read_description

NAMES = ["left", "right", "up", "下", "grow", "shrink", "clockwise", "-"]


@pytest.fixture
def described(tmp_path):
    """(network, config, file) of a small TSM with random weights."""
    cfg = load_smoke_config("tsm", "model.first_width=8", "data.crop=32", f"run.out={tmp_path}/a")
    net = NETWORK.build_model(**cfg.model_arguments())
    path = tmp_path / "a.ckpt"
    metrics = {"top1": 0.5, "views": "2x3"}
    description = describe("tsm", cfg, classes={"": NAMES}, metrics=metrics)
    save(path, weights_of(net), description=description)
    return net, cfg, path


def test_programs_that_take_every_entry_for_an_array_keep_the_description(described):
    _, _, path = described
    parameters = ms.load_checkpoint(str(path))
    assert {name: value.asnumpy() for name, value in parameters.items()}["zoo"].dtype == np.uint8
    entries = [{"name": name, "data": value} for name, value in parameters.items()]
    halves = [{"name": e["name"], "data": e["data"].astype(ms.float16)} for e in entries]
    for saved in (entries, halves):
        ms.save_checkpoint(saved, str(path.with_name("again.ckpt")))
        again = read_checkpoint(path.with_name("again.ckpt"))
        assert read_description(again) == read_description(read_checkpoint(path))


def test_a_network_has_no_numbers_before_the_shapes_of_its_file_are_compared(described):
    """A small file may have the settings of a huge network."""
    _, cfg, path = described
    huge = replace(cfg, model=replace(cfg.model, arch="resnet152", first_width=1024))
    weights = weights_of(build_network(NETWORK, huge))
    assert all(parameter.has_init for parameter in weights.values())
    with pytest.raises(ValueError, match=r"a\.ckpt does not fit"):
        load_network(NETWORK, huge, read_checkpoint(path))


def test_a_new_classifier_gets_its_first_numbers(described):
    net, cfg, path = described
    weights = weights_of(net)
    save(path, {name: p for name, p in weights.items() if ".fc." not in name})
    loaded = weights_of(load_network(NETWORK, cfg, read_checkpoint(path), new_head=True))
    assert {name for name in weights if ".fc." in name}
    for name, parameter in loaded.items():
        is_new = name.endswith(".fc.weight")
        assert (parameter.asnumpy() == weights[name].asnumpy()).all() != is_new


def test_a_file_of_an_older_version_has_its_description_as_a_string(described):
    net, _, path = described
    own = read_description(read_checkpoint(path))
    notes = {"zoo": own.to_text(), "model.padding": "same"}
    ms.save_checkpoint(net, str(path.with_name("old.ckpt")), append_dict=notes)
    assert read_description(read_checkpoint(path.with_name("old.ckpt"))) == own
    assert read_checkpoint(path.with_name("old.ckpt")).texts["model.padding"] == "same"


def test_plain_mindspore_loads_the_file(described):
    net, cfg, path = described
    other = NETWORK.build_model(**cfg.model_arguments())
    missing, _ = ms.load_param_into_net(other, ms.load_checkpoint(str(path)), strict_load=True)
    assert not missing
    for a, b in zip(net.get_parameters(), other.get_parameters()):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def change(**values):
    description = {"network": "tsm", "name": "a", "settings": {"model": {}}}
    return json.dumps({**description, **values})


DAMAGED = ["", "{", "[]", "null", "[" * 100_000, "{}", "x" * (1 << 23)]
DAMAGED += [change(network=3), change(network="\x1b[31m"), change(settings=[])]
DAMAGED += [change(settings={"model": 3}), change(classes={"": "left"}), change(classes={"": [1]})]
DAMAGED += [change(metrics=[]), change(source=None), change(name="../a"), change(name="/tmp/a")]


def test_class_names_of_any_bytes_are_written_and_printed_safely(described):
    """A class folder may be named by any bytes, and a file may come from anybody."""
    net, cfg, path = described
    names = ["\udcff", "\x1b[31m", *NAMES[2:]]
    save(path, weights_of(net), description=describe("tsm", cfg, classes={"": names}))
    assert read_description(read_checkpoint(path)).classes[""] == ["\\xff", "\\x1b[31m", *NAMES[2:]]


def test_a_shared_description_names_no_folder_of_this_machine():
    paths = {"root": f"{ROOT}/data/sets", "lists": ["/home/me/lists/test.txt"]}
    paths |= {"profile": f"{ROOT}/../x", "videos": "videos/a", "top": "/"}
    expected = {"root": "data/sets", "lists": ["test.txt"], "profile": "x"}
    assert drop_folders(paths) == {**expected, "videos": "videos/a", "top": "."}


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_description_is_one_line(text, tmp_path):
    with pytest.raises(ValueError, match=r"a.ckpt: its description") as error:
        parse(text, tmp_path / "a.ckpt")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"model": {"unknown": 1}}, "unknown"),
        ({"model": {"num_classes": "$(id)"}}, "num_classes"),
        ({"model": {"num_classes": 10**7}}, "num_classes"),
        ({"eval": {"batch": 10**9}}, "eval.batch"),
        ({"data": {"crop": 4000, "resize": 4000}}, "4000 pixels"),
    ],
)
def test_settings_of_a_description_are_checked(settings, word, tmp_path):
    own = to_dict(load_smoke_config("tsm"))
    merged = {**own, **{section: {**own.get(section, {}), **v} for section, v in settings.items()}}
    description = parse(change(settings=merged), tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=word):
        description.build_config(NETWORK.config, tmp_path / "a.ckpt", [])
