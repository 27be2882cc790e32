"""Errors that new users make while they follow the documents; each is reported in one line.

The words of an error message name the cause, the file or setting, the remedy.
Commands run in this process until they would exit; tests/test_bad_input.py runs some in a process.
They run in a folder with damaged files; `synthetic` is a data set there, `run` a finished training,
and `new` does not exist.
"""

import gzip
import os
import pickle
import shutil
import sys
from importlib import metadata
from pathlib import Path

import av
import numpy as np
import pytest

from tests.conftest import TINY
from tsm.config import Config
from utils import networks
from utils.files import ROOT
from utils.networks import load_for_script
from utils.video import decoders
from utils.weights.model_checksum import append_checksum

TSM = ["--config_path", "tsm/configs/tsm_smoke.yaml"]
X3D = ["--config_path", "x3d/configs/x3d_smoke.yaml"]
MVIT = ["--config_path", "mvit_multi/configs/mvit_multi_smoke.yaml"]
RESNET = ["--config_path", "resnet50/configs/resnet50_smoke.yaml"]
IMAGENET = ["--config_path", "resnet50/configs/resnet50_r50_imagenet_zoo.yaml"]
TINY_TSM = [*TSM, "--data.root=synthetic", *TINY]
TRAINED = "run/epoch_002.ckpt"
VIDEO = "synthetic/videos/test/grow_000.mp4"
LONG_NAME = "\x1b" + 300 * "n"
TRAIN = ["tsm/train.py", *TINY_TSM, "--run.out=new"]
TRAIN_MVIT = ["mvit_multi/train.py", *MVIT, "--run.out=new"]
EVAL = ["tsm/eval.py", *TINY_TSM, "--checkpoint_path"]
EXPORT = ["tsm/export.py", *TINY_TSM, "--checkpoint_path", TRAINED, "--format", "mindir"]
PREDICT = ["scripts/predict.py", *TINY_TSM, "--checkpoint_path", TRAINED, "--out", "new"]
CONVERT = ["scripts/convert_checkpoint.py", "--target", "new", *TSM]
COPY = ["scripts/data/reencode_videos.py", "--data.root=synthetic", *TSM]
LISTS = "scripts/data/make_lists.py"
SCAN = "scripts/data/check_videos.py"
VIDEOS = "scripts/data/synthesize_videos.py"
PLAN = "scripts/analysis/plan_allreduce.py"
PLOT = "scripts/analysis/plot_training.py"
COMPLEXITY = "scripts/analysis/complexity.py"
# A command, and words of its error message.
# fmt: off
ERRORS = [
    (["tsm/train.py", "--config_path", "tsm/configs/tsm_smoek.yaml"],
     "tsm_smoek.yaml: no such config file; nearest: tsm/configs/tsm_smoke.yaml"),
    (["tsm/train.py", "--config_path", "tsm/configs"], "no such config file; nearest"),
    (["tsm/train.py", "tsm/configs/tsm_smoke.yaml"],
     "unexpected argument: did you mean --config_path tsm/configs/tsm_smoke.yaml?"),
    (["tsm/train.py", "--config", "tsm/configs/tsm_smoke.yaml"],
     "unknown option --config; did you mean --config_path?"),
    (["resnet50/train.py", *RESNET, "--device_target=GPU"],
     "unknown option --device_target; did you mean --run.device?"),
    ([*EVAL, TRAINED, "--data_path=x"], "unknown option --data_path; did you mean --data.root?"),
    (["tsm/train.py", *TSM, "--epochs=3"], "unknown option --epochs; did you mean --train.epochs?"),
    (["scripts/predict.py", *TSM, "--batch", "3"], "did you mean --data.batch or --eval.batch?"),
    (["x3d/train.py", *X3D, "--epcohs=3"],
     "unknown option --epcohs;", "did you mean --train.epochs?"),
    (["tsm/train.py", "--run.device=CPU"], "required: --config_path; --help shows the usage"),
    (["tsm/train.py", "--config_path", "tab.yaml"], "not a readable config file", "line 2"),
    (["tsm/train.py", "--config_path", "empty.yaml"], "empty.yaml: expected sections"),
    (["tsm/train.py", *X3D],
     "x3d_smoke.yaml, read as a config file of tsm: unknown setting data.frames",
     "The config file is in the folder of x3d: use x3d/train.py"),
    ([COMPLEXITY, "--network", "x3d", *TSM],
     "The config file is in the folder of tsm: use --network=tsm"),
    (["tsm/train.py", "--config_path", "section.yaml"],
     "section.yaml, read as a config file of tsm: unknown section trian; nearest: train"),
    ([COMPLEXITY, "--config_path", "mine.yaml"],
     "--network is missing: mine.yaml is in no network's folder; add --network=mvit_multi|res"),
    ([COMPLEXITY, "--config_path", "mine.yaml", "--network", "tms"],
     "--network: invalid choice: 'tms' (choose from", "tsm"),
    ([*TRAIN, "--train.epoch=3"], "unknown setting train.epoch; nearest: epoch"),
    ([*PREDICT, "--qqqq=3", "video.mp4"], "unknown option --qqqq; --help shows the usage"),
    ([*TRAIN, "--train.lr=fast"], "train.lr must be a number, not 'fast'"),
    ([*TRAIN, "--train.epochs=-1"], "train.epochs must be above 0, not -1"),
    ([*TRAIN, "--train.epochs=1"], "train.warmup_epochs must be below train.epochs 1, not 1.0"),
    ([*TRAIN, "--data.flip"], "--data.flip: expected one argument; --help"),
    ([*TRAIN, "train.lr=3"], "unexpected argument train.lr=3; did you mean --train.lr=3?"),
    ([*TRAIN, "--run.device=cuda"], "one of Ascend, GPU, CPU, not 'cuda'"),
    ([*TRAIN, "--run.device=GPU"],
     "run.device: GPU is not available here",
     "check_env.py lists the devices; --run.device=CPU runs anywhere"),
    ([*TRAIN, "--run.device=Ascend"], "run.device: Ascend is not available here"),
    ([*TRAIN, "--data.reader=vlc"], "one of auto, pyav, decord"),
    ([*TRAIN, "--model.arch=resnet19"], "model.arch must be one of resnet18"),
    ([*TRAIN, "--model.non_local=true"], "non_local is defined for resnet50"),
    ([*TRAIN, "--run.all_reduce=[layer9]"], "in a layer named layer9"),
    ([*EVAL, TRAINED, "--eval.clips=7"], "eval.clips: uniform sampling offers 1 or 2 clips, not 7"),
    ([*TRAIN, "--data.crop=64"], "data.crop 64 is larger than data.resize"),
    ([*TRAIN, "--data.scales=[0]"], "data.scales: [0.0] must be fractions of the frame"),
    ([*TRAIN, "--model.dropout=1"], "model.dropout must lie in [0, 1)"),
    ([*TRAIN, "--run.eval_every=-2"], "run.eval_every must not be negative"),
    ([*TRAIN, "--data.swap_labels=[[0,0]]"], "[[0, 0]] has a label twice"),
    ([*TRAIN, "--data.batch=99"],
     "24 samples do not fill one batch of 99 on each of 1 ranks; lower data.batch"),
    ([*TRAIN_MVIT, "--data.sets=[]"], "data.sets"),
    ([*TRAIN_MVIT, "--data.sets=[{name: a_b, num_classes: 2}]"], "letters, digits and hyphens"),
    ([*TRAIN_MVIT, "--data.sets=[{name: a}]"], "data.sets[0].num_classes"),
    ([*TRAIN_MVIT, "--data.sets=[{name: a, num_classes: 2, flops: 1}]"], "flops"),
    ([*TRAIN_MVIT, "--data.rand_augment=rand-m7"], "data.rand_augment"),
    ([*TRAIN_MVIT, "--model.single_head=true"], "model.single_head"),
    ([*TRAIN_MVIT, "--model.expander=false"], "train.informative_weight"),
    ([*TRAIN_MVIT, "--eval.sets=[nine]"], "nine is none of eight, axes, moves"),
    ([*TRAIN_MVIT, "--train.set_weights=[1]"], "train.set_weights"),
    ([*TRAIN_MVIT, "--model.depth=2", "--model.stage_starts=[7]"], "model.stage_starts"),
    ([*TRAIN, "--data.root=nowhere"],
     "nowhere/train.txt does not exist: data.root or the list's name is wrong",
     "scripts/data/make_lists.py"),
    ([*EVAL, TRAINED, "--data.test_list=none.txt"], "none.txt does not exist"),
    ([*TRAIN, "--data.train_list=/dev/null"], "annotation file /dev/null is not a file"),
    ([*TRAIN, "--data.root=.", "--data.train_list=cut.mp4"], "cut.mp4 is not a text file"),
    ([*TRAIN, "--data.root=.", "--data.train_list=empty.txt"], "empty.txt is empty"),
    ([*TRAIN, "--data.root=.", "--data.train_list=missing.txt"],
     "missing.txt, bad lines (1): line 2:", "none.mp4' does not exist"),
    ([*TRAIN, "--data.root=.", "--data.train_list=label.txt"],
     "label.txt, bad lines (1): line 1: label '8' is not an integer from 0 to 7:",
     "num_classes is 8"),
    ([*TRAIN, "--data.root=.", "--data.train_list=word.txt"], "line 1: label 'left' is"),
    ([*TRAIN, "--data.root=.", "--data.train_list=field.txt"], "is not `path label`, separated"),
    ([*TRAIN, "--data.root=.", "--data.train_list=commas.txt"], "is not `path label`, separated"),
    ([*TRAIN, "--data.source=frames"], "not `path num_frames label`"),
    ([*TRAIN, "--model.num_classes=3"],
     "data.swap_labels: 7 is not a label of 3 classes", "--data.swap_labels=[]"),
    ([*TRAIN, "--model.num_classes=3", "--data.swap_labels=[]"],
     "label '3' is not an integer from 0 to 2: num_classes is 3"),
    (["x3d/train.py", *X3D, "--data.root=none", "--run.out=new"], "none/train.txt does not exist"),
    ([*TRAIN_MVIT, "--data.root=none", "--run.out=new"], "none/eight/train.csv does not exist"),
    (["resnet50/train.py", *RESNET, "--data.root=none", "--run.out=new"],
     "none/data_batch_1.bin does not exist; name a folder of cifar10"),
    (["resnet50/train.py", *IMAGENET, "--run.device=CPU", "--data.root=synthetic", "--run.out=new"],
     "data.train:", "train is not a folder"),
    ([*EVAL, "none.ckpt"], "none.ckpt: no such checkpoint"),
    (["tsm/eval.py", *TINY_TSM], "required: --checkpoint_path"),
    ([*EVAL, "run/epoch_009.ckpt"],
     "epoch_009.ckpt: no such checkpoint;", "has epoch_001.ckpt, epoch_002.ckpt"),
    ([*EVAL, "run"], "has epoch_001.ckpt, epoch_002.ckpt"),
    ([*EVAL, "cut.ckpt"], "cut.ckpt: not a readable checkpoint"),
    ([*EVAL, "text.ckpt"], "text.ckpt: not a readable checkpoint", "copy it again"),
    ([*EVAL, "text.mp4"], "its name does not end in .ckpt"),
    ([*EVAL, "run/resume.ckpt", "--model.first_width=16"],
     "resume.ckpt does not fit this network: shape",
     "is it of another network, or of other settings under model?"),
    ([*EVAL, "empty.ckpt"], "empty.ckpt: is empty"),
    ([*TRAIN, "--train.pretrained=resnet.pth"],
     "resnet.pth: convert it first with scripts/convert_checkpoint.py"),
    ([*EVAL, TRAINED, "--model.first_width=16"],
     "instead of [16, 3, 7, 7]", "is it of another network, or of other settings under model?"),
    ([*EVAL, TRAINED, "--model.arch=resnet34"],
     "missing base_model.layer", "is it of another network, or of other settings under model?"),
    (["x3d/eval.py", *X3D, "--run.device=CPU", "--data.root=synthetic",
      "--checkpoint_path", TRAINED],
     "missing s1.pathway0_stem",
     "unknown base_model.conv1.weight",
     "is it of another network, or of other settings under model?"),
    (["tsm/train.py", *TINY_TSM, "--run.out=run", "--train.lr=0.5"],
     "holds a run with train.lr 0.05, not 0.5; choose another --run.out"),
    (["tsm/train.py", *TINY_TSM, "--run.out=run", "--run.resume=false"],
     "already holds a run and run.resume is false"),
    (["tsm/train.py", *TINY_TSM, "--run.out=/proc/none"], "run.out: cannot write /proc/none"),
    (["tsm/train.py", *TINY_TSM, "--run.out=text.mp4"], "text.mp4: a file is in the way"),
    ([*TRAIN, "--run.profile=/proc/none"], "run.profile: cannot write"),
    ([*EXPORT], "--target"),
    ([*EXPORT, "--target", "new", "--format=air"], "--format: invalid choice: 'air' (choose from"),
    ([*EXPORT, "--target", "net.onnx"], "net.onnx ends in .onnx and --format is mindir"),
    ([*EXPORT, "--target", "new", "--batch=0"],
     "--batch: must be an integer above 0, or free, not 0"),
    ([*EXPORT, "--target", "new", "--batch=any"],
     "--batch: must be an integer above 0, or free, not any"),
    ([*EXPORT, "--target", "new", "--input=int8"], "--input: invalid choice: 'int8' (choose from"),
    ([*EXPORT, "--target", "new", "--precision=int8"],
     "--precision: invalid choice: 'int8' (choose from"),
    ([*EXPORT, "--target", "/proc/none/a"], "--target: cannot write /proc/none/a"),
    (["scripts/predict.py", *MVIT, "--run.device=CPU", "--checkpoint_path", TRAINED, "none.mp4"],
     "none.mp4 does not exist"),
    ([*TRAIN, "--model.num_classes=9", "--train.pretrained=run/epoch_002.ckpt"],
     "base_model.fc.weight is [8, 64] instead of [9, 64]", "train.new_head=true"),
    ([*EVAL, "none.ckpt", "--run.engine=auto"], "error: none.ckpt: no such checkpoint"),
    ([*EVAL, "none.onnx", "--run.engine=auto"], "error: none.onnx: no such file"),
    ([*EVAL, "net.mindir"],
     "net.mindir: its checksum differs from its content; copy or export it again"),
    ([*EVAL, "net.onnx"],
     "net.onnx: its checksum differs from its content; copy or export it again"),
    ([*PREDICT, "--topp=3", "video.mp4"], "unknown option --topp; did you mean --top?"),
    ([*PREDICT, "noise.mp4"], "noise.mp4 with pyav: it does not open"),
    ([*PREDICT], "the following arguments are required: videos"),
    ([*PREDICT, VIDEO, "--top=0"], "--top: must be an integer of at least 1"),
    ([*PREDICT, VIDEO, "--window=-1"], "--window: must be a number of at least 0"),
    ([*PREDICT, VIDEO, "--step=x"], "--step: must be a number"),
    ([*PREDICT, VIDEO, "--step=0"], "--step must be above 0"),
    ([*PREDICT, "rtsp://camera.local/stream"],
     "error: rtsp://camera.local/stream: an address needs scripts/stream.py"),
    ([*PREDICT, "--stream", "ftp://me:secret@camera.local/video"],
     "error: ftp://camera.local/video: this kind of address is not read; use one of http://"),
    ([*PREDICT, VIDEO, "--threshold=2"], "--threshold: must be a number from 0 to 1, not 2"),
    ([*PREDICT, VIDEO, "--save=out.avi"], "--save: out.avi must end in .mp4"),
    ([*PREDICT, VIDEO, VIDEO, "--save=out.mp4"], "--save takes one VIDEO, not 2"),
    ([*PREDICT, "run"], "it has no frame named img_"),
    ([*PREDICT, VIDEO, "--labels=none.txt"], "--labels: none.txt does not exist"),
    ([*PREDICT, VIDEO, "--labels=synthetic/train.txt"], "has 24 names, the network 8 classes"),
    ([*PREDICT, VIDEO, "--fps=5"], "unknown option --fps"),
    ([*PREDICT, VIDEO, "--stream", "--fps=5"], "fps: this network reads windows", "online=true"),
    ([*PREDICT, "cut.mp4"], "cannot read"),
    ([*PREDICT, "cut.mp4", "synthetic/train.txt"], "none of the videos"),
    ([*PREDICT, VIDEO, "--out=synthetic/videos/test/grow_000.mp4"], "--out: cannot write"),
    ([*PREDICT, LONG_NAME], "error: \\x1bnnn", "does not exist"),
    ([*CONVERT, "--source", "none.pth"], "none.pth: no such file"),
    ([*CONVERT], "required: --source"),
    ([*CONVERT, "--source", "page.pth"], "is a web page, not a checkpoint; download it"),
    ([*CONVERT, "--source", "pointer.pth"], "is a git-lfs pointer", "git lfs pull"),
    ([*CONVERT, "--source", "cut.pth"], "cut.pth: is cut off or damaged"),
    ([*CONVERT, "--source", "zero.pth"], "zero.pth: is empty"),
    ([*CONVERT, "--source", "pickle.pth"], "is a plain pickle, not written by torch.save"),
    (["scripts/convert_checkpoint.py", "--target", "new", "--source", "resnet.pth", *X3D],
     "resnet.pth: the names are neither PySlowFast's, pytorchvideo's nor mindvideo's X3D"),
    ([*CONVERT, "--source", "tsm.pth.tar"], "instead of [16, 3, 7, 7]"),
    ([*CONVERT, "--source", "tsm.pth.tar", "--model.first_width=2"],
     "base_model.fc.weight is [7, 16] instead of [8, 16]",
     "--new_head leaves the classifier newly initialised"),
    ([*CONVERT, "--source", "tsm.pth.tar", "--model.first_width=2", "--new_head",
      "--target", "/proc/none/t"],
     "--target: cannot write /proc/none/t.ckpt"),
    ([*CONVERT, "--source", "text.ckpt"], "text.ckpt"),
    ([*CONVERT, "--source", "cut.pth.tar"], "cut.pth.tar"),
    ([*CONVERT, "--source", "gzip.pth"], "gzip.pth"),
    (["scripts/convert_checkpoint.py", "--target", "new", "--source", "caffe2.pkl", *X3D],
     "Caffe2"),
    ([LISTS, "--videos", "nowhere", "--out", "new"], "nowhere is not a folder"),
    ([LISTS, "--videos", "cut.mp4", "--out", "new"], "cut.mp4 is not a folder"),
    ([LISTS, "--videos", "synthetic/videos/train", "--out", "new"],
     "0 class folders with videos, but a data set needs two:", "CLASS/VIDEO.mp4"),
    ([LISTS, "--videos", "synthetic/videos", "--out", "/proc/none"],
     "--out: cannot write /proc/none"),
    ([LISTS, "--out", "new", "--videos", "a", "path/with", "blanks"],
     "unexpected argument path/with; a path with blanks needs quotes"),
    (["scripts/quickstart.py", "now"], "unexpected argument now"),
    ([SCAN, *RESNET, "--out", "new"], "resnet50 has no lists of videos"),
    ([SCAN, *TSM, "--data.root=synthetic", "--out", "synthetic"],
     "train.txt, which would be replaced"),
    ([SCAN, *TSM, "--data.root=none", "--out", "new"], "none/train.txt does not exist"),
    ([*COPY, "--out", "synthetic"], "train.txt, which would be replaced"),
    ([*COPY, "--out", "new", "--quality", "99"],
     "--quality: must be an integer from 0 to 51, not 99"),
    ([PLOT, "."], "log.jsonl does not exist: name the output folder of a training"),
    ([PLOT, "run", "--out", "a.pdf"], "must end in .png or .svg"),
    (["benchmarks/benchmark.py", *TSM],
     "the following arguments are required: step|memory|data|eval"),
    ([PLAN, *TSM, "--devices", "many"],
     "--devices: must be numbers above 0, as in 8,64,512, not many"),
    (["scripts/analysis/compare_step.py", *TSM], "one of --record, --against, --case"),
    ([VIDEOS, "--out", "text.mp4"], "--out: cannot write text.mp4"),
    ([VIDEOS, "--out", "new", "--train", "x"],
     "--train: invalid int value: 'x'; --help shows the usage"),
    (["scripts/data/synthesize_images.py", "--out", "/proc/none"], "cannot write /proc/none"),
    (["scripts/data/pack_images.py", "--source", "nowhere", "--target", "new"],
     "--source: nowhere is not a folder"),
    (["scripts/launch.py", "2", "none.py"], "SCRIPT none.py: no such file; name one like"),
    (["scripts/launch.py", "two", "tsm/train.py"], "not two"),
    ([LISTS, "--videos=synthetic", "--out=new", "--data.x=3"],
     "error: --data.x=3: this command takes no settings"),
    ([LISTS, "--videos", "synthetic", "--out", "new", "--test", "1"],
     "--test must lie between 0 and 1, not 1"),
    ([LISTS, "--videos", "synthetic", "--out", "new", "--names", "tsv"],
     "--names: invalid choice: 'tsv'"),
    ([*COPY, "--out", "new", "--gop", "0"], "--gop: must be an integer of at least 1, not 0"),
    ([*COPY, "--out", "new", "--data.source=frames"], "data.source: the lists name folders of fra"),
    ([*COPY, "--out", "new", "--videos", "synthetic"], "this command takes no settings"),
    ([*COPY[:1], "--out", "new"], "--config_path"),
    ([*COPY[:1], "--out", "new", "--videos", "nowhere"], "--videos: nowhere is not a folder"),
    ([*COPY[:1], *RESNET, "--out", "new", "--network", "resnet50"],
     "resnet50 has no lists of videos; images are read as they are"),
    ([SCAN, *TSM, "--data.root=synthetic", "--out", "new", "--frames=some"],
     "--frames: invalid choice: 'some'"),
    (["scripts/check_env.py", "--device=GPU"], "--device=GPU: this command takes no arguments"),
]
# fmt: on


