"""`--help` of every command; closed or full stdout; unusual names and arguments."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.zoo import COMMANDS
from tests.helpers import build_env, mark_installed, run_script
from tests.test_readme import DOCUMENTS
from utils.config import ROOT
from utils.messages import LINE
from utils.networks import list_networks

INTERNAL = {"zoo.py", "worker.py", "env.sh", "compare_versions.py"}  # started by other scripts
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*(ROOT / "scripts").rglob("*.*"), *(ROOT / "benchmarks").rglob("*.py")]
    if path.suffix in (".py", ".sh") and path.name not in INTERNAL
    if path.suffix == ".sh" or "__main__" in path.read_text()
)
NETWORK_SCRIPTS = ("train", "eval", "export")
TRAIN_EVAL_EXPORT = [
    f"{network}/{name}.py" for network in list_networks() for name in NETWORK_SCRIPTS
]
PYTHON = [*TRAIN_EVAL_EXPORT, *(script for script in SCRIPTS if script.endswith(".py"))]


@pytest.fixture
def command_runner(monkeypatch, capsys):
    """A function that runs a command in this process; returns exit status, stdout and stderr."""

    def run(line: str) -> tuple:
        words, namespace, status = line.split(), {}, 0
        entry = words[0] == "zoo"
        script = ROOT / ("scripts/zoo.py" if entry else words[0])
        monkeypatch.setattr(sys, "argv", words if entry else [str(script), *words[1:]])
        try:
            namespace = runpy.run_path(str(script), run_name="entry" if entry else "__main__")
            if entry:
                namespace["main"]()
        except SystemExit as end:
            status = end.code or 0
        return (status, *capsys.readouterr())

    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    return run


def test_the_documents_name_existing_scripts_only():
    names = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"\bscripts/(?:\w+/)*\w+\.(?:py|sh)", document.read_text())
    }
    assert len(names) > 20
    assert names <= set(SCRIPTS)


@pytest.mark.parametrize("script", PYTHON)
def test_a_script_shows_its_usage(script, command_runner):
    status, out, err = command_runner(f"{script} --help")
    assert (status, err) == (0, "")
    assert script.rpartition("/")[2].replace("quickstart.py", "quickstart.sh") in out


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.endswith(".sh")])
def test_a_shell_script_shows_its_usage_and_does_nothing(script):
    done = run_script(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert f"bash {script}" in done.stdout
    assert "set -" not in done.stdout


def test_every_script_is_a_command_of_the_package():
    scripts = [script for script in PYTHON if script not in TRAIN_EVAL_EXPORT]
    assert sorted(COMMANDS.values()) == sorted(scripts)
    for name, script in COMMANDS.items():
        assert name.replace("-", "_") == Path(script).stem


def test_the_installed_command_lists_its_commands(command_runner):
    status, out, err = command_runner("zoo --help")
    assert (status, err) == (0, "")
    for name in [*NETWORK_SCRIPTS, *COMMANDS]:
        assert f"\n  {name} " in out
    assert command_runner("zoo")[0] == 2


@pytest.mark.parametrize("name", [*NETWORK_SCRIPTS, *COMMANDS])
def test_an_installed_command_shows_its_usage(name, command_runner):
    status, out, err = command_runner(f"zoo {name} --help")
    assert (status, err) == (0, "")
    if name in NETWORK_SCRIPTS:
        assert f"NETWORK is one of {', '.join(list_networks())}" in out
        status, out, err = command_runner(f"zoo {name} tsm --help")
        assert (status, err) == (0, "")
        assert f"python tsm/{name}.py" in out


def test_the_error_of_an_unknown_command_names_the_nearest_command(command_runner):
    status, out, err = command_runner("zoo check-video --help")
    assert (status, out) == (2, "")
    assert err == "error: unknown command check-video; did you mean check-videos?\n"


def test_help_does_not_import_mindspore():
    code = (
        "import atexit, runpy, sys; sys.argv = ['zoo', 'predict', '--help'];"
        "atexit.register(lambda: sys.stderr.write(str('mindspore' in sys.modules)));"
        f"runpy.run_path({str(ROOT / 'scripts' / 'zoo.py')!r})['main']()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "False")


@pytest.mark.parametrize("line", ["train", "train tms", "export utils --config_path a"])
def test_a_command_of_a_network_requires_a_network(line, command_runner):
    status, out, err = command_runner(f"zoo {line}")
    assert (status, out) == (2, "")
    assert f"NETWORK must be one of {', '.join(list_networks())}" in err


def test_the_quickstart_takes_no_arguments():
    done = run_script("scripts/quickstart.sh", "now")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: now: the quickstart takes no arguments; --help says what it does"
    ]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "line",
    [
        "data/make_lists.py --help",
        "launch.py --help",
        "data/synthesize_images.py --help",
        "data/make_lists.py --videos {synthetic}/videos --out {out}",
    ],
)
def test_a_closed_pipe_ends_a_command_without_a_message(line, unbuffered, data_root, tmp_path):
    """`| head` closes the pipe after its lines."""
    script, *arguments = line.format(synthetic=data_root, out=tmp_path).split()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        stdout=writer, stderr=subprocess.PIPE, timeout=60,
        env={**build_env(), "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode in (0, 141)  # argparse ignores a closed pipe: 0


@pytest.mark.parametrize("line", ["--help", "--videos {synthetic}/videos --out {out}"])
def test_a_full_disk_is_reported_in_one_line(line, data_root, tmp_path):
    arguments = line.format(synthetic=data_root, out=tmp_path / "lists").split()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "data" / "make_lists.py"), *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=build_env(),
        )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "stdout" in line


def test_an_opened_file_never_gets_the_number_of_a_closed_stream(data_root, tmp_path):
    code = (
        "import os, sys; from utils.cli import fill_closed_streams;"
        "[os.close(number) for number in (0, 1, 2)]; fill_closed_streams();"
        f"os.write(os.open({str(tmp_path / 'number')!r}, os.O_CREAT | os.O_WRONLY), b'x');"
        "os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60)
    assert done.returncode > 2
    script = f"{sys.executable} {ROOT}/scripts/data/make_lists.py --videos {data_root}/videos --out"
    done = subprocess.run(f"{script} {tmp_path}/lists >&-", shell=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_command_without_settings_refuses_settings(data_root, tmp_path):
    arguments = [f"--videos={data_root}", f"--out={tmp_path}", "--data.x=3"]
    done = run_script("scripts/data/make_lists.py", *arguments)
    assert done.returncode == 2
    assert done.stderr == "error: --data.x=3: this command takes no settings\n"


def test_control_characters_and_long_names_are_not_printed(tmp_path):
    for name in ("\x1b[31mred\x07", "n" * 100_000):
        done = run_script("scripts/data/make_lists.py", f"--videos={name}", f"--out={tmp_path}")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.isprintable()
        assert len(line) <= LINE


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a hostile name. Its Python prints its arguments, separated by zero bytes."""
    root = tmp_path / "a 'b' \"c\" $(touch hacked); `touch hacked` \nd *"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    monkeypatch.delenv("ZOO_VENV", raising=False)
    mark_installed(root)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    python.chmod(0o755)
    (root / "tsm").mkdir()
    (root / "tsm" / "train.py").touch()
    return root


