"""Class folders have the labels of the training in every split; what is no image is counted."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from resnet50.config import Config
from resnet50.labels import ImageLabelSpace
from resnet50.network import NETWORK
from resnet50.readers import FILE, ImageFolder, find_classes, read_folder_names, read_records
from utils.files import ROOT
from utils.inference.checkpoint import assign_class_names
from utils.load_config import load_config
from utils.runtime import Runtime

YAML = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_tutorial.yaml"
CLASSES = ["ant", "bee", "cat"]


@pytest.fixture
def root(tmp_path) -> Path:
    """Two images of each class in train, of ant and cat in val; the second ends in .WEBP."""
    for split, classes in (("train", CLASSES), ("val", ["ant", "cat"])):
        for k, name in enumerate(classes):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            image = Image.fromarray(np.full((8, 8, 3), [len(split), 40 * k, k], np.uint8))
            image.save(folder / "a.png")
            image.save(folder / "B.WEBP", lossless=True)
    return tmp_path


def make_config(root: Path, *settings: str) -> Config:
    return load_config(Config, YAML, [f"data.root={root}", "model.num_classes=3", *settings])


def list_samples(root: Path, *settings: str, run: Path = None, names=()) -> list[str]:
    cfg = make_config(root, *settings)
    space = ImageLabelSpace(cfg)
    space.run_folder, space.own_names = run, names
    images = read_records(cfg, "test", [space])
    return [f"{name} {label}" for name, label in zip(images.list_names(), images.labels)]


RIGHT = ["ant/B.WEBP 0", "ant/a.png 0", "cat/B.WEBP 2", "cat/a.png 2"]


@pytest.mark.parametrize("has_train", [True, False])
@pytest.mark.parametrize("source", ["run", "labels.txt"])
def test_a_split_that_lacks_a_class_keeps_the_labels(has_train, source, root, tmp_path):
    """By the training folder, the class list of the run, or labels.txt."""
    if not has_train:
        shutil.rmtree(root / "train")
    if source == "labels.txt":
        (root / "labels.txt").write_text("cat\nbee\nant\n")
        assert list_samples(root) == RIGHT
        return
    run = tmp_path / "run"
    run.mkdir()
    ImageFolder(root / "val", CLASSES).write_classes(run, Runtime())
    assert list_samples(root, run=run) == RIGHT
    (head,) = NETWORK.list_label_spaces(make_config(root))
    assign_class_names([head], "", run / "x.ckpt")
    assert head.names == CLASSES


def test_folders_have_the_labels_of_the_checkpoint(root):
    """Not those of training folders that lie beside them; unless it has other names."""
    shutil.rmtree(root / "train" / "bee")
    assert list_samples(root, names=CLASSES) == RIGHT
    assert list_samples(root, names=["A", "B", "C"])[2] == "cat/B.WEBP 1"


def test_folders_alone_do_not_say_which_classes_they_are(root):
    shutil.rmtree(root / "train")
    with pytest.raises(ValueError, match=r"data.test: .*model.num_classes"):
        list_samples(root)
    (head,) = NETWORK.list_label_spaces(make_config(root))
    assign_class_names([head], "", Path("x.ckpt"))
    assert list(head.names) == []
    assert list_samples(root, "model.num_classes=2")[2] == "cat/B.WEBP 1"
    # As many folders as classes do not say their order, if the checkpoint has other names.
    with pytest.raises(ValueError, match=r"data.test: .*data.train"):
        list_samples(root, "model.num_classes=2", names=["Katze", "Ameise"])
    assert list_samples(root, "model.num_classes=2", names=["cat", "ant"])[2] == "cat/B.WEBP 0"


def test_imagenet_has_a_class_less_than_some_networks(tmp_path):
    folders = [f"n{k:08d}" for k in range(1000)]
    for name in folders:
        (tmp_path / "val" / name).mkdir(parents=True)
    data = make_config(tmp_path).data
    assert find_classes(data, num_classes=1001) == folders
    assert find_classes(data, num_classes=1002) == []


def test_a_folder_that_the_training_lacks_is_an_error(root):
    (root / "val" / "dog").mkdir()
    assert list_samples(root) == RIGHT, "an empty folder is no class"
    shutil.copy(root / "val" / "ant" / "a.png", root / "val" / "dog")
    with pytest.raises(ValueError, match="class folder 'dog'"):
        list_samples(root)


@pytest.mark.parametrize("name", ["__MACOSX", "@eaDir", ".ipynb_checkpoints"])
def test_what_is_no_image_of_a_class_is_counted(name, root, log_messages):
    for folder in (root / "val", root / "train", root / "val" / "ant"):
        shutil.copytree(root / "train" / "ant", folder / name)
    (root / "val" / "cat" / "x.heic").touch()
    (root / "val" / "ant" / "._a.png").touch()
    assert list_samples(root) == RIGHT
    (line,) = [line for line in log_messages if "left out" in line]
    assert f"left out, no images in class folders (4): {name}, ant/" in line
    assert any("classes without images (1): bee" in line for line in log_messages)
    (head,) = NETWORK.list_label_spaces(make_config(root))
    assert head.list_names() == CLASSES


def test_names_in_another_order_are_not_those_of_the_labels(root):
    """labels.txt names the classes, unless it has the names of the folders."""
    for text, names in (("cat\nbee\nant\n", CLASSES), ("A\nB\nC\n", ["A", "B", "C"])):
        (root / "labels.txt").write_text(text)
        (head,) = NETWORK.list_label_spaces(make_config(root))
        assert head.list_names() == names


def test_a_run_of_other_classes_is_not_resumed(tmp_path):
    names = [" a", "b\u2028\r", "c\udce9"]
    for rt in (Runtime(), Runtime(1, 2)):
        ImageFolder(tmp_path, names).write_classes(tmp_path, rt)
    assert read_folder_names(tmp_path / FILE) == names
    for other, name in ((["a", "b"], "run.out"), (["a\n", "b"], "data.train")):
        with pytest.raises(ValueError, match=name):
            ImageFolder(tmp_path, other).write_classes(tmp_path, Runtime(1, 2))
