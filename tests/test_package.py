"""The installed package: files of the wheel, and its commands in an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from tests.conftest import TINY
from tests.helpers import (
    build_env,
    copy_checkout,
    load_smoke_config,
    read_result,
    run_command,
    save_random_weights,
)
from tests.test_api import TOYS
from tests.test_cells import read_program
from tests.toy_recipes import draw_samples, list_toy_settings
from tsm.config import Config
from utils import files
from utils.files import ROOT
from utils.inference import model as api
from utils.load_config import load_config, resolve_yaml
from utils.networks import list_networks

NAME = "mindspore_video_zoo"
TSM = ["--config_path", "tsm/configs/tsm_smoke.yaml", *TINY]
TSM += ["--train.epochs=1", "--train.warmup_epochs=0"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy, because setuptools writes files beside the sources."""
    pytest.importorskip("setuptools")
    pytest.importorskip("wheel")
    copy = tmp_path_factory.mktemp("copy") / "zoo"
    folder = tmp_path_factory.mktemp("wheel")
    copy_checkout(copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(copy)]
    subprocess.run(command, check=True, timeout=600)
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_code_and_yamls_in_one_package(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    files = {
        path
        for name in [*list_networks(), "utils", "scripts", "benchmarks"]
        for path in (ROOT / name).rglob("*.py")
    }
    expected = {path for path in files if "tests" not in path.parts}
    expected |= {*ROOT.glob("*/configs/*.yaml"), *ROOT.glob("utils/labels/*.txt")}
    expected |= {*ROOT.glob("scripts/dry_run/*.c"), *ROOT.glob("scripts/dry_run/*.cc")}
    expected |= {*ROOT.glob("utils/nn/kernels/cpu/*.cc"), *ROOT.glob("utils/weights/*.yaml")}
    expected |= {ROOT / "utils/evaluate/report.html", ROOT / "utils/evaluate/report.js"}
    inside = {name for name in names if ".dist-info/" not in name}
    root = ROOT / "scripts/package/__init__.py"
    others = {f"{NAME}/{path.relative_to(ROOT)}" for path in expected - {root}}
    assert inside == {f"{NAME}/__init__.py", *others}


# A program that has modules with short names of its own. Its argument, in JSON: the checkpoint of a
# network, settings, the shape of frames.
PROGRAM = """
import json, sys, utils
hook = sys.excepthook
path = list(sys.path)
import mindspore_video_zoo as zoo
import numpy as np
checkpoint, settings, shape = json.loads(sys.argv[1])
model = zoo.load("tsm_smoke", checkpoint, device="CPU", settings=settings)
frames = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
print(json.dumps(model.predict(frames, top=3)))
from mindspore_video_zoo.utils.networks import find_network, list_networks
assert [find_network(name) for name in list_networks()]
import scripts, tsm
assert (utils.OWN, scripts.OWN, tsm.OWN) == (1, 1, 1)
names = {name.partition(".")[0] for name in sys.modules if "." in name}
assert not names & {"utils", "tsm", "scripts", "x3d", "mvit_multi", "resnet50"}, names
assert sys.excepthook is hook
assert [name for name in sys.path if "mindspore/graph" not in name] == path  # MindSpore's own
"""


def test_a_program_may_have_modules_with_the_names_of_the_package(wheel, tmp_path):
    """Before and after its import. The result is that of this process, bit for bit."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    settings = [*TOYS["tsm"], f"data.root={tmp_path}"]
    shape = (20, 40, 50, 3)
    path = save_random_weights(load_smoke_config("tsm", *settings), tmp_path / "tsm.ckpt", "tsm")
    for name in ("utils", "scripts", "tsm"):
        (tmp_path / f"{name}.py").write_text("OWN = 1")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", json.dumps([str(path), settings, shape])]
    env = {**build_env(), "PYTHONPATH": str(tmp_path / "site")}
    done = run_command(command, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    frames = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    model = api.load("tsm_smoke", path, device="CPU", settings=settings)
    assert list(map(tuple, json.loads(done.stdout))) == model.predict(frames, top=3)


def test_an_installed_package_uses_the_current_folder(tmp_path, monkeypatch, capsys):
    """Data and results are in the current folder; config files are those of the package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "ROOT", tmp_path / NAME)
    monkeypatch.setattr("utils.load_config.ROOT", tmp_path / NAME)
    yaml = Path("tsm/configs/tsm_smoke.yaml")
    assert resolve_yaml(yaml) == yaml
    (tmp_path / NAME / yaml).parent.mkdir(parents=True)
    shutil.copy(ROOT / yaml, tmp_path / NAME / yaml)
    cfg = load_config(Config, resolve_yaml(yaml))
    assert cfg.data.root == tmp_path / "data" / "synthetic"
    assert cfg.run.out == tmp_path / "out" / "tsm_smoke"
    message = f"reading {tmp_path / NAME / yaml}, of the zoo\n"
    assert capsys.readouterr().err == message
    (tmp_path / "mine.yaml").touch()
    resolve_yaml(Path("mine.yaml"))
    assert capsys.readouterr().err == ""


