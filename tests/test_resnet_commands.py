"""Commands of ResNet on JPEG files: packs of them, damaged files, a killed run, a conversion."""

import shutil
import signal
from pathlib import Path

import pytest

from resnet50.readers import read_records
from scripts.data.synthetic.pattern_images import PATTERNS
from tests.helpers import (
    assert_one_line_error,
    assert_same_weights,
    find_smoke_yaml,
    load_smoke_config,
    read_result,
    run_json,
    start_and_stop,
)

SMOKE = find_smoke_yaml("resnet50")


@pytest.fixture(scope="module")
def damaged(pictures, tmp_path_factory) -> Path:
    """The same images; one of each split, in the last class folder, is truncated."""
    root = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(pictures, root)
    for split in ("train", "val"):
        file = min((root / split / max(PATTERNS[:4])).iterdir())
        file.write_bytes(file.read_bytes()[:900])
    return root


@pytest.fixture(scope="module")
def small(pictures) -> list:
    """The arguments of a run of six steps an epoch that compiles in seconds."""
    arguments = ["--config_path", str(SMOKE), f"--data.root={pictures}", "--data.source=folder"]
    arguments += ["--data.augment=crop", "--model.num_classes=4", "--data.batch=4"]
    arguments += ["--data.workers=2", "--eval.batch=2", "--train.epochs=2", "--run.log_every=2"]
    return [*arguments, "--run.engine=mindspore"]


@pytest.fixture(scope="module")
def packed(pictures, tmp_path_factory) -> list[str]:
    """Settings to train on the images from two MindRecord files."""
    target = tmp_path_factory.mktemp("packed") / "train.mindrecord"
    source = ["--source", pictures / "train", "--target", target]
    result = run_json("scripts/data/pack_images.py", *source, "--shards", "2")
    assert (result["classes"], result["images"]) == (4, 24)
    return ["--data.source=mindrecord", f"--data.train={target}0"]


def test_a_training_on_packed_images_writes_their_classes(small, packed, tmp_path):
    result = run_json("resnet50/train.py", *small, *packed, f"--run.out={tmp_path / 'run'}")
    assert result["steps"] == 12
    assert (tmp_path / "run/class_folders.txt").read_text().split() == sorted(PATTERNS[:4])


def test_packs_have_the_labels_of_the_training(pictures, run_here, tmp_path):
    """By default those of the folder `train` beside the source; a class may be missing."""
    root = tmp_path / "data"
    shutil.copytree(pictures, root)
    classes = sorted(PATTERNS[:4])
    shutil.rmtree(root / "val" / classes[1])

    def pack(split: str, name: str, *more):
        arguments = ["--source", root / split, "--target", root / name, *more]
        return run_here("scripts/data/pack_images.py", *arguments)

    assert read_result(pack("train", "train.mindrecord"))["images"] == 24
    assert read_result(pack("val", "val.mindrecord"))["classes"] == 4
    settings = [f"data.root={root}", "data.source=mindrecord", "data.train=train.mindrecord"]
    cfg = load_smoke_config("resnet50", *settings, "data.test=val.mindrecord", "data.augment=crop")
    images = read_records(cfg, "test")
    folders = [Path(name).parent.name for name in images.list_names()]
    assert [classes[label] for label in images.labels] == folders
    contents = [(root / "val" / name).read_bytes() for name in images.list_names()]
    assert [image.load() for image in images] == contents
    read_result(pack("val", "wrong.mindrecord", "--classes", root / "val"))
    cfg = load_smoke_config(
        "resnet50", *settings, "data.test=wrong.mindrecord", "data.augment=crop"
    )
    with pytest.raises(ValueError, match="label 1 .*scripts/data"):
        read_records(cfg, "test")
    (root / "train" / classes[0]).rename(root / "train" / "other")
    assert_one_line_error(pack("val", "x"), classes[0], "--classes")
    assert not list(root.glob("x*"))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(small, damaged, tmp_path):
    """With a damaged image, random crops, mixup, LARS, EMA and a dynamic loss scale."""
    state = [f"--data.root={damaged}", "--data.max_unreadable=0.1"]
    state += ["--train.optimizer=lars", "--train.nesterov=false", "--train.lr=2"]
    state += ["--train.ema_decay=0.9", "--data.mixup=0.2"]
    state += ["--run.amp=O2", "--run.dynamic_loss_scale=true"]
    arguments = [*small, *state, "--run.save_steps=1"]
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    run_json("resnet50/train.py", *arguments, f"--run.out={whole}")
    start_and_stop(
        "resnet50/train.py", arguments=arguments, out=killed, steps=8, number=signal.SIGKILL
    )
    assert run_json("resnet50/train.py", *arguments, f"--run.out={killed}")["steps"] == 12
    assert_same_weights(whole / "resume.ckpt", killed / "resume.ckpt")
    assert_same_weights(whole / "epoch_002_ema.ckpt", killed / "epoch_002_ema.ckpt")
