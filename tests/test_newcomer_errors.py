"""Errors that users make while they follow the documents; each is reported in one line.

A line names the setting or the file. Commands run in this process until they would exit, in a
folder with damaged files; `synthetic` is a data set there, `run` a finished training, and `new`
does not exist.
"""

import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from scripts import check_env
from tests.conftest import TINY
from utils.files import ROOT
from utils.video import decoders, reader
from utils.weights.checkpoint_file import read
from utils.weights.description import append_checksum

TSM = "--config_path tsm/configs/tsm_smoke.yaml"
X3D = "--config_path x3d/configs/x3d_smoke.yaml"
MVIT = "--config_path mvit_multi/configs/mvit_multi_smoke.yaml"
RESNET = "--config_path resnet50/configs/resnet50_smoke.yaml"
IMAGENET = "--config_path resnet50/configs/resnet50_r50_imagenet_zoo.yaml"
TINY_TSM = f"{TSM} --data.root=synthetic {' '.join(TINY)}"
TRAINED = "run/epoch_002.ckpt"
VIDEO = "synthetic/videos/test/grow_000.mp4"
WEIGHTS = f"--checkpoint_path {TRAINED}"
REENCODE = "scripts/data/reencode_videos.py"
SHORT = {
    "TRAIN": f"tsm/train.py {TINY_TSM} --run.out=new",
    "TRAIN_MVIT": f"mvit_multi/train.py {MVIT} --run.out=new",
    "TRAIN_RESNET": "resnet50/train.py --run.device=CPU --run.out=new",
    "EVAL": f"tsm/eval.py {TINY_TSM} --checkpoint_path",
    "EXPORT": f"tsm/export.py {TINY_TSM} {WEIGHTS} --format mindir",
    "PREDICT": f"scripts/predict.py {TINY_TSM} {WEIGHTS} --out new",
    "STREAM": f"scripts/stream.py {TINY_TSM} {WEIGHTS} --out new",
    "CONVERT": f"scripts/convert_checkpoint.py --target new {TSM} --source",
    "REENCODE": f"{REENCODE} --data.root=synthetic {TSM} --out",
    "EXTRACT": f"scripts/extract_features.py {TINY_TSM} {WEIGHTS} --out new synthetic/test.txt",
    "BENCHMARK": f"benchmarks/benchmark.py {TINY_TSM}",
    "LISTS": "scripts/data/make_lists.py --out new",
    "SCAN": "scripts/data/check_videos.py",
    "COMPLEXITY": "scripts/analysis/complexity.py",
}
CONVERT = shlex.quote(f"{ROOT}/scripts/convert_checkpoint.py")
CONVERSION = f"python {CONVERT} --config_path ", "/tsm_smoke.yaml"
# A command, whose first word may be one of SHORT; words of its error.
# fmt: off
ERRORS = [
    ("tsm/train.py --config_path tsm/configs/tsm_smoek.yaml", "tsm_smoek", "tsm_smoke.yaml"),
    ("tsm/train.py --config_path tsm_smok", "tsm_smok", "nearest: tsm_smoke"),
    ("scripts/finetune.py synthetic --recipe tsm", "tsm", "nearest: tsm_"),
    ("tsm/train.py tsm/configs/tsm_smoke.yaml", "--config_path tsm/configs/tsm_smoke.yaml"),
    ("tsm/train.py --config tsm/configs/tsm_smoke.yaml", "--config_path"),
    (f"tsm/train.py {TSM} --epochs=3", "option --epochs", "--train.epochs"),
    (f"scripts/predict.py {TSM} --batch 3", "--data.batch or --eval.batch"),
    ("tsm/train.py --run.device=CPU", "--config_path"),
    ("tsm/train.py --config_path tab.yaml", "not a readable config file", "line 2"),
    (f"tsm/train.py {X3D}", "x3d_smoke.yaml", "data.frames", "use x3d/train.py"),
    (f"COMPLEXITY --network x3d {TSM}", "use --network=tsm"),
    ("COMPLEXITY --config_path mine.yaml", "--network is missing", "--network=mvit_multi|res"),
    ("TRAIN --train.epoch=3", "train.epoch; nearest: epoch"),
    ("TRAIN train.lr=3", "--train.lr=3"),
    ("TRAIN --run.device=GPU", "run.device", "check_env.py", "--run.device=CPU"),
    ("TRAIN --data.batch=99", "24 samples", "data.batch"),
    ("TRAIN --data.root=nowhere", "nowhere/train.txt", "data.root", "make_lists.py"),
    ("TRAIN --data.root=. --data.train_list=missing.txt", "missing.txt", "line 2", "none.mp4"),
    ("TRAIN --data.root=. --data.train_list=label.txt", "label.txt", "line 1: label '8'"),
    ("TRAIN --data.source=frames", "`path num_frames label`"),
    (f"TRAIN_RESNET {RESNET} --data.root=none", "none/data_batch_1.bin", "cifar10"),
    (f"TRAIN_RESNET {IMAGENET} --data.root=synthetic", "data.train", "train is not a folder"),
    ("EVAL none.ckpt --run.engine=auto", "error: none.ckpt: no such checkpoint"),
    ("EVAL run/epoch_009.ckpt", "epoch_009.ckpt", "epoch_001.ckpt, epoch_002.ckpt"),
    ("EVAL text.ckpt", "text.ckpt", "copy it again"),
    ("EVAL net.mindir", "net.mindir: its checksum"),
    ("EVAL run/resume.ckpt --model.first_width=16", "resume.ckpt", "settings under model"),
    (f"EVAL {TRAINED} --model.first_width=16", "[16, 3, 7, 7]", "settings under model"),
    (f"EVAL {TRAINED} --model.arch=resnet34", "missing base_model.layer", "settings under model"),
    (f"x3d/eval.py {X3D} --run.device=CPU --data.root=synthetic {WEIGHTS}",
     "missing s1.pathway0_stem", "unknown base_model.conv1.weight"),
    ("TRAIN --train.pretrained=resnet.pth --data.train_list=none", *CONVERSION,
     "--model.first_width=8", "/resnet.pth --target ", "/resnet_pth.ckpt"),
    ("EVAL resnet.pth --data.test_list=none", *CONVERSION, "--source resnet.pth"),
    ("scripts/finetune.py none --recipe tsm_smoke --checkpoint resnet.pth", "tsm_smoke --source"),
    (f"TRAIN --model.num_classes=9 --train.pretrained={TRAINED}",
     "base_model.fc.weight is [8, 64]", "train.new_head=true"),
    ("TRAIN --run.out=run --train.lr=0.5", "train.lr 0.05, not 0.5", "--run.out"),
    ("TRAIN --run.out=run --run.resume=false", "run.resume"),
    ("TRAIN --run.out=/proc/none", "run.out: cannot write /proc/none"),
    ("EXPORT", "--target"),
    ("EXPORT --target net.onnx", "net.onnx", "--format"),
    ("EXPORT --target new --online", "model.online"),
    (f"scripts/predict.py {MVIT} --run.device=CPU {WEIGHTS} none.mp4", "none.mp4"),
    ("PREDICT --qqqq=3 video.mp4", "--qqqq", "--help"),
    ("PREDICT noise.mp4", "noise.mp4 with pyav"),
    ("PREDICT", "required: videos"),
    (f"PREDICT {VIDEO} --top=0", "--top"),
    (f"STREAM {VIDEO} --fps=0", "--fps: must be a number above 0"),
    ("PREDICT rtsp://camera.local/stream", "scripts/stream.py"),
    ("STREAM ftp://me:secret@camera.local/video", "error: ftp://camera.local/video"),
    (f"PREDICT {VIDEO} --save=out.avi", "--save: out.avi"),
    (f"PREDICT {VIDEO} --labels=none.txt", "--labels: none.txt"),
    (f"PREDICT {VIDEO} --labels=synthetic/train.txt", "24 names, the network 8 classes"),
    (f"STREAM {VIDEO} --fps=5", "fps", "online=true"),
    ("PREDICT cut.mp4 synthetic/train.txt", "none of the videos"),
    (f"PREDICT {VIDEO} --out={VIDEO}", "--out: cannot write"),
    (f"PREDICT \x1b{300 * 'n'}", "error: \\x1bnnn", "does not exist"),
    ("CONVERT none.pth", "none.pth: no such file"),
    (f"scripts/convert_checkpoint.py --target new {TSM}", "--source"),
    ("CONVERT cut.pth", "cut.pth: is cut off or damaged"),
    (f"CONVERT resnet.pth {X3D}", "the names are neither", "ours are s1.pathway0", "--rename REG"),
    ("CONVERT tsm.pth.tar", "instead of [16, 3, 7, 7]"),
    ("CONVERT tsm.pth.tar --model.first_width=2", "base_model.fc.weight is [7, 16]", "--new_head"),
    ("CONVERT tsm.pth.tar --model.first_width=2 --new_head --target /proc/none/t",
     "--target: cannot write /proc/none/t.ckpt"),
    ("LISTS --videos nowhere", "nowhere is not a folder"),
    ("LISTS --videos synthetic/videos/train", "0 class folders", "CLASS/VIDEO.mp4"),
    ("LISTS --videos synthetic/videos --out /proc/none", "--out: cannot write /proc/none"),
    ("scripts/quickstart.py now", "unexpected argument now"),
    (f"SCAN {RESNET} --out new", "resnet50"),
    (f"scripts/data/extract_frames.py {RESNET} --out new", "resnet50 has no lists"),
    (f"SCAN {TSM} --data.root=synthetic --out synthetic", "train.txt"),
    ("REENCODE synthetic", "train.txt"),
    ("REENCODE new --videos synthetic", "--videos was removed"),
    ("scripts/analysis/plot_training.py .", "log.jsonl"),
    ("BENCHMARK", "step|memory|data|eval"),
    ("BENCHMARK step --part=train", "--part"),
    ("BENCHMARK step --against=/no/such/file", "/no/such/file"),
    ("EXTRACT --window=1", "--window"),
    (f"scripts/analysis/plan_allreduce.py {TSM} --devices many", "--devices", "many"),
    (f"scripts/analysis/compare_step.py {TSM}", "--record, --against"),
    ("scripts/data/synthesize_videos.py --out text.mp4", "--out: cannot write text.mp4"),
    ("scripts/data/pack_images.py --source nowhere --target new", "--source: nowhere"),
    ("scripts/launch.py 2 none.py", "none.py: no such file"),
    ("scripts/check_env.py --device=GPU", "--device=GPU"),
]
# fmt: on