def install(target: Path, folder: Path, *options: str) -> Path:
    """Installs into a new environment, which can import the packages of this one.

    Returns its folder of commands.
    """
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "parent.pth").write_text("".join(f"{path}\n" for path in paths))
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*map(str, [*command, *options, target])], check=True, timeout=600)
    return folder / "bin"


def run_zoo(commands: Path, *arguments: str, cwd) -> subprocess.CompletedProcess:
    return run_command([commands / "zoo", *arguments], cwd=cwd, env=build_env())


@pytest.mark.slow
def test_the_installed_commands_work_in_an_empty_folder(wheel, tmp_path):
    """They synthesize, train and evaluate on one and two devices; the code folder is unchanged."""
    commands = install(wheel, tmp_path / "venv")
    empty = tmp_path / "empty"
    empty.mkdir()
    (code,) = (tmp_path / "venv").glob(f"lib/python*/site-packages/{NAME}")

    def files() -> set:
        return {path for path in code.rglob("*") if path.suffix != ".pyc" and path.is_file()}

    def run(*arguments: str) -> dict:
        return read_result(run_zoo(commands, *arguments, cwd=empty))

    before = files()
    assert run("check-env")["missing"] == []
    done = run_zoo(commands, "train", "tsm", *TSM, "--data.root=none", cwd=empty)
    assert done.returncode == 2
    assert done.stderr.endswith("or make one: scripts/data/make_lists.py\n")
    run("synthesize-videos", "--out", "data/synthetic", "--train", "1", "--test", "1")
    checkpoint = run("train", "tsm", *TSM)["checkpoint"]
    assert Path(checkpoint) == empty / "out" / "tsm_smoke" / "epoch_001.ckpt"
    assert run("eval", "tsm", *TSM, "--checkpoint_path", checkpoint)["videos"] == 8
    result = run("launch", "2", "tsm/eval.py", *TSM, "--checkpoint_path", checkpoint)
    assert result["videos"] == 8
    assert (empty / "out" / "logs").is_dir()
    assert files() == before


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_order_with_the_package(wheel, tmp_path):
    """In one process: `!` is a command of the shell, and the package is installed already."""
    notebook = json.loads((ROOT / "docs" / "try_it.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 4)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    code = re.sub(r"^%pip install .*", "import subprocess", code, flags=re.M)
    code = re.sub(r"^!(.*)", r"subprocess.run('\1', shell=True, check=True)", code, flags=re.M)
    commands = install(wheel, tmp_path / "venv")
    env = {**build_env(), "PATH": f"{commands}:{os.environ['PATH']}"}
    done = run_command([commands / "python", "-c", code], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("[('grow', ")


def test_the_program_of_the_cells_page_trains_with_the_package(wheel, tmp_path):
    """In a folder without the checkout."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    draw_samples("resnet50", tmp_path / "data")
    settings = [*list_toy_settings("resnet50"), f"data.root={tmp_path / 'data'}"]
    (tmp_path / "program.py").write_text(read_program("resnet50", settings))
    env = {**build_env(), "PYTHONPATH": str(tmp_path / "site")}
    done = run_command([sys.executable, "program.py"], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [*(tmp_path / "out" / "plain").glob("resnet50-1_*.ckpt")]


def test_the_package_requires_the_packages_of_requirements_txt(wheel):
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith("/METADATA")]
        requirements = message_from_bytes(file.read(name)).get_all("Requires-Dist")
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = {str(Requirement(line)) for line in lines if line and not line.startswith("#")}
    assert listed == {str(Requirement(line)) for line in requirements if "extra ==" not in line}