def test_launch_scripts_pass_hostile_arguments_unchanged(checkout, tmp_path):
    hostile = ["c d.yaml", "--run.out=e\nf 'g' \"h\"", "--data.root=$(touch hacked)", "--x.y=*", ""]
    for words, script in [(["tsm"], "standalone_train"), (["tsm", "2"], "distribute_train")]:
        done = subprocess.run(
            ["bash", str(checkout / "scripts" / f"run_{script}.sh"), *words, *hostile],
            capture_output=True, text=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        arguments = done.stdout.split("\0")[:-1]
        assert arguments[-6:] == ["--config_path", *hostile]
        assert str(checkout / "tsm" / "train.py") in arguments
    assert not list(tmp_path.rglob("hacked"))


def test_launch_scripts_ignore_cdpath(tmp_path):
    (tmp_path / "scripts").mkdir()
    done = subprocess.run(
        ["bash", "scripts/run_standalone_train.sh", "tms", "x.yaml"],
        cwd=ROOT, env={**build_env(), "CDPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"there are: {' '.join(list_networks())}" in done.stderr


@pytest.mark.parametrize("devices", ["00", "99999999999999999999", "1e3", " 2", "two"])
def test_an_invalid_number_of_devices_is_reported_in_one_line(devices):
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "run_distribute_train.sh"), "tsm", devices, "x.yaml"],
        capture_output=True, text=True, timeout=60, env={**build_env(), "ZOO_PYTHON": "/bin/no"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"DEVICES must be a whole number above 0, not {devices}\n"
