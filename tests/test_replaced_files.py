"""No command replaces a file that it did not write, or an input: the rule, once for all of them."""

import os
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers import assert_one_line_error, save_random_weights
from utils.load_config import load_config
from utils.networks import find_network

VIDEO = "data/videos/test/up_000.mp4"
# (command, option of a file, its ending). TSM stands for the arguments of the tiny network
FILES = [
    ("tsm/export.py --checkpoint_path a.ckpt --format mindir", "--target", ".mindir"),
    ("scripts/convert_checkpoint.py --source a.ckpt", "--target", ".ckpt"),
    ("scripts/convert_checkpoint.py --source a.ckpt --to pytorch", "--target", ".pth"),
    ("scripts/analysis/average_checkpoints.py a.ckpt a.ckpt", "--target", ".ckpt"),
    ("scripts/predict.py --checkpoint_path a.ckpt VIDEO", "--save", ".mp4"),
    ("scripts/stream.py --checkpoint_path a.ckpt VIDEO", "--save", ".mp4"),
    ("scripts/analysis/compare_step.py TSM --checkpoint_path a.ckpt", "--record", ".npz"),
    ("scripts/analysis/plot_training.py run", "--out", ".png"),
    ("scripts/data/pack_images.py --source images", "--target", ".mindrecord"),
    ("benchmarks/benchmark.py step TSM", "--out", ".json"),
]
# (command, option of a folder, a file that it would write, or whose name it would recognise)
FOLDERS = [
    ("tsm/train.py TSM", "--run.out", "run.log"),
    ("tsm/train.py TSM", "--run.out", "state.json"),
    ("tsm/eval.py --checkpoint_path a.ckpt", "--report", "report.json"),
    ("tsm/eval.py --checkpoint_path a.ckpt", "--report", "scores.csv"),
    ("scripts/predict.py --checkpoint_path a.ckpt VIDEO", "--out", "predictions.jsonl"),
    (
        "scripts/predict.py --checkpoint_path a.ckpt VIDEO",
        "--out",
        "predictions.part-1-of-1.jsonl",
    ),
    ("scripts/stream.py --checkpoint_path a.ckpt VIDEO", "--out", "up_000_stream.csv"),
    ("scripts/extract_features.py --checkpoint_path a.ckpt data/test.txt", "--out", "index.csv"),
    ("scripts/analysis/fuse_scores.py a b", "--report", "report.json"),
    ("scripts/analysis/plan_allreduce.py TSM --devices 8", "--out", "plan.csv"),
    ("scripts/analysis/dry_run.py TSM --chip ascend910b", "--keep", "log.txt"),
    ("scripts/data/check_videos.py TSM", "--out", "train.txt.scan.jsonl"),
    ("scripts/data/reencode_videos.py TSM", "--out", "train.txt"),
    ("scripts/data/reencode_videos.py --videos data/videos", "--out", "bad.tsv"),
    ("scripts/data/extract_frames.py TSM", "--out", "labels.txt"),
    ("scripts/data/extract_flow.py TSM", "--out", "labels.txt"),
    ("scripts/data/make_lists.py --videos data/videos", "--out", "labels.txt"),
    ("scripts/data/synthesize_videos.py --train 1 --test 1", "--out", "labels.txt"),
    ("scripts/data/synthesize_videos.py --train 1 --test 1", "--out", "recipe.json"),
    ("scripts/data/synthesize_images.py", "--out", "batches.meta.txt"),
    ("scripts/data/synthesize_images.py", "--out", "data_batch_1.bin"),
]


@pytest.fixture(scope="module")
def inputs(data_root, tiny_args, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "data").symlink_to(data_root)
    path, *settings = (word.removeprefix("--") for word in tiny_args[1:])
    cfg = load_config(find_network("tsm").config, Path(path), settings)
    save_random_weights(cfg, folder / "a.ckpt", "tsm")
    (folder / "run").mkdir()
    (folder / "run" / "log.jsonl").write_text('{"epoch": 1, "step": 1, "loss": 1.0}\n')
    (folder / "images" / "one").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "images" / "one" / "a.png")
    return folder


@pytest.fixture
def run(run_here, inputs, tiny_args, monkeypatch):
    """A function that runs a command of this page, with more words, in the folder of its inputs."""

    def run_command(command: str, *more):
        words = [w for word in command.split() for w in (tiny_args if word == "TSM" else [word])]
        words = [VIDEO if word == "VIDEO" else word for word in words]
        return run_here(*words, *more)

    monkeypatch.chdir(inputs)
    return run_command


def read_tree(folder: Path) -> dict:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize(("command", "option", "ending"), FILES)
def test_a_file_is_replaced_only_if_the_user_says_so(command, option, ending, run, tmp_path):
    target = tmp_path / f"mine{ending}"
    target.write_text("mine")
    before = read_tree(tmp_path)
    assert_one_line_error(run(command, option, target), option, "--overwrite")
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "option", "ending"), [row for row in FILES if ".ckpt" in row[0]]
)
def test_an_input_is_never_replaced(command, option, ending, run, inputs, tmp_path):
    target = tmp_path / f"link{ending}"
    os.link(inputs / "a.ckpt", target)
    before = read_tree(tmp_path)
    assert_one_line_error(run(command, option, target, "--overwrite"), option)
    assert read_tree(tmp_path) == before


@pytest.mark.parametrize(("command", "option", "name"), FOLDERS)
def test_a_folder_with_files_of_somebody_else_is_refused(command, option, name, run, tmp_path):
    (tmp_path / name).write_text('{"mine": 1}\n')
    before = read_tree(tmp_path)
    assert_one_line_error(run(command, f"{option}={tmp_path}"), option, str(tmp_path))
    assert read_tree(tmp_path) == before
