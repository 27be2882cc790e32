"""`--help` of every command; closed or full stdout; unusual names and arguments."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Optional

import pytest

from scripts import quickstart, zoo
from scripts.zoo import COMMANDS
from tests.documents import DOCUMENTS
from tests.helpers import (
    assert_one_line_error,
    build_env,
    copy_checkout,
    copy_scripts,
    link_environment,
    mark_installed,
    read_result,
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


def test_the_documents_name_existing_scripts_only():
    texts = [document.read_text() for document in DOCUMENTS]
    names = re.findall(r"\bscripts/(?:\w+/)*\w+\.(?:py|sh)", "".join(texts))
    assert len(set(names)) > 20
    assert set(names) <= set(SCRIPTS)


@pytest.mark.parametrize("script", PYTHON)
def test_a_script_shows_its_usage_and_runs_without_python_before_it(script, run_here):
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env python3\n")
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
        ("ImportError('libgomp.so.1: cannot open shared object file')", "libgomp1"),
        ("ImportError('libgomp.so.1: cannot allocate memory in static TLS block')", "LD_PRELOAD"),
        ("ImportError('/lib/libstdc++.so.6: version `GLIBCXX_3.4.26` not found')", "libstdcxx-ng"),
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


@pytest.mark.parametrize("script", [*TRAIN_EVAL_EXPORT, "scripts/convert_checkpoint.py"])
def test_a_script_without_required_arguments_prints_its_usage(script, run_here):
    done = run_here(script)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"python {script}" in done.stderr


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


@pytest.mark.parametrize("name", NETWORK_SCRIPTS)
def test_an_installed_command_shows_its_usage(name, run_zoo):
    done = run_zoo(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"NETWORK is one of {', '.join(list_networks())}" in done.stdout
    done = run_zoo(name, "tsm", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python tsm/{name}.py" in done.stdout


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
        ("check-video --help", "did you mean check-videos?"),
        ("train", "mvit_multi, resnet50, tsm, x3d"),
        ("train tms", "mvit_multi, resnet50, tsm, x3d, not tms"),
        ("export utils --config_path a", "not utils"),
    ],
)
def test_a_wrong_installed_command_is_answered_by_the_right_ones(line, words, run_zoo):
    assert_one_line_error(run_zoo(*line.split()), words)


@pytest.mark.parametrize("arguments", [["now"], ["--device", "gpu"], ["--device"]])
def test_the_quickstart_takes_only_a_device(arguments):
    done = run_script("scripts/quickstart.sh", *arguments)
    assert_one_line_error(done, f"error: {' '.join(arguments)}: ", "--device CPU, GPU or Ascend")


def run_with_closed_stdout(*command: str, **variables: str) -> subprocess.CompletedProcess:
    """`| head` closes the pipe after its lines."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {**build_env(), **variables}
    command = [sys.executable, *command]
    with os.fdopen(writer, "wb") as stdout:
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, env=env)


