"""The image pipeline: every image once, reproducible crops, PIL's pixels in evaluation."""

import functools
import io
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.mindrecord import FileWriter
from PIL import Image

from resnet50.config import Config
from resnet50.dataset import (
    EvalSource,
    TrainSource,
    build_train_sampler,
    list_train_transforms,
    read_records,
)
from resnet50.images import (
    BLANK,
    compute_center_crop,
    decode_or_blank,
    find_blank_images,
    make_test_view,
)
from resnet50.network import NETWORK
from resnet50.readers import Images, describe_samples, open_reader
from scripts.data.synthetic.pattern_images import draw_cifar10
from utils.config import ROOT, load_config
from utils.runtime import Runtime
from utils.testing.golden import load_case

CASES = load_case(Path(__file__).parent / "golden" / "resnet50_data.json")["eval_preprocessing"]
FOLDER = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_tutorial.yaml"
ONE_RANK = Runtime()
SMOKE = ROOT / "resnet50" / "configs" / "resnet50_smoke.yaml"
RECORD = ["data.source=mindrecord", "data.train=train.mindrecord"]
RECORD_TEST = ["data.source=mindrecord", "data.test=val.mindrecord"]


def draw_image(rng: np.random.RandomState, width: int, height: int) -> Image.Image:
    """A picture of smooth colours, similar to a photograph."""
    small = Image.fromarray(rng.randint(0, 256, (6, 8, 3)).astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of five training and three test images; image i has its number as its size."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.RandomState(0)
    for split, count in (("train", 5), ("val", 3)):
        for k in range(3):
            (root / split / f"class_{k}").mkdir(parents=True)
            for i in range(count):
                image = draw_image(rng, 50 + 10 * k + i, 40 + i)
                image.save(root / split / f"class_{k}" / f"{i}.JPEG", quality=95)
    return root


@pytest.fixture(scope="module")
def record_folder(folder) -> Path:
    """The same images in MindRecord files."""
    for split in ("train", "val"):
        write_record(folder / f"{split}.mindrecord", folder / split)
    return folder


def write_record(path: Path, folder: Path, column: bool = False) -> None:
    """Class folders as a MindRecord; with `column` it has the names of the files."""
    schema = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "file": {"type": "string"}}
    if not column:
        del schema["file"]
    writer = FileWriter(str(path), shard_num=1, overwrite=True)
    writer.add_schema(schema)
    for label, images in enumerate(sorted(folder.iterdir())):
        for file in sorted(images.iterdir()):
            name = str(file.relative_to(folder))
            row = {"image": file.read_bytes(), "label": label, "file": name}
            writer.write_raw_data([{key: row[key] for key in schema}])
    writer.commit()


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("cifar")
    draw_cifar10(root, seed=0, distinct=20)
    return root


def make_config(root: Path, *more: str, path: Path = FOLDER) -> Config:
    small = ["data.resize=40", "data.crop=32", "data.batch=4", "data.workers=2", "eval.batch=4"]
    return load_config(Config, path, [f"data.root={root}", *small, *more])


def build_train_source(
    cfg: Config, epochs: int = 2, rt: Runtime = ONE_RANK, skip: int = 0
) -> TrainSource:
    samples = read_records(cfg, "train")
    return TrainSource(samples, cfg, build_train_sampler(cfg, samples, rt), epochs, skip)


def read_batches(cfg: Config, rt: Runtime = ONE_RANK, epochs: int = 2, skip: int = 0) -> list:
    rows = build_train_source(cfg, epochs, rt, skip).dataset()
    return list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))


def assert_same(result: list, expected: list) -> None:
    assert len(result) == len(expected) > 0
    for (image, label), (image_again, label_again) in zip(result, expected):
        np.testing.assert_array_equal(image, image_again)
        np.testing.assert_array_equal(label, label_again)