def write_damaged_files(folder: Path, synthetic: Path) -> None:
    """Writes every damaged file that a row names."""
    smoke = (ROOT / "tsm" / "configs" / "tsm_smoke.yaml").read_text()
    video = (synthetic / "videos/train/left_000.mp4").read_bytes()
    source = (ROOT / "resnet50" / "tests" / "golden" / "resnet18_w2.pth").read_bytes()
    texts = {
        "tab.yaml": "run:\n\tdevice: CPU\n",
        "empty.yaml": "",
        "mine.yaml": smoke,
        "section.yaml": smoke.replace("train:", "trian:"),
        "empty.txt": "",
        "missing.txt": "videos/train/left_000.mp4 0\nvideos/none.mp4 1\n",
        "label.txt": "videos/train/left_000.mp4 8\n",
        "text.ckpt": "no weights in here\n",
        "empty.ckpt": "",
        "text.mp4": "no video\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "cut.mp4").write_bytes(video[: len(video) // 3])
    (folder / "resnet.pth").write_bytes(source)
    (folder / "cut.pth").write_bytes(source[: len(source) // 2])
    shutil.copy(ROOT / "tsm/tests/golden/tsm_r18_w2.pth.tar", folder / "tsm.pth.tar")
    (folder / "noise.mp4").write_bytes(os.urandom(2000))
    damaged = folder / "net.mindir"
    damaged.write_bytes(b"intact")
    append_checksum(damaged)
    damaged.write_bytes(damaged.read_bytes().replace(b"intact", b"Intact"))


@pytest.fixture(scope="module")
def damaged(data_root, tiny_ckpt, tmp_path_factory) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path_factory.mktemp("damaged")
    write_damaged_files(folder, data_root)
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
    if any(word in command.lower() for word in ("reencode", "predict", "extract")):
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


def test_check_env_reports_a_missing_package(monkeypatch):
    version = metadata.version

    def find_version(name: str) -> str:
        if name == "pillow":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", find_version)
    (line,) = [line for line in check_env.check_packages() if line.name == "packages"]
    assert (line.advice, line.fatal) == ("pip install pillow", True)


def test_a_missing_reader_is_reported(monkeypatch, data_root):
    monkeypatch.setitem(reader.MODULES, "decord", "no_decord")
    reader.load_library.cache_clear()
    with pytest.raises(ValueError, match="no_decord.*pip install decord2, or --data.reader=auto"):
        decoders.open_video(data_root / "videos/train/left_000.mp4", "decord")


def test_a_nonfinite_loss_stops_the_run(run_here, tiny_args, tmp_path):
    arguments = [*tiny_args, f"--run.out={tmp_path / 'run'}", "--train.clip_norm=0"]
    arguments += ["--train.lr=1e38", "--train.epochs=10"]
    done = run_here("tsm/train.py", *arguments, "--run.save_steps=1")
    assert done.returncode == 2
    assert "the last checkpoint is intact" in done.stderr.splitlines()[-1]
    files = list(tmp_path.glob("run/*.ckpt"))
    assert files
    assert all(np.isfinite(array).all() for file in files for array in read(file).values())
