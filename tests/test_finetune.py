"""scripts/finetune.py: the config file by network, user errors, which steps are done, all steps."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import finetune
from scripts.finetuning.config_file import (
    VideoCounts,
    inspect_network,
    read_start,
    write_config_file,
)
from tests.helpers import (
    assert_one_line_error,
    assert_report,
    build_env,
    load_smoke_config,
    read_result,
    run_script,
    save_random_weights,
)
from utils.files import ROOT
from utils.load_config import find_recipes, load_config
from utils.networks import find_network

SCRIPT = "scripts/finetune.py"
RECIPES = {
    "tsm": "tsm_r50_k400_8f",
    "x3d": "x3d_s_k400_13x6",
    "mvit_multi": "mvit_multi_plain_s_k400_16x4",
    "resnet50": "resnet50_r50_imagenet_torchvision",
}
NAMES = ["turn left", "turn right", "wave"]
COUNTS = VideoCounts(train=240, val=30, size=1e6)


def start_from(recipe: str, *settings: str, checkpoint=None):
    return read_start(recipe, checkpoint, ["run.device=CPU", *settings])


def write_config(folder: Path, network: str, *settings: str, checkpoint=None, **options):
    start = start_from(RECIPES[network], *settings, checkpoint=checkpoint)
    options = {"counts": COUNTS, "fitting": 8, "names": NAMES, **options}
    write_config_file(folder / "finetune.yaml", start, videos=Path("/my videos"), **options)
    return load_config(find_network(network).config, folder / "finetune.yaml")


@pytest.mark.parametrize("network", RECIPES)
def test_the_config_file_is_the_recipe_for_the_own_classes(network, tmp_path):
    cfg = write_config(tmp_path, network)
    recipe = load_config(find_network(network).config, find_recipes()[RECIPES[network]])
    assert cfg.class_counts == (3,)
    assert cfg.data.batch <= 8
    steps = 240 // cfg.data.batch
    assert cfg.train.epochs == min(100, max(10, -(-1500 // steps)))
    assert (cfg.train.lr, cfg.train.base_batch) == (recipe.train.lr, recipe.train.base_batch)
    assert (cfg.train.pretrained, cfg.train.freeze) == (None, "")
    assert cfg.train.warmup_epochs <= 0.2 * cfg.train.epochs
    assert (cfg.run.keep_best, cfg.run.out) == ("top1", tmp_path / "run")
    assert 10 <= cfg.train.epochs / cfg.run.eval_every <= 40
    if network == "resnet50":
        assert (cfg.data.root, cfg.data.val) == (tmp_path / "lists", "val")
        return
    assert cfg.data.root == tmp_path / "copies"
    swapped = cfg.data.sets[0] if network == "mvit_multi" else cfg.data
    assert swapped.swap_labels == ((0, 1),)
    files = find_network(network).list_annotation_files(cfg)
    assert {file.path.parent for file in files} == {tmp_path / "copies"}
    assert len({file.path for file in files}) == 3


@pytest.mark.parametrize(("network", "norms"), [("tsm", "partial"), ("x3d", "frozen")])
def test_a_checkpoint_lowers_the_rate_and_freezes_the_backbone_on_a_cpu(network, norms, tmp_path):
    weights = tmp_path / "weights.ckpt"
    scratch = write_config(tmp_path, network)
    cfg = write_config(tmp_path, network, checkpoint=weights)
    assert cfg.train.lr == pytest.approx(scratch.train.lr / 10)
    assert cfg.train.epochs < scratch.train.epochs
    assert (cfg.train.pretrained, cfg.train.new_head) == (weights, True)
    assert (cfg.train.freeze, cfg.train.batch_norm) == ("backbone", norms)
    assert (scratch.train.feature_draws, cfg.train.feature_draws) == (0, 5)
    assert (scratch.data.root, cfg.data.root) == (tmp_path / "copies", Path("/my videos"))
    on_device = write_config(tmp_path, network, "run.device=Ascend", checkpoint=weights)
    assert (on_device.train.freeze, on_device.train.feature_draws) == ("", 0)


def test_settings_of_the_command_line_and_small_videos_change_the_rules(tmp_path):
    cfg = write_config(tmp_path, "tsm", "train.epochs=20", "data.batch=30", "run.keep_best=loss")
    assert (cfg.train.epochs, cfg.data.batch, cfg.run.keep_best) == (20, 30, "loss")
    assert cfg.train.milestones == (8, 16)
    assert cfg.run.log_every == 8
    start = start_from("tsm_r18_diff_8f", "train.epochs=2")  # of 76, 5 of them warm up
    assert (start.cfg.train.epochs, start.cfg.train.warmup_epochs) == (2, 0.13)
    cfg = write_config(tmp_path, "tsm", counts=VideoCounts(8, 0, 1e5))  # few and small ones
    assert (cfg.data.batch, cfg.data.root, cfg.data.val_list) == (2, Path("/my videos"), "")


@pytest.fixture
def videos(tmp_path, data_root) -> Path:
    """Three classes of four videos; `test_left_000.mp4` is one of them."""
    for path in sorted((data_root / "videos").rglob("*.mp4")):
        name = path.name.rpartition("_")[0]
        if name in ("left", "up", "grow"):
            target = tmp_path / "my videos" / name / f"{path.parent.name}_{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    return tmp_path / "my videos"


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize(
    ("change", "arguments", "name"),
    [
        (empty, [], "{}"),
        (shutil.rmtree, [], "VIDEOS"),
        (None, ["--recipe=tsm_r50_k40_8f"], "tsm_r50_k400"),
        (None, ["--recipe=mvit_multi_smoke"], "--recipe"),
        (None, ["--data.root=x"], "--data.root"),
    ],
)
def test_a_user_error_is_one_line_and_writes_nothing(
    change, arguments, name, videos, run_here, tmp_path
):
    if change:
        change(videos)
    out = tmp_path / "out"
    done = run_here(SCRIPT, videos, "--recipe=tsm_smoke", f"--out={out}", *arguments)
    assert_one_line_error(done, name.format(videos))
    assert not out.exists()


def test_a_checkpoint_has_its_recipe_and_is_refused_by_another_network(tmp_path):
    tiny = ["model.first_width=8", "data.segments=2", "data.crop=32", "train.lr=0.5"]
    cfg = load_smoke_config("tsm", *tiny, "run.device=CPU", "run.out=/x/mine")
    weights = save_random_weights(cfg, tmp_path / "w.ckpt", "tsm")
    settings = ["data.crop=32", "data.frames=4", "data.scales=[32,32]"]
    with pytest.raises(ValueError, match="w.ckpt"):
        inspect_network(start_from("x3d_smoke", *settings, checkpoint=weights))
    own = start_from("", checkpoint=weights)
    assert (own.name, own.freeze, own.cfg.data.crop) == ("mine", "backbone", 32)
    assert inspect_network(own) > 2 * inspect_network(own._replace(checkpoint=None, freeze="")) > 32
    options = {"videos": Path("/my videos"), "names": NAMES, "counts": COUNTS, "fitting": 9}
    written = write_config_file(tmp_path / "finetune.yaml", own, **options)
    assert (written.model.first_width, written.class_counts, written.train.lr) == (8, (3,), 0.05)
    assert (written.train.pretrained, written.run.out) == (weights, tmp_path / "run")


@pytest.fixture
def commands(monkeypatch) -> list:
    """The commands that would run, each of which returns its number."""
    commands: list = []

    def run(words: list[str], _) -> dict:
        commands.append(words)
        return {"number": len(commands)}

    monkeypatch.setattr(finetune, "run_command", run)
    return commands


def test_a_step_is_skipped_while_its_files_exist_and_nothing_that_it_reads_is_newer(
    commands, tmp_path, capsys
):
    lists, result = tmp_path / "train.txt", tmp_path / "good"
    step = ("check", ["check.py", 1], result, [result / "a"], [lists])
    lists.touch()
    assert finetune.run_step(*step) == {"number": 1}
    result.mkdir()
    (result / "a").touch()
    assert finetune.run_step(*step) is None
    assert f"check: done before; delete {result} to repeat it" in capsys.readouterr().err
    os.utime(lists, ns=(0, (result / "a").stat().st_mtime_ns + 1))
    assert finetune.run_step(*step) == {"number": 2}
    assert commands == [["check.py", "1"]] * 2


def test_lists_of_other_videos_or_other_sources_are_refused(tmp_path, capsys):
    for name in ("a/1x", "b/2x", "a/3y", "b/4z"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).touch()
    (tmp_path / "train.txt").write_text("a/1x 0\nb/2x 1\n")
    (tmp_path / "val.csv").write_text("a/3y 0\n")
    (tmp_path / "test.txt").write_text("./b/4z 1\n")
    lists = finetune.read_lists(tmp_path, tmp_path / "videos", r"(\w)$")
    assert lists == {"train": ["a/1x", "b/2x"], "val": ["a/3y"], "test": ["b/4z"]}
    assert "sources: 1 train, 1 val, 1 test" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--group"):
        finetune.read_lists(tmp_path, tmp_path / "videos", r"(\w)/")
    with pytest.raises(ValueError, match="VIDEOS"):
        finetune.read_lists(tmp_path, tmp_path / "others")


def test_a_folder_of_another_recipe_is_refused(videos, run_here, tmp_path):
    write_config(tmp_path, "tsm")
    done = run_here(SCRIPT, videos, "--recipe=x3d_smoke", f"--out={tmp_path}")
    assert_one_line_error(done, "--recipe")


def test_a_rate_for_one_batch_scales_with_the_batch_of_the_videos(tmp_path):
    options = {"videos": Path("/my videos"), "names": NAMES, "counts": VideoCounts(16, 3, 1e6)}
    start = start_from("tsm_smoke")
    cfg = write_config_file(tmp_path / "finetune.yaml", start=start, fitting=100, **options)
    recipe = load_smoke_config("tsm")
    assert (recipe.train.base_batch, cfg.train.base_batch) == (0, recipe.data.batch)
    assert (cfg.data.batch, cfg.train.lr) == (4, recipe.train.lr)


SLEEPER = """
import json, signal, sys, time
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(json.dumps({"stopped": 1}))))
sys.stderr.write("started")
sys.stderr.flush()
time.sleep(600)
"""
RUN = """
import sys
from utils import signals

