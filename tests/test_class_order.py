"""Lists and folders of a test or a validation have the classes of the network, by their names."""

import pytest
from mindspore import Parameter, Tensor

from tests.toy_recipes import draw_samples, load_toy_config
from utils.data.annotation_file import AnnotationFile, read_list
from utils.evaluate.label_space import list_class_names
from utils.networks import find_network, list_networks
from utils.runtime import Runtime
from utils.train.plan import check_kept_classes
from utils.weights import checkpoint
from utils.weights.checkpoint_file import read_checkpoint
from utils.weights.description import describe

NAMES = ["up", "left", "grow"]  # of a network


def read_labels(folder, lines: list[str], names: list[str], **settings) -> list:
    """The labels of the lines of a list with these names."""
    (folder / "a.mp4").touch()
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "test.txt").write_text("".join(f"a.mp4 {line}\n" for line in lines))
    file = AnnotationFile("test.txt", folder / "test.txt", folder, "video", 3, class_names=NAMES)
    return [record.label for record in read_list(file._replace(**settings))]


@pytest.mark.parametrize(
    ("names", "lines", "labels"),
    [
        (["grow", "up"], ["0", "1"], [2, 0]),
        (["left", "up", "grow"], ["1 2 0", "0 2 1"], [1, 0]),
        (["spin", "grow", "up", "left"], ["3"], [1]),
    ],
    ids=["a class fewer", "two exchanged, segments", "another one, without a video"],
)
def test_a_list_gets_the_labels_of_the_network_by_name(names, lines, labels, tmp_path):
    assert read_labels(tmp_path, lines, names) == labels
    assert read_labels(tmp_path, ["0"], names, class_names=[]) == [0], "no names to compare"


def test_each_of_several_labels_is_matched(tmp_path):
    names = ["left", "up", "grow"]
    assert read_labels(tmp_path, ["1,2", "-"], names, multi_label=True) == [(0, 2), ()]


@pytest.mark.parametrize(
    ("names", "word"),
    [(["Left", "up"], "'Left'.* nearest: left"), (["up", "up"], "'up'"), (["spin"], "'spin'")],
)
def test_a_class_that_is_not_one_of_the_network_is_refused(names, word, tmp_path):
    with pytest.raises(ValueError, match=f"labels.txt {word}"):
        read_labels(tmp_path, ["0"], names)


@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize("name", list_networks())
def test_every_network_matches_lists_by_name(name, split, tmp_path):
    """The other list has its classes in the reverse order."""
    draw_samples(name, tmp_path)
    settings = [f"data.root={tmp_path}"]
    if name == "resnet50":
        settings += ["data.source=list", "data.train=test.txt", "data.test=test.txt"]
        (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
        images = enumerate(sorted(tmp_path.glob("val/*/*.jpg")))
        (tmp_path / "test.txt").write_text("".join(f"{path} {k}\n" for k, path in images))
    network = find_network(name)
    cfg = load_toy_config(name, *settings)
    spaces = network.list_label_spaces(cfg)
    assert list_class_names(spaces, tmp_path / "run")

    def read_rows() -> list:
        rows = network.build_eval_rows(cfg, Runtime(), spaces, split)
        return [[record.label for record in part.records] for part in rows.values()]

    before = read_rows()
    for path in tmp_path.rglob("labels.txt"):
        names = path.read_text().splitlines()
        path.write_text("\n".join(names[::-1]))
        for samples in {*path.parent.glob("test.*"), *path.parent.glob("val.*")}:
            lines = [line.rsplit(" ", 1) for line in samples.read_text().splitlines()]
            text = "".join(f"{video} {len(names) - 1 - int(k)}\n" for video, k in lines)
            samples.write_text(text)
    assert read_rows() == before


def test_a_network_has_the_names_of_its_training_list(tmp_path):
    for split, names in (("train", "a\nb\n"), ("test", "b\na\n")):
        (tmp_path / split).mkdir()
        (tmp_path / split / "labels.txt").write_text(names)
    lists = ["data.train_list=train/x.txt", "data.test_list=test/x.txt"]
    lists += ["model.num_classes=2", "data.swap_labels=[]"]
    cfg = load_toy_config("tsm", f"data.root={tmp_path}", *lists)
    (space,) = find_network("tsm").list_label_spaces(cfg)
    assert space.list_names() == ["a", "b"]


def test_a_kept_classifier_has_the_order_of_the_training_list(tmp_path):
    """Other names may stand for the same classes; the same ones at another label do not."""
    path = tmp_path / "a.ckpt"
    weights = {"a": Parameter(Tensor([1.0]), name="a")}
    description = describe("tsm", load_toy_config("tsm"), classes={"": NAMES})
    checkpoint.save(path, weights, description=description)
    file = read_checkpoint(path)
    check_kept_classes(file, {"": ["hoch", "left", "grow"]})
    with pytest.raises(ValueError, match="train.pretrained"):
        check_kept_classes(file, {"": ["left", "up", "grow"]})
