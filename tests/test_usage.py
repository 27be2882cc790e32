"""`--help` of every command; closed or full stdout; hostile arguments; a failed installation."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Optional

import pytest

from scripts import zoo
from scripts.zoo import COMMANDS
from tests.helpers import (
    assert_one_line_error,
    build_env,
    copy_scripts,
    mark_installed,
    run_command,
    run_script,
)
from utils import cli
from utils.files import ROOT
from utils.networks import list_networks

# Started by other scripts.
INTERNAL = {"zoo.py", "worker.py", "cuda.py"}
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "scripts").rglob("*.*"), *(ROOT / "benchmarks").rglob("*.py")]
    if path.suffix in (".py", ".sh") and path.name not in INTERNAL
    if path.suffix == ".sh" or '\nif __name__ == "__main__":\n' in path.read_text()
)
NETWORK_SCRIPTS = ("train", "eval", "export")
TRAIN_EVAL_EXPORT = [
    f"{network}/{name}.py" for network in list_networks() for name in NETWORK_SCRIPTS
]
PYTHON = [*TRAIN_EVAL_EXPORT, *(script for script in SCRIPTS if script.endswith(".py"))]


@pytest.fixture
def run_zoo(run_here):
    return partial(run_here, "zoo", main=zoo.main)


@pytest.mark.parametrize("script", PYTHON)
def test_a_script_shows_its_usage_and_runs_without_python_before_it(script, run_here):
    assert os.access(ROOT / script, os.X_OK)
    text = (ROOT / script).read_text()
    assert text.startswith("#!/usr/bin/env python3\n")
    assert "\nprepare_process(__name__)\n" in text, "it watches signals first"
    done = run_here(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert script.rpartition("/")[2].replace("quickstart.py", "quickstart.sh") in done.stdout


@pytest.mark.parametrize("script", ["tsm/train.py", "scripts/predict.py", "scripts/launch.py"])
def test_a_python_without_packages_is_reported_in_one_line(script):
    """A shell in which the environment is not activated has such a Python."""
    done = run_command([sys.executable, "-S", "-I", ROOT / script, "--config_path", "x"])
    assert_one_line_error(done, "MindSpore", ".venv/bin/activate", "scripts/quickstart.sh")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError('No tqdm', name='tqdm_none')", "has no tqdm_none"),
        ("ImportError('libgomp.so.1: cannot allocate memory in static TLS block')", "LD_PRELOAD"),
    ],
)
def test_another_missing_package_or_library_is_named(error, words, tmp_path):
    (tmp_path / "tqdm.py").write_text(f"raise {error}\n")
    path = {"PYTHONPATH": str(tmp_path)}
    done = run_script("scripts/data/check_videos.py", "--help", environment=path)
    assert_one_line_error(done, words)


@pytest.mark.parametrize("script", ["tsm/train.py", "scripts/zoo.py", "scripts/data/make_lists.py"])
def test_packages_with_our_names_elsewhere_on_the_path_are_not_imported(script, tmp_path):
    for name in ("utils", "scripts", "tsm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError")
    done = run_script(script, "--help", environment={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.endswith(".sh")])
def test_a_shell_script_shows_its_usage_and_does_nothing(script):
    done = run_script(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert re.search(rf"\b(bash|sbatch) .*{re.escape(script)}", done.stdout)
    assert "set -" not in done.stdout
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")


def test_words_after_two_dashes_are_names_of_files():
    def main(files: list[str], *, out: str = "", numbers: Optional[list[int]] = None) -> None:
        pass

    words = ["--numbers", "1", "2", "--", "-a.mp4", "--out", "b"]
    values = cli.Parser("usage", [], main).parse(words)[2]
    assert values == {"numbers": [1, 2], "files": ["./-a.mp4", "./--out", "b"]}


def test_every_script_is_a_command_of_the_package(run_zoo):
    scripts = [script for script in PYTHON if script not in TRAIN_EVAL_EXPORT]
    assert sorted(COMMANDS.values()) == sorted(scripts)
    done = run_zoo("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in [*NETWORK_SCRIPTS, *COMMANDS]:
        assert f"\n  {name} " in done.stdout
    assert run_zoo().returncode == 2


def test_help_does_not_import_mindspore():
    code = (
        "import atexit, runpy, sys; sys.argv = ['zoo', 'predict', '--help'];"
        "atexit.register(lambda: sys.stderr.write(str('mindspore' in sys.modules)));"
        f"runpy.run_path({str(ROOT / 'scripts' / 'zoo.py')!r})['main']()"
    )
    done = run_command([sys.executable, "-c", code])
    assert (done.returncode, done.stderr) == (0, "False")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("check-video --help", "check-videos"),
        ("train", "mvit_multi, resnet50, tsm, x3d"),
        ("export utils --config_path a", "not utils"),
    ],
)
def test_a_wrong_installed_command_is_answered_by_the_right_ones(line, words, run_zoo):
    assert_one_line_error(run_zoo(*line.split()), words)


LISTS = "scripts/data/make_lists.py"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_without_a_message(unbuffered, data_root, tmp_path):
    """`| head` closes the pipe after its lines."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, ROOT / LISTS, "--videos", data_root / "videos", "--out", tmp_path]
    env = {**build_env(), "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=env)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_reported_in_one_line(data_root, tmp_path):
    command = [sys.executable, ROOT / LISTS, "--videos", data_root / "videos", "--out", tmp_path]
    options = {"stderr": subprocess.PIPE, "text": True, "env": build_env()}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, **options)
    assert_one_line_error(done, "error: ", "stdout")