def test_a_resumed_run_reads_the_same_crops(folder):
    whole = read_batches(make_config(folder))
    assert len(whole) == 2 * (15 // 4)
    assert whole[0][0].shape == (4, 3, 32, 32)
    assert whole[0][0].dtype == np.uint8
    assert_same(read_batches(make_config(folder), skip=2), whole[2:])
    assert_same(read_batches(make_config(folder), skip=4), whole[4:])
    assert not np.array_equal(whole[0][0], whole[3][0]), "another epoch has other crops"


def test_mindrecord_gives_the_images_of_the_folder(record_folder):
    plain, packed = (
        make_config(record_folder, "data.augment=none", *more)
        for more in ([], [*RECORD, RECORD_TEST[1]])
    )
    assert_same(read_batches(plain), read_batches(packed))
    assert_same(read_test_images(plain), read_test_images(packed))


def test_images_have_the_names_of_files_in_minddatas_order(tmp_path):
    names = ["10.png", "9.PNG", "A.png", "b.png", "ß.png", "x/deep.png"]
    for k, name in enumerate(f"{folder}/{name}" for folder in ("b", "Z", "é") for name in names):
        path = tmp_path / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_image(np.random.RandomState(k), 20, 20).save(path, format="png")
    (tmp_path / "val" / "b" / "notes.txt").touch()
    cfg = make_config(tmp_path, "model.num_classes=4")
    count = read_records(cfg, "test")
    samples = describe_samples(cfg.data, "test", count, NETWORK.build_heads(cfg)[0])
    assert samples.classes == ["Z", "b", "é", ""]
    rows = open_reader(cfg.data, "test", range(count), 1)
    result = list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(result) == len(samples.paths) == 15
    images = Images(cfg.data, "test", count)
    for k, (image, label) in enumerate(result):
        assert image.tobytes() == (tmp_path / "val" / samples.paths[k]).read_bytes()
        assert images.locate(k) == (tmp_path / "val" / samples.paths[k], label)
        assert samples.labels[k] == label


def test_images_without_files_have_numbers_as_names(record_folder, cifar):
    for cfg in (make_config(record_folder, *RECORD_TEST), make_config(cifar, path=SMOKE)):
        count = read_records(cfg, "test")
        samples = describe_samples(cfg.data, "test", count, NETWORK.build_heads(cfg)[0])
        assert samples.paths == [str(k) for k in range(count)]
    assert len(samples.classes) == 10


def test_two_ranks_read_the_images_of_one_rank_with_twice_the_batch(folder):
    plain = ["data.augment=none"]
    one = read_batches(make_config(folder, *plain, "data.batch=4"), epochs=1)
    half = make_config(folder, *plain, "data.batch=2")
    ranks = [read_batches(half, Runtime(rank, 2), 1) for rank in (0, 1)]
    joined = [[np.concatenate(columns) for columns in zip(*rows)] for rows in zip(*ranks)]
    assert_same(joined, one)


def read_test_images(cfg: Config, rt: Runtime = ONE_RANK) -> list:
    source = EvalSource(read_records(cfg, "test"), cfg, rt)
    result = list(source.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(result) == source.get_dataset_size()
    return [(image[valid], label[valid]) for image, label, valid in result if valid.any()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_test_image_counts_once_on_any_number_of_ranks(folder, size):
    alone = np.concatenate([image for image, _ in read_test_images(make_config(folder))])
    assert alone.shape == (9, 1, 3, 32, 32)
    parts = [read_test_images(make_config(folder), Runtime(rank, size)) for rank in range(size)]
    together = np.concatenate([image for part in parts for image, _ in part])
    assert sorted(x.tobytes() for x in together) == sorted(x.tobytes() for x in alone)


def test_evaluation_has_its_own_crop(folder):
    """Also for prediction, an exported file, and a rank without images."""
    cfg = make_config(folder, "data.crop=24", "eval.crop=32")
    assert read_batches(cfg, epochs=1)[0][0].shape == (4, 3, 24, 24)
    same = read_test_images(make_config(folder))
    for (image, label), (expected, expected_label) in zip(read_test_images(cfg), same):
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(label, expected_label)
    frames = np.zeros((1, 50, 60, 3), np.uint8)
    assert NETWORK.build_heads(cfg)[0].make_views(frames, np.zeros(1)).shape == (1, 3, 32, 32)
    assert NETWORK.describe_export(cfg).clip == (3, 32, 32)
    empty = EvalSource(1, cfg, Runtime(1, 2)).create_tuple_iterator(output_numpy=True)
    assert [image.shape for image, _, _ in empty] == [(4, 1, 3, 32, 32)]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (["eval.crop=48"], "eval.crop 48"),
        (["data.crop=48"], "data.crop 48"),
        (["data.crop=48", "eval.crop=40", "data.augment=none"], "data.crop 48"),
    ],
)
def test_a_test_crop_above_the_resized_image_is_refused(folder, changes, name):
    with pytest.raises(ValueError, match=f"{name} is larger than data.resize 40"):
        make_config(folder, *changes)
    assert make_config(folder, "data.crop=48", "eval.crop=40").test_crop == 40


@pytest.mark.parametrize("case", CASES, ids=lambda c: str(c["resize_short_side"]))
def test_evaluation_crops_equal_the_originals(case):
    sizes = case["resize_short_side"], case["crop"]
    for image in case["cases"]:
        expected = tuple(image[key] for key in ("scaled_w", "scaled_h", "crop_x", "crop_y"))
        assert compute_center_crop(image["image_w"], image["image_h"], *sizes) == expected


def test_evaluation_pixels_equal_pils():
    """Against PIL's own resize of the decoded image."""
    image = draw_image(np.random.RandomState(1), 500, 375)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95)
    view = make_test_view(np.frombuffer(file.getvalue(), np.uint8), 256, 224)
    expected = Image.open(io.BytesIO(file.getvalue())).resize((341, 256), Image.BILINEAR)
    expected = np.asarray(expected.crop((58, 16, 282, 240))).transpose(2, 0, 1)
    assert np.abs(view.astype(int) - expected).max() <= 1