signals.watch()

from scripts.finetuning.own_commands import run_command
from utils.processes import pass_on_signals

with pass_on_signals() as add:
    print(run_command(sys.argv[1:2], add))
"""


def test_a_signal_is_passed_on_to_the_command(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    command = [sys.executable, "-c", RUN, script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=build_env(), cwd=ROOT, stdout=pipe, stderr=pipe)
    assert process.stderr.read(7) == b"started"
    process.terminate()
    assert process.communicate(timeout=600)[0] == b"{'stopped': 1}\n"
    assert process.returncode == 0


@pytest.mark.parametrize("network", ["tsm", "mvit_multi", "resnet50"])
def test_copies_are_made_of_the_good_videos_and_trained_on(network, tmp_path, monkeypatch, capsys):
    """check_videos.py and reencode_videos.py read the videos, and train.py the copies.

    A training that was stopped is not evaluated: the next run of the command trains on. With
    `run.patience` it could have ended by itself.
    """
    commands = []

    def run(words: list[str], _) -> dict:
        commands.append(words)
        folder = Path(words[words.index("--out") + 1] if "--out" in words else tmp_path / "run")
        folder.mkdir(exist_ok=True)
        for name in ("train", "test", "val"):
            suffix = "csv" if network == "mvit_multi" else "txt"
            (folder / f"{name}.{suffix}").write_text("a 0\nb 1\nc 2\n")
        for name in ("clips.png", "lr.png"):
            (folder / name).touch()
        (folder / "resume.ckpt").touch()
        return {"epochs": 2.5, "complete": False}

    monkeypatch.setattr(finetune, "run_command", run)
    cfg = write_config(tmp_path, network, "run.patience=3")
    own = find_network(network)
    for _ in range(2):  # the second time, all but the training is done
        assert finetune.run_steps(tmp_path, own, cfg, Path("/my videos")) == 1
        assert "stopped after 2.5 epochs" in capsys.readouterr().err
    *before, train, again = commands
    assert train == again
    assert train[0] == f"{network}/train.py"
    names = ["check_videos.py", "reencode_videos.py"] if network != "resnet50" else []
    assert [Path(words[0]).name for words in before] == [*names, "show_clips.py"]
    for words, folder in zip(before[:-1], ("lists", "good")):
        assert "--data.root=/my videos" in words
        assert any(word.endswith((f"/{folder}", f"/{folder}/train.txt")) for word in words)
        if folder == "good":
            assert words[words.index("--out") + 1] == str(tmp_path / "copies")


TINY = ["--model.first_width=8", "--data.segments=2", "--data.crop=32", "--data.resize=40"]
TINY += ["--data.batch=3", "--train.epochs=2", "--run.device=CPU", "--run.engine=mindspore"]


@pytest.mark.slow
def test_finetuning_end_to_end_from_videos_to_a_prediction(videos, tmp_path):
    """From random weights, then from the weights of that run; the second run skips all steps."""
    shutil.copy(videos / "up" / "test_up_000.mp4", videos / "up" / "damaged.mp4")
    with open(videos / "up" / "damaged.mp4", "r+b") as file:
        file.truncate(2000)
    out = tmp_path / "out"
    command = [SCRIPT, videos, "--recipe=tsm_smoke", f"--out={out}", *TINY]
    done = run_script(*command, timeout=1800)
    result = read_result(done)
    assert_report(out / "report", result)
    assert "no --checkpoint: the training starts from random weights" in done.stderr
    assert "test top-1 " in done.stderr.partition("report: ")[0].splitlines()[-1]
    assert "damaged.mp4" not in (out / "good" / "train.txt").read_text()
    assert (out / "run" / "curves.png").is_file()
    assert (out / "clips" / "clips.png").is_file()
    assert json.loads((out / "run" / "best.json").read_text())["keep_best"] == "top1"
    before = (out / "finetune.yaml").read_bytes()
    assert "came or went" not in done.stderr
    (videos / "up" / "new.mp4").write_bytes(b"no video")
    again = run_script(*command)
    assert "videos came or went (up/new.mp4): the lists stay" in again.stderr
    assert read_result(again) == result
    assert again.stderr.count("done before; delete") == 6
    assert f"using {out}/finetune.yaml as it is" in again.stderr
    assert (out / "finetune.yaml").read_bytes() == before
    assert_one_line_error(run_script(*command, "--train.lr=3"), "exists and has another value")
    weights = f"--checkpoint={result['checkpoint']}"
    tuned = run_script(SCRIPT, videos, f"--out={out}2", weights, *TINY, timeout=1800)
    assert "train.freeze backbone: 2 of " in tuned.stderr
    assert "train.feature_draws: the features of 2 clips of each of 6 videos" in tuned.stderr
    words = shlex.split(read_result(tuned)["predict"])
    words[0] = sys.executable
    words[-1:] = [str(videos / "up" / "test_up_000.mp4"), f"--out={tmp_path / 'predicted'}"]
    predicted = subprocess.run(words, env=build_env(), cwd=ROOT, capture_output=True, text=True)
    assert predicted.returncode == 0, predicted.stderr