def test_an_opened_file_never_gets_the_number_of_a_closed_stream():
    code = (
        "import os, sys; from utils.cli import prepare_streams;"
        "[os.close(number) for number in (0, 1, 2)]; prepare_streams();"
        "os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode > 2


def test_a_character_that_the_console_does_not_have_is_printed_as_an_escape():
    code = r"from utils import cli; cli.main_guard('', lambda: print('\U0001f389'))"
    environment = {**build_env(), "PYTHONIOENCODING": "gbk"}
    done = run_command([sys.executable, "-c", code], cwd=ROOT, env=environment)
    assert (done.returncode, done.stdout) == (0, "\\U0001f389\n")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a hostile name. Its Python prints its arguments, separated by zero bytes."""
    root = tmp_path / "a 'b' \"c\" $(touch hacked); `touch hacked` \nd *"
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(root, "printf '%s\\0' \"$@\"")
    mark_installed(root)
    (root / "tsm").mkdir()
    (root / "tsm" / "train.py").touch()
    return root


def test_launch_scripts_pass_hostile_arguments_unchanged(checkout, tmp_path):
    hostile = ["c d.yaml", "--run.out=e\nf 'g' \"h\"", "--data.root=$(touch hacked)", "--x.y=*", ""]
    for words, script in [(["tsm"], "standalone_train"), (["tsm", "2"], "distribute_train")]:
        command = ["bash", checkout / "scripts" / f"run_{script}.sh", *words, *hostile]
        done = run_command(command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        arguments = done.stdout.split("\0")[:-1]
        assert arguments[-6:] == ["--config_path", *hostile]
        assert str(checkout / "tsm" / "train.py") in arguments
    assert not list(tmp_path.rglob("hacked"))


def run_quickstart(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    command = ["/bin/bash", checkout / "scripts" / "quickstart.sh"]
    return run_command(command, env={**os.environ, **variables}, timeout=None)


def test_a_failed_installation_and_a_wrong_python_are_reported(tmp_path, monkeypatch):
    """The environment of the checkout has a Python that fails, then there is none."""
    monkeypatch.delenv("ZOO_VENV", raising=False)
    copy_scripts(tmp_path, "echo 'ERROR: No matching distribution found for mindspore'\nexit 1")
    done = run_quickstart(tmp_path)
    assert done.returncode == 2
    *_, reason, advice = done.stderr.splitlines()
    assert reason.startswith("ERROR: No matching distribution")
    assert advice.endswith("Run the same command again.")
    shutil.rmtree(tmp_path / ".venv")
    done = run_quickstart(tmp_path, ZOO_PYTHON="/bin/false")
    assert done.returncode == 2
    assert "ZOO_PYTHON=/bin/false is not a Python 3.10 to 3.12" in done.stderr
