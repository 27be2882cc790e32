"""Options of other code bases are answered by the option or the setting that does the same here."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers import assert_one_line_error, build_env
from utils import cli
from utils.files import ROOT
from utils.load_config import list_settings
from utils.networks import find_network, list_networks
from utils.option_names import OPTIONS, OTHERS, translate_option

TRAIN = ("--config_path",)
EVAL = ("--config_path", "--checkpoint_path")
CONVERT = ("--config_path", "--source", "--target")
EXPORT = ("--config_path", "--checkpoint_path", "--target", "--format")
# Network, options of the command, theirs as mindspore-ai/models, mindcv, mindvideo, the X3D port or
# PySlowFast write it, ours.
ANSWERS = [
    ("resnet50", TRAIN, "--device_target=GPU", "--run.device?"),
    ("resnet50", TRAIN, "--data_path", "--data.root?"),
    ("resnet50", TRAIN, "--data_dir", "--data.root?"),
    ("resnet50", TRAIN, "--ckpt_path", "--train.pretrained?"),
    ("resnet50", EVAL, "--ckpt_path", "--checkpoint_path?"),
    ("resnet50", EVAL, "--checkpoint_file_path", "--checkpoint_path?"),
    ("x3d", EVAL, "--pth_path=x3d.pth", "--checkpoint_path?"),
    ("x3d", CONVERT, "--pth_path=x3d.pth", "--source?"),
    ("resnet50", EXPORT, "--file_format", "--format?"),
    ("resnet50", EXPORT, "--file_name", "--target?"),
    ("resnet50", TRAIN, "--pre_trained", "--train.pretrained?"),
    ("tsm", TRAIN, "--tune_from", "--train.pretrained?"),
    ("tsm", TRAIN, "--num_segments", "--data.segments?"),
    ("tsm", TRAIN, "--clip-gradient", "--train.clip_norm?"),
    ("tsm", TRAIN, "--gd", "--train.clip_norm?"),
    ("tsm", TRAIN, "--lr_steps", "--train.milestones?"),
    ("resnet50", TRAIN, "--batch_size", "--data.batch (in tests --eval.batch)?"),
    ("resnet50", TRAIN, "--batch-size", "--data.batch (in tests --eval.batch)?"),
    ("resnet50", TRAIN, "--epoch_size", "--train.epochs?"),
    ("resnet50", TRAIN, "--lr_max", "--train.lr?"),
    ("resnet50", TRAIN, "--lr_end", "--train.end_lr?"),
    ("resnet50", TRAIN, "--min_lr", "--train.end_lr?"),
    ("resnet50", TRAIN, "--lr_decay_mode", "--train.schedule?"),
    ("resnet50", TRAIN, "--scheduler", "--train.schedule?"),
    ("resnet50", TRAIN, "--class_num", "--model.num_classes?"),
    ("resnet50", TRAIN, "--net_name", "--model.arch?"),
    ("resnet50", TRAIN, "--label_smooth_factor", "--train.smoothing?"),
    ("resnet50", TRAIN, "--train_image_size", "--data.crop?"),
    ("resnet50", TRAIN, "--image_resize", "--data.crop?"),
    ("resnet50", TRAIN, "--eval_image_size", "--eval.crop?"),
    ("resnet50", TRAIN, "--num_parallel_workers", "--data.workers?"),
    ("resnet50", TRAIN, "--amp_level", "--run.amp?"),
    ("resnet50", TRAIN, "--dataset_sink_mode", "--run.sink?"),
    ("resnet50", TRAIN, "--keep_checkpoint_max", "--run.keep_checkpoints?"),
    ("resnet50", TRAIN, "--save_checkpoint_epochs", "--run.save_every?"),
    ("resnet50", TRAIN, "--output_dir", "--run.out?"),
    ("resnet50", TRAIN, "--run_eval=True", "--run.eval_every?"),
    ("resnet50", TRAIN, "--save_best_ckpt", "--run.keep_best?"),
    ("resnet50", TRAIN, "--resume_ckpt", "--run.resume, and the same command again?"),
    ("resnet50", TRAIN, "--run_distribute=True", "scripts/launch.py DEVICES tsm/train.py"),
    ("resnet50", TRAIN, "--distribute", "scripts/launch.py DEVICES tsm/train.py"),
    ("resnet50", TRAIN, "--device_num=8", "scripts/launch.py DEVICES tsm/train.py"),
    ("resnet50", TRAIN, "--device_id=3", "DEVICE_ID=3 python ..."),
    ("resnet50", TRAIN, "--enable_modelarts=True", "docs/clusters.md"),
    ("x3d", TRAIN, "--cfg", "--config_path?"),
    ("x3d", TRAIN, "-c", "--config_path?"),
    ("x3d", TRAIN, "-train.epochs=3", "--train.epochs?"),
    ("x3d", TRAIN, "-q", "--help shows the usage"),
]


def build_parser(network: str, options: tuple[str, ...]) -> cli.Parser:
    """The parser of a command with these options and the settings of a network."""
    parser = cli.Parser("usage", list_settings(find_network(network).config), lambda cfg: 0)
    for option in options[1:]:
        parser.add_argument(option)
    return parser


@pytest.mark.parametrize(("network", "options", "theirs", "ours"), ANSWERS)
def test_an_option_of_another_code_base_is_answered_by_ours(network, options, theirs, ours):
    arguments = ["--config_path", "a.yaml", *theirs.split("="), "x"]
    with pytest.raises(ValueError, match=f"unknown option {theirs.split('=')[0]}; ") as caught:
        build_parser(network, options).parse(arguments)
    assert ours in str(caught.value)


def test_every_answer_is_an_option_or_a_setting_of_some_command():
    settings = {
        f"--{name}" for n in list_networks() for name in list_settings(find_network(n).config)
    }
    for ours in [text for key in OPTIONS for text in re.findall(r"--[\w.]+", key)]:
        assert ours in {*settings, "--config_path", "--out", *CONVERT, *EXPORT}, ours
    for text in OTHERS.values():
        assert [n for n in re.findall(r"\w+/[\w/.]+\.\w+", text) if not (ROOT / n).is_file()] == []


def test_no_answer_replaces_a_setting_of_the_same_name():
    keys = {name for n in list_networks() for name in list_settings(find_network(n).config)}
    keys = {key.rpartition(".")[2] for key in keys}
    assert not keys & {name for names in [*OPTIONS.values(), *OTHERS] for name in names.split()}


def test_a_command_without_settings_has_no_answer_of_settings():
    assert translate_option("--data_path", {"--videos": 0}) == ""


def test_a_rank_table_in_the_place_of_the_network_names_the_variable(tmp_path):
    script = ROOT / "scripts" / "run_distribute_train.sh"
    command = ["bash", str(script), "hccl.json", "data", "config.yaml"]
    done = subprocess.run(command, env=build_env(), cwd=tmp_path, capture_output=True, text=True)
    assert_one_line_error(done, f"RANK_TABLE_FILE=hccl.json bash {script} NETWORK ...")
    assert not list(Path(tmp_path).iterdir())