def test_cifar_images_are_padded_cropped_and_flipped(cifar):
    cfg = make_config(cifar, "data.resize=32", path=SMOKE)
    assert read_records(cfg, "train") == 50_000
    image, label = next(iter(build_train_source(cfg, 1)))
    assert image.shape == (4, 3, 32, 32)
    assert label.max() < 10
    reader = ds.Cifar10Dataset(str(cifar), "train", shuffle=False)
    plain = next(reader.create_dict_iterator(num_epochs=1, output_numpy=True))["image"]
    source = build_train_source(
        make_config(cifar, "data.resize=32", "data.augment=none", path=SMOKE), 1
    )
    image, _ = next(iter(source))
    if source.sampler.sample_at(0)[0] % 20 == 0:  # twenty distinct images are repeated
        np.testing.assert_array_equal(image[0], plain.transpose(2, 0, 1))
    # The twenty distinct images of each file; a label is before each image.
    files = [(cifar / f"data_batch_{i}.bin").read_bytes() for i in range(1, 6)]
    distinct = {file[k * 3073 + 1 : (k + 1) * 3073] for file in files for k in range(20)}
    assert distinct >= {im.tobytes() for im in image}


# Data of five images a class, and the numbers of those that are damaged, in two classes.
FORMS = {
    "folder": ["data.test=train"],
    "mindrecord": [*RECORD, "data.test=train.mindrecord"],
}
DAMAGED = {2: 900, 13: 0}  # the bytes that are kept
RARE = ["data.max_unreadable=0.2"]


