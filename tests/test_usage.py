"""`--help` of every command; closed or full stdout; unusual names and arguments."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

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
    run_script,
)
from utils.files import ROOT
from utils.messages import LINE
from utils.networks import list_networks

# Started by other scripts.
INTERNAL = {"zoo.py", "worker.py", "cuda.py", "compare_versions.py"}
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
    names = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"\bscripts/(?:\w+/)*\w+\.(?:py|sh)", document.read_text())
    }
    assert len(names) > 20
    assert names <= set(SCRIPTS)


@pytest.mark.parametrize("script", PYTHON)
def test_a_script_shows_its_usage(script, run_here):
    done = run_here(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert script.rpartition("/")[2].replace("quickstart.py", "quickstart.sh") in done.stdout


@pytest.mark.parametrize("script", [name for name in PYTHON if "check_env" not in name])
def test_a_python_without_packages_is_reported_in_one_line(script):
    """A shell in which the environment is not activated has such a Python."""
    command = [sys.executable, "-S", "-I", str(ROOT / script), "--config_path", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert_one_line_error(
        done, "has no MindSpore: source .venv/bin/activate, which bash scripts/quickstart.sh makes"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ModuleNotFoundError('No tqdm', name='tqdm_none')", "has no tqdm_none"),
        ("ImportError('libgomp.so.1: cannot open shared object file')", "libgomp1"),
        ("ImportError('/lib/libstdc++.so.6: version `GLIBCXX_3.4.26` not found')", "libstdcxx-ng"),
    ],
)
def test_another_missing_package_or_library_is_named(error, words, tmp_path):
    (tmp_path / "tqdm.py").write_text(f"raise {error}\n")
    done = run_script(
        "scripts/data/check_videos.py", "--help", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert_one_line_error(done, words)


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


def test_every_script_is_a_command_of_the_package():
    scripts = [script for script in PYTHON if script not in TRAIN_EVAL_EXPORT]
    assert sorted(COMMANDS.values()) == sorted(scripts)
    for name, script in COMMANDS.items():
        assert name.replace("-", "_") == Path(script).stem


def test_the_installed_command_lists_its_commands(run_zoo):
    done = run_zoo("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in [*NETWORK_SCRIPTS, *COMMANDS]:
        assert f"\n  {name} " in done.stdout
    assert run_zoo().returncode == 2


@pytest.mark.parametrize("name", [*NETWORK_SCRIPTS, *COMMANDS])
def test_an_installed_command_shows_its_usage(name, run_zoo):
    done = run_zoo(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    if name in NETWORK_SCRIPTS:
        assert f"NETWORK is one of {', '.join(list_networks())}" in done.stdout
        done = run_zoo(name, "tsm", "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"python tsm/{name}.py" in done.stdout


def test_the_error_of_an_unknown_command_names_the_nearest_command(run_zoo):
    done = run_zoo("check-video", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown command check-video; did you mean check-videos?\n"


def test_help_does_not_import_mindspore():
    code = (
        "import atexit, runpy, sys; sys.argv = ['zoo', 'predict', '--help'];"
        "atexit.register(lambda: sys.stderr.write(str('mindspore' in sys.modules)));"
        f"runpy.run_path({str(ROOT / 'scripts' / 'zoo.py')!r})['main']()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "False")


@pytest.mark.parametrize("line", ["train", "train tms", "export utils --config_path a"])
def test_a_command_of_a_network_requires_a_network(line, run_zoo):
    done = run_zoo(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"NETWORK must be one of {', '.join(list_networks())}" in done.stderr


@pytest.mark.parametrize("arguments", [["now"], ["--device", "gpu"], ["--device"]])
def test_the_quickstart_takes_only_a_device(arguments):
    done = run_script("scripts/quickstart.sh", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: {' '.join(arguments)}: the quickstart takes --device CPU, GPU or Ascend; --help "
        "says what it does"
    ]


def run_with_closed_stdout(*command: str, **variables: str) -> subprocess.CompletedProcess:
    """`| head` closes the pipe after its lines."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *command],
        stdout=writer, stderr=subprocess.PIPE, timeout=600,
        cwd=ROOT, env={**build_env(), **variables},
    )  # fmt: skip
    os.close(writer)
    return done


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
    script, *arguments = line.format(synthetic=data_root, out=tmp_path).split()
    done = run_with_closed_stdout(f"scripts/{script}", *arguments, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == b""
    assert done.returncode in (0, 141)  # argparse ignores a closed pipe: 0


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["make-lists", "--help"]])
def test_a_closed_pipe_ends_the_installed_command_without_a_message(arguments):
    code = f"import sys; from scripts import zoo; sys.argv[1:] = {arguments}; zoo.main()"
    done = run_with_closed_stdout("-c", code)
    assert (done.returncode, done.stderr) == (141, b"")


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
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "data" / "make_lists.py"), *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, env=build_env(),
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
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=600)
    assert done.returncode > 2
    script = ROOT / "scripts" / "data" / "make_lists.py"
    command = [
        sys.executable,
        script,
        "--videos",
        data_root / "videos",
        "--out",
        tmp_path / "lists",
    ]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_control_characters_and_long_names_are_not_printed(tmp_path, run_here):
    for name in ("\x1b[31mred\x07", "n" * 100_000):
        done = run_here("scripts/data/make_lists.py", f"--videos={name}", f"--out={tmp_path}")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.isprintable()
        assert len(line) <= LINE


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
        done = subprocess.run(
            ["bash", str(checkout / "scripts" / f"run_{script}.sh"), *words, *hostile],
            capture_output=True, text=True, timeout=600, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        arguments = done.stdout.split("\0")[:-1]
        assert arguments[-6:] == ["--config_path", *hostile]
        assert str(checkout / "tsm" / "train.py") in arguments
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.slow
def test_a_checkout_with_a_space_and_an_umlaut_in_its_name_works(tiny_args, tmp_path, monkeypatch):
    """Training with compiled CPU kernels, two workers, both kinds of evaluation, and this file."""
    checkout = tmp_path / "my zöo"
    copy_checkout(checkout)
    link_environment(checkout)
    monkeypatch.delenv("ZOO_VENV", raising=False)
    settings = [word for word in tiny_args[2:] if word != "--run.engine=mindspore"]
    config = "tsm/configs/tsm_smoke.yaml"

    def run(*command: str) -> subprocess.CompletedProcess:
        variables = {**build_env(), "PWD": str(checkout)}
        return subprocess.run(
            command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=900
        )

    train = ["bash", "scripts/run_standalone_train.sh", "tsm", config, *settings]
    weights = read_result(run(*train))["checkpoint"]
    assert weights == str(checkout / "out" / "tsm_smoke" / "epoch_002.ckpt")
    assert list((checkout / ".cache" / "cpu_kernels").rglob("*.so"))
    train = ["bash", "scripts/run_distribute_train.sh", "tsm", "2", config, *settings]
    assert read_result(run(*train, "--run.out=out/my two"))["epochs"] == 2
    for engine in ("auto", "mindspore"):
        evaluate = ["bash", "scripts/run_eval.sh", "tsm", config, weights, *settings]
        assert read_result(run(*evaluate, f"--run.engine={engine}"))["videos"] == 8
    done = run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_usage.py"
    )
    assert done.returncode == 0, done.stdout[-3000:]


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
    environment = {"ZOO_PYTHON": "/bin/no"}
    arguments = ["tsm", devices, "x.yaml"]
    done = run_script("scripts/run_distribute_train.sh", *arguments, environment=environment)
    assert done.returncode == 2
    assert done.stderr == f"DEVICES must be an integer above 0, not {devices}\n"


def test_the_table_of_the_quickstart_has_the_intervals_of_its_accuracies():
    result = {"videos": 128, "views": "2x3", "train_seconds": 60.0}
    for name, value in {"top1": 0.992, "top5": 1.0}.items():
        result.update({name: value, f"{name}_low": value - 0.03, f"{name}_high": 1.0})
    assert "99.2% (96.2 to 100.0)" in quickstart.format_table({"TSM": result}, 90.0)
