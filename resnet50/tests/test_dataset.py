"""The image pipeline: every image once, the same crops again, PIL's pixels in evaluation."""

import io
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.mindrecord import FileWriter
from PIL import Image

from resnet50.config import Config
from resnet50.dataset import EvalSource, TrainSource, read_records, train_sampler
from resnet50.images import center_view, placement
from resnet50.predict import heads
from resnet50.readers import describe, open_reader
from utils.config import ROOT, load_config
from utils.data.synthetic.pattern_images import draw_cifar10
from utils.runtime import Runtime
from utils.testing.golden import load_case

CASES = load_case(Path(__file__).parent / "golden" / "resnet50_data.json")["eval_preprocessing"]
FOLDER = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_tutorial.yaml"
ALONE = Runtime()
SMOKE = ROOT / "resnet50" / "configs" / "resnet50_smoke.yaml"


def picture(rng: np.random.RandomState, width: int, height: int) -> Image.Image:
    """Smooth colours, as a photograph has them."""
    small = Image.fromarray(rng.randint(0, 256, (6, 8, 3)).astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of five training and three test images; image i has its number as its size."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.RandomState(0)
    for split, count in (("train", 5), ("val", 3)):
        for k in range(3):
            (root / split / f"class_{k}").mkdir(parents=True)
            for i in range(count):
                image = picture(rng, 50 + 10 * k + i, 40 + i)
                image.save(root / split / f"class_{k}" / f"{i}.JPEG", quality=95)
    return root


@pytest.fixture(scope="module")
def mindrecord(folder) -> Path:
    """The same images in MindRecord files."""
    for split, name in (("train", "train.mindrecord"), ("val", "val.mindrecord")):
        writer = FileWriter(str(folder / name), shard_num=1, overwrite=True)
        writer.add_schema({"image": {"type": "bytes"}, "label": {"type": "int32"}})
        for k in range(3):
            for file in sorted((folder / split / f"class_{k}").iterdir()):
                writer.write_raw_data([{"image": file.read_bytes(), "label": k}])
        writer.commit()
    return folder


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("cifar")
    draw_cifar10(root, seed=0, distinct=20)
    return root


def settings(root: Path, *more: str, path: Path = FOLDER) -> Config:
    small = ["data.resize=40", "data.crop=32", "data.batch=4", "data.workers=2", "eval.batch=4"]
    return load_config(Config, path, [f"data.root={root}", *small, *more])


def batches(cfg: Config, rt: Runtime = ALONE, epochs: int = 2, skip: int = 0) -> list:
    samples = read_records(cfg, "train")
    order = train_sampler(cfg, samples, rt)
    rows = TrainSource(samples, cfg, order, epochs, skip).dataset()
    return list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))


def assert_same(first: list, second: list) -> None:
    assert len(first) == len(second) > 0
    for (image, label), (image_again, label_again) in zip(first, second):
        np.testing.assert_array_equal(image, image_again)
        np.testing.assert_array_equal(label, label_again)


