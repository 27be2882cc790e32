"""Options of other code bases are answered by the option or the setting that does the same here."""

import re
import subprocess
from pathlib import Path
from typing import Optional

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
# Network, options of the command, theirs, ours: the first that the command has.
ANSWERS = [
    ("resnet50", TRAIN, "--device_target=GPU", "--run.device?"),
    ("resnet50", TRAIN, "--ckpt_path", "--train.pretrained?"),
    ("resnet50", EVAL, "--ckpt_path", "--checkpoint_path?"),
    ("x3d", CONVERT, "--pth_path=x3d.pth", "--source?"),
    ("resnet50", EXPORT, "--file_format", "--format?"),
    ("resnet50", TRAIN, "--pre_trained", "--train.pretrained?"),
    ("tsm", TRAIN, "--clip-gradient", "--train.clip_norm?"),
    ("resnet50", TRAIN, "--batch-size", "--data.batch (in tests --eval.batch)?"),
    ("resnet50", TRAIN, "--image_resize", "--data.crop?"),
    ("resnet50", TRAIN, "--output_dir", "--run.out?"),
    ("resnet50", TRAIN, "--resume_ckpt", "--run.resume, and the same command again?"),
    ("resnet50", TRAIN, "--run_distribute=True", "scripts/launch.py DEVICES tsm/train.py"),
    ("resnet50", TRAIN, "--device_id=3", "DEVICE_ID=3 python ..."),
    ("resnet50", TRAIN, "--enable_modelarts=True", "docs/clusters.md"),
    ("tsm", EVAL, "--stream", "scripts/stream.py SOURCE"),
    ("x3d", TRAIN, "-c", "--config_path?"),
    ("x3d", TRAIN, "-train.epochs=3", "--train.epochs?"),
    ("x3d", TRAIN, "-q", "--help shows the usage"),
]


@pytest.mark.parametrize(("network", "options", "theirs", "ours"), ANSWERS)
def test_an_option_of_another_code_base_is_answered_by_ours(network, options, theirs, ours):
    parser = cli.Parser("usage", list_settings(find_network(network).config), lambda cfg: 0)
    for option in options[1:]:
        parser.add_argument(option)
    with pytest.raises(ValueError, match=f"{theirs.split('=')[0]}; ") as caught:
        parser.parse(["--config_path", "a.yaml", *theirs.split("="), "x"])
    assert ours in str(caught.value)


def test_every_answer_is_an_option_or_a_setting_and_replaces_none():
    networks = map(find_network, list_networks())
    settings = {f"--{name}" for network in networks for name in list_settings(network.config)}
    for ours in [text for key in OPTIONS for text in re.findall(r"--[\w.]+", key)]:
        assert ours in {*settings, "--config_path", "--out", *CONVERT, *EXPORT}, ours
    for text in OTHERS.values():
        assert [n for n in re.findall(r"\w+/[\w/.]+\.\w+", text) if not (ROOT / n).is_file()] == []
    keys = {setting.rpartition(".")[2] for setting in settings}
    assert not keys & {name for names in [*OPTIONS.values(), *OTHERS] for name in names.split()}


def test_a_command_without_settings_has_no_answer_of_settings():
    assert translate_option("--data_path", {"--videos": 0}) == ""


def test_a_rank_table_in_the_place_of_the_network_names_the_variable(tmp_path):
    script = ROOT / "scripts" / "run_distribute_train.sh"
    command = ["bash", str(script), "hccl.json", "data", "config.yaml"]
    done = subprocess.run(command, env=build_env(), cwd=tmp_path, capture_output=True, text=True)
    assert_one_line_error(done, f"RANK_TABLE_FILE=hccl.json bash {script} NETWORK ...")
    assert not list(Path(tmp_path).iterdir())


def test_words_after_two_dashes_are_names_of_files():
    def main(files: list[str], *, out: str = "", numbers: Optional[list[int]] = None) -> None:
        pass

    words = ["--numbers", "1", "2", "--", "-a.mp4", "--out", "b"]
    values = cli.Parser("usage", [], main).parse(words)[2]
    assert values == {"numbers": [1, 2], "files": ["./-a.mp4", "./--out", "b"]}
