"""The image pipeline: every image once, reproducible crops, PIL's pixels in evaluation."""

import io
from pathlib import Path
from typing import Union

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore.mindrecord import FileWriter
from PIL import Image

from resnet50.config import Config
from resnet50.dataset import EvalImages, TrainImages, build_train_sampler, create_dataset
from resnet50.network import NETWORK
from resnet50.readers import ImageRecord, MindRecord, read_records
from resnet50.transforms import compute_center_crop, draw_crop_box, make_test_view, make_train_view
from scripts.data.synthetic.pattern_images import draw_cifar10
from tests.golden_cases import load_case
from utils.files import ROOT
from utils.load_config import load_config
from utils.runtime import Runtime

CASES = load_case(Path(__file__).parent / "golden" / "resnet50_data.json")["eval_preprocessing"]
FOLDER = ROOT / "resnet50" / "configs" / "resnet50_r50_imagenet_tutorial.yaml"
ONE_RANK = Runtime()
SMOKE = ROOT / "resnet50" / "configs" / "resnet50_smoke.yaml"
RECORD = ["data.source=mindrecord", "data.train=train.mindrecord"]


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
) -> TrainImages:
    images = read_records(cfg, "train")
    sampler = build_train_sampler(cfg, images, rt)
    return TrainImages(images, cfg=cfg, sampler=sampler, epochs=epochs, skip=skip)


def read_batches(cfg: Config, rt: Runtime = ONE_RANK, epochs: int = 2, skip: int = 0) -> list:
    return list_batches(build_train_source(cfg, epochs=epochs, rt=rt, skip=skip))


def list_batches(source: Union[TrainImages, EvalImages]) -> list:
    batches = create_dataset(source.cfg, source, source.cfg.data.workers)
    return list(batches.create_tuple_iterator(num_epochs=1, output_numpy=True))


def assert_same(result: list, expected: list) -> None:
    assert len(result) == len(expected) > 0
    for (image, label), (image_again, label_again) in zip(result, expected):
        np.testing.assert_array_equal(image, image_again)
        np.testing.assert_array_equal(label, label_again)