def test_a_run_that_goes_on_sees_the_same_crops(folder):
    whole = batches(settings(folder))
    assert len(whole) == 2 * (15 // 4)
    assert whole[0][0].shape == (4, 3, 32, 32)
    assert whole[0][0].dtype == np.uint8
    assert_same(batches(settings(folder), skip=2), whole[2:])
    assert_same(batches(settings(folder), skip=4), whole[4:])
    assert not np.array_equal(whole[0][0], whole[3][0]), "another epoch, another draw"


def test_mindrecord_gives_what_the_folder_gives(mindrecord):
    record = ["data.source=mindrecord", "data.train=train.mindrecord", "data.test=val.mindrecord"]
    plain = ["data.augment=none"]
    assert_same(
        batches(settings(mindrecord, *plain)), batches(settings(mindrecord, *record, *plain))
    )
    assert_same(evaluated(settings(mindrecord)), evaluated(settings(mindrecord, *record)))


def test_images_are_called_by_their_files_in_minddatas_order(tmp_path):
    names = ["10.png", "9.PNG", "A.png", "b.png", "ß.png", "x/deep.png"]
    for k, name in enumerate(f"{folder}/{name}" for folder in ("b", "Z", "é") for name in names):
        path = tmp_path / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(np.random.RandomState(k), 20, 20).save(path, format="png")
    (tmp_path / "val" / "b" / "notes.txt").touch()
    cfg = settings(tmp_path, "model.num_classes=4")
    count = read_records(cfg, "test")
    known = describe(cfg.data, "test", count, heads(cfg)[0])
    assert known.classes == ["Z", "b", "é", ""]
    rows = open_reader(cfg.data, "test", range(count), 1)
    found = list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(found) == len(known.paths) == 15
    for (image, _), path in zip(found, known.paths):
        assert image.tobytes() == (tmp_path / "val" / path).read_bytes()


def test_images_without_files_are_called_by_their_numbers(mindrecord, cifar):
    record = ["data.source=mindrecord", "data.test=val.mindrecord"]
    for cfg in (settings(mindrecord, *record), settings(cifar, path=SMOKE)):
        count = read_records(cfg, "test")
        known = describe(cfg.data, "test", count, heads(cfg)[0])
        assert known.paths == [str(k) for k in range(count)]
    assert len(known.classes) == 10


def test_two_ranks_see_what_one_sees_with_twice_the_batch(folder):
    plain = ["data.augment=none"]
    one = batches(settings(folder, *plain, "data.batch=4"), epochs=1)
    ranks = [batches(settings(folder, *plain, "data.batch=2"), Runtime(r, 2), 1) for r in (0, 1)]
    for whole, first, second in zip(one, *ranks):
        np.testing.assert_array_equal(whole[0], np.concatenate([first[0], second[0]]))
        np.testing.assert_array_equal(whole[1], np.concatenate([first[1], second[1]]))


def evaluated(cfg: Config, rt: Runtime = ALONE) -> list:
    source = EvalSource(read_records(cfg, "test"), cfg, rt)
    found = list(source.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(found) == source.get_dataset_size()
    return [(image[valid], label[valid]) for image, label, valid in found if valid.any()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_test_image_counts_once_on_any_number_of_ranks(folder, size):
    alone = np.concatenate([image for image, _ in evaluated(settings(folder))])
    assert alone.shape == (9, 1, 3, 32, 32)
    parts = [evaluated(settings(folder), Runtime(rank, size)) for rank in range(size)]
    together = np.concatenate([image for part in parts for image, _ in part])
    assert sorted(x.tobytes() for x in together) == sorted(x.tobytes() for x in alone)


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c["resize_short_side"]))
def test_evaluation_looks_where_the_original_looks(case):
    for each in case["cases"]:
        place = placement(each["image_w"], each["image_h"], case["resize_short_side"], case["crop"])
        assert place == (each["scaled_w"], each["scaled_h"], each["crop_x"], each["crop_y"])


def test_evaluation_has_pils_pixels():
    """Against PIL's own resize of the decoded image."""
    image, file = picture(np.random.RandomState(1), 500, 375), io.BytesIO()
    image.save(file, "JPEG", quality=95)
    view = center_view(np.frombuffer(file.getvalue(), np.uint8), 256, 224)
    expected = Image.open(io.BytesIO(file.getvalue())).resize((341, 256), Image.BILINEAR)
    expected = np.asarray(expected.crop((58, 16, 282, 240))).transpose(2, 0, 1)
    assert np.abs(view.astype(int) - expected).max() <= 1


def test_cifar_images_are_padded_cropped_and_flipped(cifar):
    cfg = settings(cifar, "data.resize=32", path=SMOKE)
    samples = read_records(cfg, "train")
    assert samples == 50_000
    source = TrainSource(samples, cfg, train_sampler(cfg, samples, ALONE), 1, 0)
    image, label = next(iter(source))
    assert image.shape == (4, 3, 32, 32)
    assert label.max() < 10
    reader = ds.Cifar10Dataset(str(cifar), "train", shuffle=False)
    plain = next(reader.create_dict_iterator(num_epochs=1, output_numpy=True))["image"]
    cfg = settings(cifar, "data.resize=32", "data.augment=none", path=SMOKE)
    order = train_sampler(cfg, samples, ALONE)
    image, _ = next(iter(TrainSource(samples, cfg, order, 1, 0)))
    first = order.sample_at(0)[0] % 20  # twenty distinct images, again and again
    if first == 0:
        np.testing.assert_array_equal(image[0], plain.transpose(2, 0, 1))
    assert {im.tobytes() for im, _ in distinct(cifar)} >= {im.tobytes() for im in image}


def distinct(cifar: Path) -> list:
    """The distinct training images: (3, 32, 32) and label, straight from the files."""
    found = []
    for i in range(1, 6):
        records = np.frombuffer((cifar / f"data_batch_{i}.bin").read_bytes()[: 20 * 3073], np.uint8)
        found += [(row[1:].reshape(3, 32, 32), row[0]) for row in records.reshape(20, 3073)]
    return found


def damaged(root: Path, folder: Path, kept: int) -> Config:
    """Settings of a data set of four images, one of them cut after so many bytes."""
    (root / "train" / "class_0").mkdir(parents=True)
    for i in range(4):
        whole = (folder / "train" / "class_0" / f"{i}.JPEG").read_bytes()
        (root / "train" / "class_0" / f"{i}.JPEG").write_bytes(whole if i else whole[:kept])
    return settings(root, "data.batch=2", "data.test=train")


def test_an_image_cut_in_its_pixels_is_named(tmp_path, folder):
    cfg = damaged(tmp_path, folder, 900)
    source = TrainSource(read_records(cfg, "train"), cfg, train_sampler(cfg, 4, ALONE), 1, 0)
    assert len(list(source)) == 2
    assert "class_0/0.JPEG" in source.find_fault()
    with pytest.raises(ValueError, match="class_0/0.JPEG"):
        evaluated(cfg)


@pytest.mark.parametrize("kept", [0, 10, 300])
def test_an_image_without_a_header_is_named_before_the_training(tmp_path, folder, kept):
    with pytest.raises(ValueError, match="class_0/0.JPEG"):
        read_records(damaged(tmp_path, folder, kept), "train")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.train=none", "is not a folder"),
        ("model.num_classes=2", "has 3 classes, model.num_classes is 2"),
        ("data.source=mindrecord", "does not exist"),
        ("data.source=cifar10", "data.augment crop is for encoded images"),
        ("data.train=.", "no class folder"),
    ],
)
def test_wrong_data_is_told(folder, change, words):
    with pytest.raises(ValueError, match=words):
        read_records(settings(folder, change), "train")


def test_a_label_out_of_range_is_told(mindrecord):
    record = ["data.source=mindrecord", "data.test=val.mindrecord", "model.num_classes=2"]
    with pytest.raises(ValueError, match="there is a label 2"):
        evaluated(settings(mindrecord, *record))