def save_damaged(root: Path, folder: Path, damaged: dict[int, int], column: bool = True) -> None:
    """The training images of a folder, some of them cut, as class folders and as a MindRecord."""
    for number in range(15):
        name = f"class_{number // 5}/{number % 5}.JPEG"
        (root / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        content = (folder / "train" / name).read_bytes()
        (root / "train" / name).write_bytes(content[: damaged.get(number)])
    write_record(root / "train.mindrecord", root / "train", column)


@pytest.fixture(scope="module")
def damaged_folder(folder, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    save_damaged(root, folder, DAMAGED)
    return root


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_image_is_replaced_counted_and_named_once(
    folder, damaged_folder, form, log_messages
):
    plain = ["data.augment=none", "data.batch=5", *RARE, *FORMS[form]]
    label_of = {}
    undamaged = make_config(folder, "data.augment=none", "data.batch=5")
    for images, labels in read_batches(undamaged, epochs=1):
        label_of.update((image.tobytes(), int(label)) for image, label in zip(images, labels))
    source = build_train_source(make_config(damaged_folder, *plain))
    rows = [row for images, labels in source for row in zip(images, labels)]
    assert len(rows) == 30
    assert [label_of[image.tobytes()] for image, _ in rows] == [label for _, label in rows]
    assert len({image.tobytes() for image, _ in rows}) == 13, "all other images appear"
    assert (source.unreadable.count, source.find_fault()) == (2, "")
    assert len(log_messages) == 2
    for name in ("class_0/2.JPEG", "class_2/3.JPEG"):
        (line,) = [line for line in log_messages if name in line]
        assert "not a readable image" in line


def test_an_error_in_a_mindrecord_without_names_has_the_image_number(
    folder, tmp_path, log_messages
):
    save_damaged(tmp_path, folder, {2: 900}, column=False)
    assert len(list(build_train_source(make_config(tmp_path, *FORMS["mindrecord"], *RARE)))) == 6
    (line,) = log_messages
    assert f"image 2 in {tmp_path / 'train.mindrecord'}" in line


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_reads_the_same_replacements(damaged_folder, form):
    """The resumed run has no record of the damaged images."""
    cfg = make_config(damaged_folder, *RARE, *FORMS[form])
    whole = read_batches(cfg, epochs=4)
    assert_same(read_batches(cfg, epochs=4), whole)
    for skip in (2, 3, 7):
        assert_same(read_batches(cfg, epochs=4, skip=skip), whole[skip:])
    assert_same(read_batches(make_config(damaged_folder, *RARE), epochs=4), whole)


V2 = ["data.policy=trivial", "data.erase=0.5", "data.cutmix=1", "data.repeats=2"]


def test_a_resumed_run_repeats_policy_erasing_and_mixing(damaged_folder):
    cfg = make_config(damaged_folder, *RARE, *V2)
    whole = read_batches(cfg, epochs=3)
    for skip in (2, 4):
        assert_same(read_batches(cfg, epochs=3, skip=skip), whole[skip:])
    plain = read_batches(make_config(damaged_folder, *RARE, *V2[2:]), epochs=3)
    other = sum((a[0] != b[0]).any(axis=(1, 2, 3)).sum() for a, b in zip(whole, plain))
    assert other > 0.6 * sum(len(image) for image, _ in whole)


def test_a_replacement_does_not_change_the_other_crops(damaged_folder, monkeypatch):
    cfg = make_config(damaged_folder, *RARE)
    replaced = read_batches(cfg)
    black = np.zeros((3, 32, 32), np.uint8), 0
    monkeypatch.setattr(TrainSource, "read_replacement", lambda *_: black)
    numbers = np.concatenate([build_train_sampler(cfg, 15, ONE_RANK).epoch(e) for e in range(2)])
    bad = np.isin(numbers, list(DAMAGED))
    usual, changed = (
        np.concatenate([image for image, _ in rows]) for rows in (replaced, read_batches(cfg))
    )
    assert bad.any()
    np.testing.assert_array_equal((usual != changed).any(axis=(1, 2, 3)), bad)


def test_an_unreadable_image_is_not_read_again(damaged_folder, monkeypatch):
    numbers = []
    read = Images.read
    monkeypatch.setattr(Images, "read", lambda self, k: numbers.append(k) or read(self, k))
    assert len(list(build_train_source(make_config(damaged_folder, *RARE), epochs=20))) == 60
    assert [numbers.count(k) for k in DAMAGED] == [1, 1]
    assert len(set(numbers)) > 6, "each epoch chooses new replacements"


def test_too_many_damaged_images_are_reported_in_one_line(damaged_folder):
    source = build_train_source(make_config(damaged_folder))
    assert len(list(source)) == 6
    assert source.find_fault() == (
        "data.max_unreadable: 2 of 15 images could not be read, more than 1.00% (the first: "
        f"{damaged_folder / 'train' / 'class_0' / '2.JPEG'}); remove them, or raise the limit"
    )


def test_training_without_readable_images_fails(folder, tmp_path):
    save_damaged(tmp_path, folder, dict.fromkeys(range(15), 10))
    source = build_train_source(make_config(tmp_path))
    assert not any(image.any() for image, _ in source)
    assert "15 of 15 images" in source.find_fault()


def test_an_image_of_the_blank_colour_is_readable(folder, tmp_path):
    save_damaged(tmp_path, folder, {})
    Image.new("RGB", (50, 40), tuple(BLANK)).save(tmp_path / "train" / "class_0" / "5.png")
    cfg = make_config(tmp_path, "data.batch=16", "data.test=train")
    source = build_train_source(cfg, epochs=1)
    ((images, _),) = list(source)
    (row,) = find_blank_images(images)
    assert (images[row] == BLANK[:, None, None]).all()
    assert source.unreadable.count == 0
    assert sum(len(label) for _, label in read_test_images(cfg)) == 16


def test_no_transform_changes_the_blank_colour():
    image = decode_or_blank(np.zeros(9, np.uint8))
    changed = ["data.policy=trivial", "data.erase=0.9"]
    for more in (
        ["data.crop=224", "data.resize=256"],
        ["data.crop=31"],
        ["data.augment=none"],
        changed,
    ):
        operators = list_train_transforms(make_config(Path(), *more).data)
        for seed in range(100):
            ds.config.set_seed(seed)
            view = functools.reduce(lambda x, operator: operator(x), operators, image)
            assert (view == BLANK[:, None, None]).all()


def replace_by_dangling_links(root: Path, *numbers: int) -> list[Path]:
    """Replaces training images by links to files that do not exist."""
    files = [root / "train" / f"class_{n // 5}" / f"{n % 5}.JPEG" for n in numbers]
    for file in files:
        file.unlink()
        file.symlink_to("nothing")
    return files


def test_files_that_cannot_be_opened_are_replaced_counted_and_named_once(
    folder, tmp_path, log_messages
):
    """They are replaced like damaged images; MindData's own pipeline fails at the first of them."""
    save_damaged(tmp_path, folder, {2: 900})
    cfg = make_config(tmp_path, "data.augment=none", "data.batch=5", "data.max_unreadable=0.5")
    expected = list(build_train_source(cfg))
    files = replace_by_dangling_links(tmp_path, 4, 5, 13)
    source = build_train_source(cfg)
    result = list(source)
    assert source.find_fault() == ""
    assert source.unreadable.count == 4
    assert sum("it cannot be opened" in line for line in log_messages) == 3
    for file in files:
        assert sum(str(file) in line for line in log_messages) == 1
    samples = np.concatenate([source.sampler.epoch(epoch) for epoch in (0, 1)])
    readable = {image.tobytes() for images, _ in expected for image in images}
    for (images, labels), (old_images, old_labels), numbers in zip(
        result, expected, samples.reshape(-1, 5)
    ):
        kept = ~np.isin(numbers, [2, 4, 5, 13])
        np.testing.assert_array_equal(images[kept], old_images[kept])
        np.testing.assert_array_equal(labels[kept], old_labels[kept])
        assert {image.tobytes() for image in images} <= readable


def test_a_resumed_run_makes_the_same_replacements_of_missing_files(folder, tmp_path):
    save_damaged(tmp_path, folder, {})
    replace_by_dangling_links(tmp_path, 6, 11)
    cfg = make_config(tmp_path, "data.max_unreadable=0.5")
    whole = list(build_train_source(cfg))
    for skip in (2, 4):
        assert_same(list(build_train_source(cfg, skip=skip)), whole[skip:])


def test_too_many_files_that_cannot_be_opened_stop_the_run(folder, tmp_path):
    save_damaged(tmp_path, folder, {})
    cfg = make_config(tmp_path, "data.test=train")
    files = replace_by_dangling_links(tmp_path, 6)
    source = build_train_source(cfg)
    assert len(list(source)) == 6
    assert source.find_fault().startswith("data.max_unreadable: 1 of 15 images could not be read")
    with pytest.raises(ValueError, match="class_1/1.JPEG"):
        read_test_images(cfg)
    replace_by_dangling_links(tmp_path, *(n for n in range(15) if n != 6))
    source = build_train_source(cfg)
    assert len(list(source)) == 6
    assert source.find_fault().startswith("data.root: cannot read")
    assert files[0].is_symlink()


def test_changed_class_folders_are_reported(folder, tmp_path):
    save_damaged(tmp_path, folder, {2: 900})
    source = build_train_source(make_config(tmp_path))
    list(source)
    (tmp_path / "train" / "class_0" / "2.JPEG").unlink()
    with pytest.raises(ValueError, match="data.train: .*class_0 has changed"):
        source.images.read(1)


@pytest.mark.parametrize("form", FORMS)
def test_an_evaluation_does_not_count_damaged_images(damaged_folder, form, log_messages):
    cfg = make_config(damaged_folder, *FORMS[form])
    source = EvalSource(read_records(cfg, "test"), cfg, ONE_RANK)
    rows = list(source.create_tuple_iterator(num_epochs=1, output_numpy=True))
    valid = np.concatenate([row[2] for row in rows])
    assert np.flatnonzero(~valid).tolist() == [*DAMAGED, 15]
    assert source.unreadable.count == len(log_messages) == 2
    samples = describe_samples(cfg.data, "test", 15, NETWORK.build_heads(cfg)[0])
    assert samples.labels == [0] * 5 + [1] * 5 + [2] * 5
    assert samples.paths[13] == "class_2/3.JPEG"


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
def test_wrong_data_is_refused(folder, change, words):
    with pytest.raises(ValueError, match=words):
        read_records(make_config(folder, change), "train")


def test_a_label_out_of_range_is_refused(record_folder):
    cfg = make_config(record_folder, *RECORD_TEST, "model.num_classes=2")
    with pytest.raises(ValueError, match="there is a label 2"):
        read_test_images(cfg)


@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_the_blank_batch_is_like_every_batch(folder, mixup):
    """The train step is compiled for it."""
    cfg = make_config(folder, f"data.mixup={mixup}")
    (batch, *_), blank = read_batches(cfg, epochs=1), build_train_source(cfg).make_blank_batch()
    assert [(v.shape, v.dtype) for v in blank] == [(v.shape, v.dtype) for v in batch]
