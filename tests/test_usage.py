"""`--help` of every command that a user types, and commands whose output nobody reads on."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import call, environment
from tests.test_readme import DOCUMENTS
from utils.command import rooms
from utils.config import ROOT

INTERNAL = {"console.py", "worker.py", "scaling_worker.py", "env.sh"}  # started by the others
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("scripts", "scripts/analysis")
    for path in (ROOT / folder).glob("*.*")
    if path.suffix in (".py", ".sh") and path.name not in INTERNAL
)
OF_ROOMS = [f"{room}/{name}.py" for room in rooms() for name in ("train", "eval", "export")]
PYTHON = [*OF_ROOMS, *(script for script in SCRIPTS if script.endswith(".py"))]
ENTRIES = re.findall(r"^(zoo-\S+) = ", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


@pytest.fixture
def typed(monkeypatch, capsys):
    """Runs a command in this process; its exit status, stdout and stderr."""

    def run(line: str) -> tuple:
        words, namespace, status = line.split(), {}, 0
        entry = words[0].startswith("zoo-")
        script = ROOT / ("scripts/console.py" if entry else words[0])
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


def test_the_documents_name_no_other_scripts():
    named = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"\bscripts/(?:\w+/)*\w+\.(?:py|sh)", document.read_text())
    }
    assert len(named) > 20
    assert named <= set(SCRIPTS)


@pytest.mark.parametrize("script", PYTHON)
def test_a_script_shows_its_usage(script, typed):
    status, out, err = typed(f"{script} --help")
    assert (status, err) == (0, "")
    assert script.rpartition("/")[2].replace("quickstart.py", "quickstart.sh") in out


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.endswith(".sh")])
def test_a_shell_script_shows_its_usage_and_does_nothing(script):
    done = call(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert f"bash {script}" in done.stdout
    assert "set -" not in done.stdout


def test_every_script_is_a_command_of_the_package():
    dashed = [Path(script).stem.replace("_", "-") for script in PYTHON[len(OF_ROOMS) :]]
    assert sorted(ENTRIES) == sorted(f"zoo-{name}" for name in ["train", "eval", "export", *dashed])


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_installed_command_shows_its_usage(entry, typed):
    status, out, err = typed(f"{entry} --help")
    assert (status, err) == (0, "")
    if entry in ("zoo-train", "zoo-eval", "zoo-export"):
        assert f"NETWORK is one of {', '.join(rooms())}" in out
        status, out, err = typed(f"{entry} tsm --help")
        assert (status, err) == (0, "")
        assert f"python tsm/{entry[len('zoo-') :]}.py" in out


def test_a_usage_needs_no_framework():
    code = (
        "import atexit, runpy, sys; sys.argv = ['zoo-predict', '--help'];"
        "atexit.register(lambda: sys.stderr.write(str('mindspore' in sys.modules)));"
        f"runpy.run_path({str(ROOT / 'scripts' / 'console.py')!r})['main']()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "False")


@pytest.mark.parametrize("line", ["zoo-train", "zoo-train tms", "zoo-export utils --config_path a"])
def test_a_command_of_the_networks_offers_networks_only(line, typed):
    status, out, err = typed(line)
    assert (status, out) == (2, "")
    assert f"the first argument must be one of {', '.join(rooms())}" in err


def test_the_quickstart_takes_no_arguments():
    done = call("scripts/quickstart.sh", "now")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: now: the quickstart takes no arguments; --help says what it does"
    ]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "line",
    [
        "make_lists.py --help",
        "launch.py --help",
        "draw_images.py --help",
        "make_lists.py --videos {drawn}/videos --out {out}",
    ],
)
def test_a_reader_who_has_gone_ends_a_command_in_silence(line, unbuffered, drawn, tmp_path):
    """As `| head` does once it has its lines."""
    script, *arguments = line.format(drawn=drawn, out=tmp_path).split()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        stdout=writer, stderr=subprocess.PIPE, timeout=60,
        env={**environment(), "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode in (0, 141)  # 0: argparse says nothing of it either