def test_images_have_the_names_of_files_in_minddatas_order(tmp_path):
    names = ["10.png", "9.PNG", "A.png", "b.png", "ß.png", "x/deep.png"]
    for k, name in enumerate(f"{folder}/{name}" for folder in ("b", "Z", "é") for name in names):
        path = tmp_path / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_image(np.random.RandomState(k), 20, 20).save(path, format="png")
    (tmp_path / "val" / "b" / "notes.txt").touch()
    cfg = make_config(tmp_path, "model.num_classes=4", "data.train=val")
    images = read_records(cfg, "test")
    assert NETWORK.list_label_spaces(cfg)[0].list_names() == ["Z", "b", "é", ""]
    rows = ds.ImageFolderDataset(str(tmp_path / "val"), extensions=[".png", ".PNG"], shuffle=False)
    result = list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(result) == len(images) == 15
    for k, (content, label) in enumerate(result):
        image = images[k]
        assert image.path == str(tmp_path / "val" / images.list_names()[k])
        assert image.load() == content.tobytes() == Path(image.path).read_bytes()
        assert image.label == label


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("index", [["label", "file"], ["file"]])
def test_a_mindrecord_is_read_at_random_like_minddata(tmp_path, other, index):
    """Three shards of many pages, with other columns of bytes, and labels outside the index."""
    rng = np.random.RandomState(0)
    schema = {"image": {"type": "bytes"}, "label": {"type": "int32"}, "file": {"type": "string"}}
    if other:
        schema = {"a": {"type": "bytes"}, **schema, "b": {"type": "int32", "shape": [-1]}}
    values = {"a": b"abc", "b": np.arange(3, dtype=np.int32)}
    writer = FileWriter(str(tmp_path / "x"), 3)
    writer.set_header_size(2**16)
    writer.set_page_size(2**15)
    writer.add_schema(schema)
    writer.add_index(index)
    for k in range(60):
        values.update(image=rng.bytes(rng.randint(1, 20_000)), label=k % 7, file=f"é/{k}")
        writer.write_raw_data([{name: values[name] for name in schema}])
    writer.commit()
    images = MindRecord(tmp_path / "x0")
    rows = ds.MindDataset(str(tmp_path / "x0"), ["image", "label", "file"], shuffle=False)
    expected = list(rows.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert len(images) == len(expected) == 60
    for k in rng.permutation(60):
        content, label, name = expected[k]
        assert images[k].load() == content.tobytes()
        assert images[k].label == label
        assert images.list_names()[k] == str(name)


def read_test_images(cfg: Config, rt: Runtime = ONE_RANK) -> list:
    result = list_batches(EvalImages(read_records(cfg, "test"), cfg, rt))
    return [(image[valid], label[valid]) for image, label, valid in result if valid.any()]


def test_evaluation_has_its_own_crop(folder):
    """Also for prediction, an exported file, and a rank without images."""
    cfg = make_config(folder, "data.crop=24", "eval.crop=32")
    assert read_batches(cfg, epochs=1)[0][0].shape == (4, 3, 24, 24)
    same = read_test_images(make_config(folder))
    for (image, label), (expected, expected_label) in zip(read_test_images(cfg), same):
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(label, expected_label)
    frames = np.zeros((1, 50, 60, 3), np.uint8)
    (head,) = NETWORK.list_label_spaces(cfg)
    assert head.make_views(head.crop_frames(frames), np.zeros(1)).shape == (1, 3, 32, 32)
    assert NETWORK.describe_export(cfg).clip == (3, 32, 32)
    empty = list_batches(EvalImages([read_records(cfg, "test")[0]], cfg, Runtime(1, 2)))
    assert [image.shape for image, _, _ in empty] == [(4, 1, 3, 32, 32)]


@pytest.mark.parametrize("name", ["eval.crop", "data.crop"])
def test_a_test_crop_above_the_resized_image_is_refused(folder, name):
    with pytest.raises(ValueError, match=f"{name} 48"):
        make_config(folder, f"{name}=48")
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
    view = make_test_view(ImageRecord("a.jpg", 0, file.getvalue).read(), 256, 224)
    expected = Image.open(io.BytesIO(file.getvalue())).resize((341, 256), Image.BILINEAR)
    expected = np.asarray(expected.crop((58, 16, 282, 240))).transpose(2, 0, 1)
    assert np.abs(view.astype(int) - expected).max() <= 1


def test_cifar_images_are_padded_cropped_and_flipped(cifar):
    cfg = make_config(cifar, "data.resize=32", path=SMOKE)
    images = read_records(cfg, "train")
    assert len(images) == 50_000
    chosen = range(0, 50_000, 499)  # of all five files
    reader = ds.Cifar10Dataset(str(cifar), "train", sampler=ds.SubsetSampler(list(chosen)))
    rows = reader.create_tuple_iterator(num_epochs=1, output_numpy=True)
    for k, (pixels, label) in zip(chosen, rows):
        np.testing.assert_array_equal(images[k].read(), pixels)
        assert images[k].label == label
    pixels = images[0].read()
    padded = np.pad(pixels, [(4, 4), (4, 4), (0, 0)])
    crops = [padded[y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    views = [view.transpose(2, 0, 1) for crop in crops for view in (crop, crop[:, ::-1])]
    generators = map(np.random.RandomState, range(1500))
    drawn = {make_train_view(pixels, cfg.data, rng).tobytes() for rng in generators}
    assert drawn == {view.tobytes() for view in views}, "every crop, mirrored or not"
    view = build_train_source(make_config(cifar, "data.crop=48", "data.resize=48", path=SMOKE))[0]
    assert view[0].shape == (3, 48, 48)


def test_random_crops_equal_minddatas_pixels():
    """Of the same box: MindSpore's operators crop, resize and flip."""
    image = np.asarray(draw_image(np.random.RandomState(1), 91, 70))
    cfg = make_config(Path())
    for seed in range(6):
        rng = np.random.RandomState(seed)
        x, y, width, height = draw_crop_box(91, height=70, min_area=0.08, rng=rng)
        crop = ds.vision.Crop((y, x), (height, width))(image)
        view = ds.vision.Resize((32, 32), ds.vision.Inter.BILINEAR)(crop).transpose(2, 0, 1)
        result = make_train_view(image, cfg.data, np.random.RandomState(seed))
        assert any(np.array_equal(result, same) for same in (view, view[:, :, ::-1]))


# Data of five images a class, and the numbers of those that are damaged, in two classes.
FORMS = {"folder": ["data.test=train"], "mindrecord": [*RECORD, "data.test=train.mindrecord"]}
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
    rows = [row for images, labels in list_batches(source) for row in zip(images, labels)]
    assert len(rows) == 30
    assert [label_of[image.tobytes()] for image, _ in rows] == [label for _, label in rows]
    assert len({image.tobytes() for image, _ in rows}) == 13, "all other images appear"
    assert (source.unreadable.count, source.find_fault()) == (2, "")
    assert sum("unreadable image" in line for line in log_messages) == 2
    for name in ("class_0/2.JPEG", "class_2/3.JPEG"):
        (line,) = [line for line in log_messages if name in line]
        assert "not a readable image" in line


V2 = ["data.policy=trivial", "data.erase=0.5", "data.cutmix=1", "data.repeats=2"]


@pytest.mark.parametrize("form", [*FORMS, "policy, erasing and mixing"])
def test_a_resumed_run_reads_the_same_rows(damaged_folder, form):
    """For any number of workers; the resumed run has no record of the damaged images."""
    settings = [*RARE, *FORMS.get(form, V2)]
    whole = read_batches(make_config(damaged_folder, *settings), epochs=4)
    assert len(whole) == 4 * (15 // 4)
    assert (whole[0][0].shape, whole[0][0].dtype) == ((4, 3, 32, 32), np.uint8)
    assert not np.array_equal(whole[0][0], whole[3][0]), "another epoch has other crops"
    for workers in (1, 2):
        cfg = make_config(damaged_folder, *settings, f"data.workers={workers}")
        for skip in (0, 2, 3, 7):
            assert_same(read_batches(cfg, epochs=4, skip=skip), whole[skip:])
    if form == "mindrecord":
        assert_same(read_batches(make_config(damaged_folder, *RARE), epochs=4), whole)


@pytest.mark.parametrize("form", FORMS)
def test_an_evaluation_does_not_count_damaged_images(damaged_folder, form, log_messages):
    cfg = make_config(damaged_folder, *FORMS[form])
    images = read_records(cfg, "test")
    source = EvalImages(images, cfg, ONE_RANK)
    valid = np.concatenate([batch[2] for batch in list_batches(source)])
    assert np.flatnonzero(~valid).tolist() == [*DAMAGED, 15]
    assert source.unreadable.count == 2
    assert sum("unreadable image" in line for line in log_messages) == 2
    assert images.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert images.list_names()[13] == "class_2/3.JPEG"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (["data.train=none"], "data.train"),
        (["model.num_classes=2"], "model.num_classes"),
        (["data.source=mindrecord"], "data.train"),
        ([*RECORD, "model.num_classes=2"], "model.num_classes: there is a label 2"),
    ],
)
def test_wrong_data_is_refused(record_folder, changes, name):
    with pytest.raises(ValueError, match=name):
        read_records(make_config(record_folder, *changes), "train")


def test_validations_take_their_own_images(record_folder):
    cfg = make_config(record_folder, "data.val=train")
    assert [len(read_records(cfg, split)) for split in ("val", "test")] == [15, 9]