def write_damaged_files(folder: Path, synthetic: Path, trained: Path) -> None:
    """Writes every damaged file that a row names."""
    smoke = (ROOT / "tsm" / "configs" / "tsm_smoke.yaml").read_text()
    weights = trained.read_bytes()
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
        "word.txt": "videos/train/left_000.mp4 left\n",
        "field.txt": "videos/train/left_000.mp4\n",
        "commas.txt": "videos/train/left_000.mp4,0\n",
        "text.ckpt": "no weights in here\n",
        "empty.ckpt": "",
        "page.pth": "<!DOCTYPE html>\n<html><body>Not found</body></html>\n",
        "pointer.pth": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "zero.pth": "",
        "text.mp4": "no video\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "cut.ckpt").write_bytes(weights[: len(weights) // 2])
    (folder / "cut.mp4").write_bytes(video[: len(video) // 3])
    (folder / "resnet.pth").write_bytes(source)
    (folder / "cut.pth").write_bytes(source[: len(source) // 2])
    (folder / "pickle.pth").write_bytes(pickle.dumps({"a": [1, 2]}))
    caffe2 = {"blobs": {"conv1_xy_w": np.zeros(3)}}
    (folder / "caffe2.pkl").write_bytes(pickle.dumps(caffe2, protocol=2))
    shutil.copy(ROOT / "tsm/tests/golden/tsm_r18_w2.pth.tar", folder / "tsm.pth.tar")
    (folder / "cut.pth.tar").write_bytes((folder / "tsm.pth.tar").read_bytes()[:20000])
    (folder / "gzip.pth").write_bytes(gzip.compress(b"x", mtime=0))
    (folder / "noise.mp4").write_bytes(os.urandom(2000))
    for name in ("net.mindir", "net.onnx"):
        (folder / name).write_bytes(b"intact")
        append_checksum(folder / name)
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"intact", b"Intact"))


@pytest.fixture(scope="module")
def damaged(data_root, tiny_ckpt, tmp_path_factory) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path_factory.mktemp("damaged")
    write_damaged_files(folder, data_root, tiny_ckpt)
    (folder / "synthetic").symlink_to(data_root)
    (folder / "run").symlink_to(tiny_ckpt.parent)
    (folder / "videos").symlink_to(data_root / "videos")
    return folder


@pytest.fixture
def run_line(run_here, monkeypatch, damaged):
    """A function that runs a command here; returns its status and last line on stderr."""

    def run(command: list[str]) -> tuple[int, str]:
        done = run_here(*command)
        return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]

    monkeypatch.chdir(damaged)
    yield run
    shutil.rmtree(damaged / "new", ignore_errors=True)


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: " ".join(row[0])[-60:])
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
    if "reencode_videos" in command[0] or "predict" in command[0]:
        assert set(written) <= {".lock"}


