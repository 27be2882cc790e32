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
    ("tsm/export.py CKPT --format mindir", "--target", ".mindir"),
    ("scripts/convert_checkpoint.py --source a.ckpt", "--target", ".ckpt"),
    ("scripts/convert_checkpoint.py --source a.ckpt --to pytorch", "--target", ".pth"),
    ("scripts/predict.py CKPT VIDEO", "--save", ".mp4"),
    ("scripts/stream.py CKPT VIDEO", "--save", ".mp4"),
    ("scripts/analysis/compare_step.py TSM CKPT", "--record", ".npz"),
    ("scripts/analysis/plot_training.py run", "--out", ".png"),
    ("scripts/data/pack_images.py --source images", "--target", ".mindrecord"),
    ("benchmarks/benchmark.py step TSM", "--out", ".json"),
]
# (command, option of a folder, a file that it would write, or whose name it would recognise)
FOLDERS = [
    ("tsm/train.py TSM", "--run.out", "run.log"),
    ("tsm/train.py TSM", "--run.out", "state.json"),
    ("tsm/eval.py CKPT", "--report", "report.json"),
    ("tsm/eval.py CKPT", "--report", "scores.csv"),
    ("scripts/predict.py CKPT VIDEO", "--out", "predictions.jsonl"),
    ("scripts/extract_features.py CKPT VIDEO", "--out", "features.part-1.jsonl"),
    ("scripts/stream.py CKPT VIDEO", "--out", "up_000_stream.csv"),
    ("scripts/extract_features.py CKPT data/test.txt", "--out", "index.csv"),
    ("scripts/analysis/fuse_scores.py a b", "--report", "report.json"),
    ("scripts/analysis/plan_allreduce.py TSM --devices 8", "--out", "plan.csv"),
    ("scripts/data/check_videos.py TSM", "--out", "train.txt.scan.jsonl"),
    ("scripts/data/reencode_videos.py TSM", "--out", "train.txt"),
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
        names = {"TSM": tiny_args, "CKPT": ["--checkpoint_path", "a.ckpt"], "VIDEO": [VIDEO]}
        words = [value for word in command.split() for value in names.get(word, [word])]
        return run_here(*words, *more)

    monkeypatch.chdir(inputs)
    return run_command


@pytest.mark.parametrize(("command", "option", "ending"), FILES)
def test_a_file_needs_overwrite_and_an_input_stays(command, option, ending, run, inputs, tmp_path):
    target = tmp_path / f"mine{ending}"
    target.write_text("mine")
    assert_one_line_error(run(command, option, target), option, "--overwrite")
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "mine"
    if "ckpt" in command.lower():
        target.unlink()
        os.link(inputs / "a.ckpt", target)
        assert_one_line_error(run(command, option, target, "--overwrite"), option, "reads")
        assert list(tmp_path.iterdir()) == [target]
        assert os.path.samefile(target, inputs / "a.ckpt")


def test_the_files_of_an_index_are_inputs(run, tmp_path):
    """A shard may have any name."""
    (tmp_path / "a.ckpt").write_text("mine")
    index = tmp_path / "a.index.json"
    index.write_text('{"weight_map": {"name": "a.ckpt"}}')
    command = f"scripts/convert_checkpoint.py TSM --source {index} --overwrite"
    done = run(command, "--target", tmp_path / "a.ckpt")
    assert_one_line_error(done, "--target", "reads")
    assert (tmp_path / "a.ckpt").read_text() == "mine"


@pytest.mark.parametrize(("command", "option", "name"), FOLDERS)
def test_a_folder_with_files_of_somebody_else_is_refused(command, option, name, run, tmp_path):
    (tmp_path / name).write_text('{"mine": 1}\n')
    assert_one_line_error(run(command, f"{option}={tmp_path}"), option, str(tmp_path))
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    assert (tmp_path / name).read_text() == '{"mine": 1}\n'
