"""Errors that users make while they follow the documents; each is reported in one line.

A line names the setting or the file. Commands run in this process until they would exit, in a
folder with damaged files; `synthetic` is a data set there, `run` a finished training, and `new`
does not exist.
"""

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TINY
from utils.files import ROOT
from utils.weights.checkpoint_file import read

TSM = "--config_path tsm/configs/tsm_smoke.yaml"
X3D = "--config_path x3d/configs/x3d_smoke.yaml"
RESNET = "--config_path resnet50/configs/resnet50_smoke.yaml"
IMAGENET = "--config_path resnet50/configs/resnet50_r50_imagenet_zoo.yaml"
TINY_TSM = f"{TSM} --data.root=synthetic {' '.join(TINY)}"
TRAINED = "run/epoch_002.ckpt"
VIDEO = "synthetic/videos/test/grow_000.mp4"
WEIGHTS = f"--checkpoint_path {TRAINED}"
SHORT = {
    "TRAIN": f"tsm/train.py {TINY_TSM} --run.out=new",
    "TRAIN_RESNET": "resnet50/train.py --run.device=CPU --run.out=new",
    "EVAL": f"tsm/eval.py {TINY_TSM} --checkpoint_path",
    "EXPORT": f"tsm/export.py {TINY_TSM} {WEIGHTS} --format mindir",
    "PREDICT": f"scripts/predict.py {TINY_TSM} {WEIGHTS} --out new",
    "STREAM": f"scripts/stream.py {TINY_TSM} {WEIGHTS} --out new",
    "EXTRACT": f"scripts/extract_features.py {TINY_TSM} {WEIGHTS} --out new synthetic/test.txt",
    "BENCHMARK": f"benchmarks/benchmark.py {TINY_TSM}",
    "LISTS": "scripts/data/make_lists.py --out new",
    "COMPLEXITY": "scripts/analysis/complexity.py",
}
CONVERT = shlex.quote(f"{ROOT}/scripts/convert_checkpoint.py")
CONVERSION = f"python {CONVERT} --config_path RECIPE --source "
# A command, whose first word may be one of SHORT; words of its error.
# fmt: off
ERRORS = [
    ("tsm/train.py --config_path tsm/configs/tsm_smoek.yaml", "tsm_smoek", "tsm_smoke"),
    ("tsm/train.py tsm/configs/tsm_smoke.yaml", "--config_path"),
    (f"tsm/train.py {TSM} --epochs=3", "option --epochs", "--train.epochs"),
    (f"tsm/train.py {X3D}", "x3d_smoke.yaml", "data.frames", "of tsm"),
    (f"COMPLEXITY --network x3d {TSM}", "tsm_smoke.yaml", "of x3d"),
    ("TRAIN train.lr=3", "train.lr=3"),
    ("TRAIN --run.device=GPU", "run.device", "check_env.py", "--run.device=CPU"),
    ("TRAIN --data.batch=99", "24 samples", "data.batch"),
    ("TRAIN --data.root=. --data.train_list=missing.txt", "missing.txt", "line 2", "none.mp4"),
    ("TRAIN --data.root=nowhere", "nowhere/train.txt", "data.root", "make_lists.py"),
    (f"TRAIN_RESNET {RESNET} --data.root=none", "none/data_batch_1.bin", "cifar10"),
    (f"TRAIN_RESNET {IMAGENET} --data.root=synthetic", "data.train", "train is not a folder"),
    ("EVAL none.ckpt --run.engine=auto", "error: none.ckpt: no such checkpoint"),
    ("EVAL run/epoch_009.ckpt", "epoch_009.ckpt", "epoch_001.ckpt, epoch_002.ckpt"),
    ("TRAIN --train.pretrained=resnet.pth --data.train_list=none", CONVERSION,
     "/resnet.pth --target ", "/resnet_pth.ckpt"),
    ("TRAIN --run.out=/proc/none", "run.out: cannot write /proc/none"),
    ("EXPORT --target net.onnx", "net.onnx", "--format"),
    ("PREDICT rtsp://camera.local/stream", "scripts/stream.py"),
    (f"PREDICT {VIDEO} --save=out.avi", "--save: out.avi"),
    (f"PREDICT {VIDEO} --labels=synthetic/train.txt", "24 names, the network 8 classes"),
    (f"STREAM {VIDEO} --fps=5", "fps", "online=true"),
    (f"PREDICT {VIDEO} --out={VIDEO}", "--out: cannot write"),
    ("LISTS --videos synthetic/videos/train", "0 class folders"),
    (f"scripts/data/extract_frames.py {RESNET} --out new", "resnet50 has no lists"),
    ("scripts/analysis/plot_training.py .", "log.jsonl"),
    ("BENCHMARK", "step|memory|data|eval"),
    ("scripts/launch.py 2 none.py", "none.py: no such file"),
]
# fmt: on


def write_damaged_files(folder: Path) -> None:
    """Writes every damaged file that a row names."""
    (folder / "missing.txt").write_text("videos/train/left_000.mp4 0\nvideos/none.mp4 1\n")
    shutil.copy(ROOT / "resnet50/tests/golden/resnet18_w2.pth", folder / "resnet.pth")


@pytest.fixture(scope="module")
def damaged(data_root, tiny_ckpt, tmp_path_factory) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path_factory.mktemp("damaged")
    write_damaged_files(folder)
    (folder / "synthetic").symlink_to(data_root)
    (folder / "run").symlink_to(tiny_ckpt.parent)
    (folder / "videos").symlink_to(data_root / "videos")
    return folder


@pytest.fixture
def run_line(run_here, monkeypatch, damaged):
    """A function that runs a command here; returns its status and last line on stderr."""

    def run(line: str) -> tuple[int, str]:
        first, *rest = shlex.split(line)
        done = run_here(*shlex.split(SHORT.get(first, first)), *rest)
        return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]

    monkeypatch.chdir(damaged)
    yield run
    shutil.rmtree(damaged / "new", ignore_errors=True)


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row[0][-60:])
def test_a_user_error_is_reported_in_one_line(row, run_line, damaged):
    command, *words = row
    before = set(damaged.iterdir())
    status, message = run_line(command)
    assert status == 2, message
    assert message.startswith("error: ")
    for word in words:
        assert word in message
    assert set(damaged.iterdir()) - before <= {damaged / "new"}
    written = [path.name for path in (damaged / "new").rglob("*") if path.is_file()]
    assert not [name for name in written if name.endswith((".ckpt", ".mindir"))]
    if any(word in command.lower() for word in ("predict", "extract")):
        assert set(written) <= {".lock"}


def test_a_missing_tensorboard_is_reported_before_anything_is_written(
    run_line, monkeypatch, damaged
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    status, message = run_line("TRAIN --run.tensorboard=true")
    assert status == 2
    assert "run.tensorboard" in message
    assert "pip install tensorboardX" in message
    assert not (damaged / "new").exists()


def test_a_nonfinite_loss_stops_the_run(run_here, tiny_args, tmp_path):
    arguments = [*tiny_args, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e38", "--train.epochs=10"]
    done = run_here("tsm/train.py", *arguments, "--run.save_steps=1")
    assert done.returncode == 2
    assert "the last checkpoint is intact" in done.stderr.splitlines()[-1]
    files = list(tmp_path.glob("run/*.ckpt"))
    assert files
    assert all(np.isfinite(array).all() for file in files for array in read(file).values())