LISTS = "scripts/data/make_lists.py"
ZOO = "import sys; from scripts import zoo; sys.argv[1:] = {}; zoo.main()"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        [LISTS, "--videos={data}/videos", "--out={out}"],
        ["scripts/launch.py", "--help"],
        ["-c", ZOO.format([])],
        ["-c", ZOO.format(["make-lists", "--help"])],
    ],
)
def test_a_closed_pipe_ends_a_command_without_a_message(command, unbuffered, data_root, tmp_path):
    command = [word.replace("{data}", str(data_root)) for word in command]
    command = [word.replace("{out}", str(tmp_path)) for word in command]
    done = run_with_closed_stdout(*command, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == b""
    assert done.returncode in (0, 141)  # argparse ignores a closed pipe: 0


def test_a_pipe_that_closes_while_files_are_written_is_no_error():
    code = (
        "from pathlib import Path; from utils import cli, files\n"
        "def work():\n"
        "    with files.report_write_errors(Path('out')):\n"
        "        print('x' * 10**6, flush=True)\n"
        "cli.main_guard('', work)"
    )
    done = run_with_closed_stdout("-c", code)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("line", ["--help", "--videos {synthetic}/videos --out {out}"])
def test_a_full_disk_is_reported_in_one_line(line, data_root, tmp_path):
    arguments = line.format(synthetic=data_root, out=tmp_path / "lists").split()
    command = [sys.executable, str(ROOT / LISTS), *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=build_env()
        )
    assert_one_line_error(done, "error: ", "stdout")


def test_an_opened_file_never_gets_the_number_of_a_closed_stream(data_root, tmp_path):
    code = (
        "import os, sys; from utils.cli import prepare_streams;"
        "[os.close(number) for number in (0, 1, 2)]; prepare_streams();"
        "os._exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode > 2
    options = ["--videos", data_root / "videos", "--out", tmp_path / "lists"]
    command = ["sh", "-c", '"$@" >&-', "sh", sys.executable, ROOT / LISTS, *options]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_stdout_is_no_terminal():
    code = "import sys; from utils import cli; cli.main_guard('', lambda: sys.stdout.isatty())"
    command = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-c", code]
    done = run_command(command, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_a_character_that_the_console_does_not_have_is_printed_as_an_escape(encoding):
    code = r"from utils import cli; cli.main_guard('', lambda: print('\U0001f389'))"
    environment = {**build_env(), "PYTHONIOENCODING": encoding}
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


@pytest.mark.slow
def test_a_checkout_with_a_space_and_an_umlaut_in_its_name_works(tiny_args, tmp_path, monkeypatch):
    """Training with compiled CPU kernels, two workers, and both kinds of evaluation."""
    checkout = tmp_path / "my zöo"
    copy_checkout(checkout)
    link_environment(checkout)
    monkeypatch.delenv("ZOO_VENV", raising=False)
    settings = [word for word in tiny_args[2:] if word != "--run.engine=mindspore"]
    config = "tsm/configs/tsm_smoke.yaml"

    def run(script: str, *arguments: str) -> dict:
        command = ["bash", f"scripts/{script}.sh", "tsm", *arguments]
        variables = {**build_env(), "PWD": str(checkout)}
        return read_result(run_command(command, cwd=checkout, env=variables))

    weights = run("run_standalone_train", config, *settings)["checkpoint"]
    assert weights == str(checkout / "out" / "tsm_smoke" / "epoch_002.ckpt")
    assert list((checkout / ".cache" / "cpu_kernels").rglob("*.so"))
    two = ["2", config, *settings, "--run.out=out/my two"]
    assert run("run_distribute_train", *two)["epochs"] == 2
    for engine in ("auto", "mindspore"):
        more = [*settings, f"--run.engine={engine}"]
        assert run("run_eval", config, weights, *more)["videos"] == 8


@pytest.mark.parametrize("name", ["standalone_train", "distribute_train", "eval"])
def test_launch_scripts_name_the_networks_whatever_cdpath_is(name, tmp_path):
    script = f"scripts/run_{name}.sh"
    assert run_script(script).stderr.startswith("usage: ")
    (tmp_path / "scripts").mkdir()
    command = ["bash", script, "tms", "2", "x.yaml", "y"]
    done = run_command(command, cwd=ROOT, env={**build_env(), "CDPATH": str(tmp_path)})
    assert done.returncode == 2
    assert f"there are: {' '.join(list_networks())}" in done.stderr


@pytest.mark.parametrize("devices", ["00", "99999999999999999999", "1e3", " 2", "two"])
def test_an_invalid_number_of_devices_is_reported_in_one_line(devices):
    script = "scripts/run_distribute_train.sh"
    done = run_script(script, "tsm", devices, "x.yaml", environment={"ZOO_PYTHON": "/bin/no"})
    assert_one_line_error(done, "DEVICES", f"not {devices}")


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
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "cat", "cksum"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = run_quickstart(tmp_path, PATH=str(tmp_path / "bin"), ZOO_PYTHON="")
    assert done.returncode == 2
    assert "MindSpore needs Python 3.10 to 3.12" in done.stderr


@pytest.mark.parametrize(("first", "shown"), [(12.3, " 12.3 "), (None, " - ")])
def test_the_table_of_the_quickstart_has_intervals_and_the_first_step(first, shown):
    """A training that was complete before has no first step."""
    result = {"videos": 128, "views": "2x3", "train_seconds": 60.0, "first_step_seconds": first}
    for name, value in {"top1": 0.992, "top5": 1.0}.items():
        result.update({name: value, f"{name}_low": value - 0.03, f"{name}_high": 1.0})
    table = quickstart.format_table({"TSM": result}, 90.0)
    assert "99.2% (96.2 to 100.0)" in table
    assert shown in table