def test_a_yaml_in_the_folder_of_another_network_is_read_if_its_settings_fit(monkeypatch, tmp_path):
    file = tmp_path / "x3d" / "configs" / "mine.yaml"
    file.parent.mkdir(parents=True)
    (tmp_path / "x3d" / "network.py").touch()
    shutil.copy(ROOT / "tsm" / "configs" / "tsm_smoke.yaml", file)
    monkeypatch.setattr(networks, "ROOT", tmp_path)
    assert (
        load_for_script(Config, path=file, overrides=["train.epochs=3"], remedy="{}").train.epochs
        == 3
    )
    with pytest.raises(ValueError, match="is in the folder of x3d: use x3d/eval.py"):
        load_for_script(Config, path=file, overrides=["train.epochs=x"], remedy="{}/eval.py")


def test_a_missing_tensorboard_is_reported_before_anything_is_written(
    run_line, monkeypatch, damaged
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    status, message = run_line([*TRAIN, "--run.tensorboard=true"])
    assert status == 2
    assert "run.tensorboard: tensorboardX cannot be imported" in message
    assert "pip install tensorboardX" in message
    assert not (damaged / "new").exists()


def test_check_env_reports_a_missing_package(monkeypatch, run_here):
    version = metadata.version

    def find_version(name: str) -> str:
        if name == "pillow":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", find_version)
    done = run_here("scripts/check_env.py")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if "packages" in line and line.startswith("!")]
    assert line.endswith("<- pip install pillow")


def test_a_missing_reader_is_reported(monkeypatch, data_root):
    monkeypatch.setattr(decoders, "load_library", {"pyav": av}.get)
    words = "'decord', which is not installed: pip install decord2, or --data.reader=auto"
    with pytest.raises(ValueError, match=words):
        decoders.open_video(data_root / "videos/train/left_000.mp4", "decord")
