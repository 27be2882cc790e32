"""Errors that new users make while they follow the documents; each is reported in one line.

The words of an error message name the cause, the file or setting, the remedy.
Commands run in this process until they would exit; tests/test_bad_input.py runs some in a process.
A name in braces is one of COMMANDS, or {tiny}: the arguments of a small run, {bad}: the current
folder, which has damaged files, {new}: a folder that does not exist.
"""

import gzip
import os
import pickle
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tsm.config import Config
from utils import networks
from utils.config import ROOT
from utils.networks import load_for_script
from utils.video import decoders
from utils.weights.model_checksum import append_checksum

# Abbreviations in the rows. An abbreviation may contain later ones.
COMMANDS = {
    "train": "tsm/train.py {tiny} --run.out={new}",
    "eval": "tsm/eval.py {tiny} --checkpoint_path",
    "export": "tsm/export.py {tiny} --checkpoint_path {trained} --format mindir",
    "convert": "scripts/convert_checkpoint.py --target {new} {tsm}",
    "lists": "scripts/data/make_lists.py",
    "scan": "scripts/data/check_videos.py",
    "pack": "scripts/data/pack_videos.py --data.root={synthetic} {tsm}",
    "videos": "scripts/data/synthesize_videos.py",
    "plan": "scripts/analysis/plan_allreduce.py",
    "plot": "scripts/analysis/plot_training.py",
    "complexity": "scripts/analysis/complexity.py",
    "predict": "scripts/predict.py {tiny} --checkpoint_path {trained} --out {new}",
    "video": "{synthetic}/videos/test/grow_000.mp4",
    "sets": "{mtrain} --data.sets",
    "mtrain": "mvit_multi/train.py {mvit} --run.out={new}",
    "tsm": "--config_path tsm/configs/tsm_smoke.yaml",
    "x3d": "--config_path x3d/configs/x3d_smoke.yaml",
    "mvit": "--config_path mvit_multi/configs/mvit_multi_smoke.yaml",
    "resnet": "--config_path resnet50/configs/resnet50_smoke.yaml",
    "imagenet": "--config_path resnet50/configs/resnet50_r50_imagenet_zoo.yaml",
}
# Each command is followed by words of its error message.
ERRORS = r"""
misspelt yaml: tsm/train.py --config_path tsm/configs/tsm_smoek.yaml
    tsm_smoek.yaml: no such config file; nearest: tsm/configs/tsm_smoke.yaml
folder for a yaml: tsm/train.py --config_path tsm/configs
    no such config file; nearest
yaml without its option: tsm/train.py tsm/configs/tsm_smoke.yaml
    unexpected argument: did you mean --config_path tsm/configs/tsm_smoke.yaml?
misspelt option: tsm/train.py --config tsm/configs/tsm_smoke.yaml
    unknown option --config; did you mean --config_path?
no section: tsm/train.py {tsm} --epochs=3
    unknown option --epochs; did you mean --train.epochs?
key of two sections: scripts/predict.py {tsm} --batch 3
    did you mean --data.batch or --eval.batch?
misspelt, no section: x3d/train.py {x3d} --epcohs=3
    unknown option --epcohs;
    did you mean --train.epochs?
no yaml: tsm/train.py --run.device=CPU
    required: --config_path; --help shows the usage
tab in a yaml: tsm/train.py --config_path tab.yaml
    not a readable yaml
    line 2
empty yaml: tsm/train.py --config_path empty.yaml
    empty.yaml: expected sections
yaml of another network: tsm/train.py {x3d}
    x3d_smoke.yaml, read as a yaml of tsm: unknown setting data.frames
    The yaml is in the folder of x3d: use x3d/train.py
other network named: {complexity} --network x3d {tsm}
    The yaml is in the folder of tsm: use --network=tsm
misspelt section: tsm/train.py --config_path section.yaml
    section.yaml, read as a yaml of tsm: unknown section trian; nearest: train
yaml outside a network: {complexity} --config_path mine.yaml
    --network is missing: mine.yaml is in no network's folder; add --network=mvit_multi|res
misspelt network: {complexity} --config_path mine.yaml --network tms
    --network: invalid choice: 'tms' (choose from
    tsm

misspelt setting: {train} --train.epoch=3
    unknown setting train.epoch; nearest: epoch
unknown option of a prediction: {predict} --qqqq=3 video.mp4
    unknown option --qqqq; --help shows the usage
text for a number: {train} --train.lr=fast
    train.lr must be a number, not 'fast'
no epochs: {train} --train.epochs=-1
    train.epochs must be above 0, not -1
only warm-up: {train} --train.epochs=1
    train.warmup_epochs must be below train.epochs 1, not 1.0
no value: {train} --data.flip
    --data.flip: expected one argument; --help
no dashes: {train} train.lr=3
    unexpected argument train.lr=3; did you mean --train.lr=3?
no device of that name: {train} --run.device=cuda
    one of Ascend, GPU, CPU, not 'cuda'
no GPU: {train} --run.device=GPU
    run.device: GPU is not available here
    check_env.py lists the devices; --run.device=CPU runs anywhere
no NPU: {train} --run.device=Ascend
    run.device: Ascend is not available here
no such reader: {train} --data.reader=vlc
    one of auto, pyav, decord, opencv
no such backbone: {train} --model.arch=resnet19
    model.arch must be one of resnet18
non-local in resnet18: {train} --model.non_local=true
    non_local is defined for resnet50
no such layer: {train} --run.all_reduce=[layer9]
    in a layer named layer9
too many views: {eval} {trained} --eval.clips=7
    eval.clips: uniform sampling offers 1 or 2 clips, not 7
crop above the frame: {train} --data.crop=64
    data.crop 64 is larger than data.resize
scale of 0: {train} --data.scales=[0]
    data.scales: [0.0] must be fractions of the frame
dropout of 1: {train} --model.dropout=1
    model.dropout must lie in [0, 1)
negative interval: {train} --run.eval_every=-2
    run.eval_every must not be negative
label swapped with itself: {train} --data.swap_labels=[[0,0]]
    [[0, 0]] has a label twice
batch above the list: {train} --data.batch=99
    24 samples do not fill one batch of 99 on each of 1 ranks; lower data.batch
no sets: {sets}=[]
    data.sets
underscore in a set: {sets}='[{{name: a_b, num_classes: 2}}]'
    letters, digits and hyphens
set without classes: {sets}='[{{name: a}}]'
    data.sets[0].num_classes
unknown key of a set: {sets}='[{{name: a, num_classes: 2, flops: 1}}]'
    flops
rand_augment: {mtrain} --data.rand_augment=rand-m7
    data.rand_augment
single head for several sets: {mtrain} --model.single_head=true
    model.single_head
no expander: {mtrain} --model.expander=false
    train.informative_weight
no set of that name: {mtrain} --eval.sets=[nine]
    nine is none of eight, axes, moves
one weight for three sets: {mtrain} --train.set_weights=[1]
    train.set_weights
stage after the end: {mtrain} --model.depth=2 --model.stage_starts=[7]
    model.stage_starts

no data: {train} --data.root=nowhere
    nowhere/train.txt does not exist: data.root or the list's name is wrong
    scripts/data/make_lists.py
no test list: {eval} {trained} --data.test_list=none.txt
    none.txt does not exist
no file for a list: {train} --data.train_list=/dev/null
    annotation file /dev/null is no file
video for a list: {train} --data.train_list={bad}/cut.mp4
    cut.mp4 is no text file
empty list: {train} --data.train_list={bad}/empty.txt
    empty.txt is empty
video missing: {train} --data.train_list={bad}/missing.txt
    missing.txt, bad lines (1): line 2:
    none.mp4' does not exist
no folder for the list: {train} --data.root=nowhere --data.train_list={bad}/missing.txt
    bad lines (2, and data.root
    nowhere is no folder): line 1:
label too high: {train} --data.train_list={bad}/label.txt
    label.txt, bad lines (1): line 1: label '8' is not an integer from 0 to 7:
    num_classes is 8
label in words: {train} --data.train_list={bad}/word.txt
    line 1: label 'left' is
no label: {train} --data.train_list={bad}/field.txt
    is not `path label`, separated
commas: {train} --data.train_list={bad}/commas.txt
    is not `path label`, separated
list of videos, not frames: {train} --data.source=frames
    not `path num_frames label`
fewer classes: {train} --model.num_classes=3
    data.swap_labels: 7 is no label of 3 classes
    --data.swap_labels=[]
fewer classes than labels: {train} --model.num_classes=3 --data.swap_labels=[]
    label '3' is not an integer from 0 to 2: num_classes is 3
nothing packed: {train} --data.packed={bad}
    run scripts/data/pack_videos.py
no data for x3d: x3d/train.py {x3d} --data.root=none --run.out={new}
    none/train.txt does not exist
no data for mvit_multi: {mtrain} --data.root=none --run.out={new}
    none/eight/train.csv does not exist
no data for resnet50: resnet50/train.py {resnet} --data.root=none --run.out={new}
    none/data_batch_1.bin does not exist; name a folder of cifar10
no images: resnet50/train.py {imagenet} --run.device=CPU --data.root={synthetic} --run.out={new}
    data.train:
    train is not a folder

no checkpoint: {eval} none.ckpt
    none.ckpt: no such checkpoint
no checkpoint named: tsm/eval.py {tiny}
    required: --checkpoint_path
another epoch: {eval} {run}/epoch_009.ckpt
    epoch_009.ckpt: no such checkpoint;
    has epoch_001.ckpt, epoch_002.ckpt
folder of a run: {eval} {run}
    has epoch_001.ckpt, epoch_002.ckpt
checkpoint cut off: {eval} cut.ckpt
    cut.ckpt: not a readable checkpoint
text for a checkpoint: {eval} text.ckpt
    text.ckpt: not a readable checkpoint
    copy it again
video for a checkpoint: {eval} text.mp4
    its name does not end in .ckpt
resume file of another width: {eval} {run}/resume.ckpt --model.first_width=16
    resume.ckpt does not fit this network: shape
    is it of another network, or of other settings under model?
empty checkpoint: {eval} empty.ckpt
    empty.ckpt: is empty
unconverted weights: {train} --train.pretrained=resnet.pth
    resnet.pth: convert it first with scripts/convert_checkpoint.py
other width: {eval} {trained} --model.first_width=16
    instead of [16, 3, 7, 7]
    is it of another network, or of other settings under model?
other depth: {eval} {trained} --model.arch=resnet34
    missing base_model.layer
    is it of another network, or of other settings under model?
no X3D: x3d/eval.py {x3d} --run.device=CPU --data.root={synthetic} --checkpoint_path {trained}
    missing s1.pathway0_stem
    unknown base_model.conv1.weight
    is it of another network, or of other settings under model?
other settings: tsm/train.py {tiny} --run.out={run} --train.lr=0.5
    holds a run with train.lr 0.05, not 0.5; choose another --run.out
new run in a run's folder: tsm/train.py {tiny} --run.out={run} --run.resume=false
    already holds a run and run.resume is false
unwritable run folder: tsm/train.py {tiny} --run.out=/proc/none
    run.out: cannot write /proc/none
file for a folder: tsm/train.py {tiny} --run.out=text.mp4
    text.mp4: a file is in the way
unwritable trace folder: {train} --run.profile=/proc/none
    run.profile: cannot write
no target: {export}
    --target
no such format: {export} --target {new} --format=air
    --format: invalid choice: 'air' (choose from
target of another format: {export} --target net.onnx
    net.onnx ends in .onnx and --format is mindir
no clip in a batch: {export} --target {new} --batch=0
    --batch: must be a whole number above 0, or free, not 0
batch in words: {export} --target {new} --batch=any
    --batch: must be a whole number above 0, or free, not any
no such input: {export} --target {new} --input=int8
    --input: invalid choice: 'int8' (choose from
no such precision: {export} --target {new} --precision=int8
    --precision: invalid choice: 'int8' (choose from
unwritable export target: {export} --target /proc/none/a
    --target: cannot write /proc/none/a
missing video: scripts/predict.py {mvit} --run.device=CPU --checkpoint_path {trained} none.mp4
    none.mp4 does not exist
another class count: {train} --model.num_classes=9 --train.pretrained={trained}
    base_model.fc.weight is [8, 64] instead of [9, 64]
    train.new_head=true
checkpoint for an engine: {eval} none.ckpt --run.engine=auto
    error: none.ckpt: no such checkpoint
no ONNX file: {eval} none.onnx --run.engine=auto
    error: none.onnx: no such file
damaged MINDIR: {eval} net.mindir
    net.mindir: its checksum differs from its content; copy or export it again
damaged ONNX file: {eval} net.onnx
    net.onnx: its checksum differs from its content; copy or export it again
misspelt option of a prediction: {predict} --topp=3 video.mp4
    unknown option --topp; did you mean --top?
damaged video: {predict} noise.mp4
    noise.mp4 with pyav: it does not open
no video named: {predict}
    the following arguments are required: videos
no class to print: {predict} {video} --top=0
    --top: must be a whole number of at least 1
negative window: {predict} {video} --window=-1
    --window: must be a number of at least 0
step in words: {predict} {video} --step=x
    --step: must be a number
step of 0: {predict} {video} --step=0
    --step must be above 0
address of a stream: {predict} rtsp://camera.local/stream
    error: rtsp://camera.local/stream: addresses are not read; save the video as a file
address of a camera: {predict} --stream http://camera.local/video
    error: http://camera.local/video: addresses are not read
folder without videos: {predict} {run}
    it has no frame named img_
missing class names: {predict} {video} --labels=none.txt
    --labels: none.txt does not exist
other class names: {predict} {video} --labels={synthetic}/train.txt
    has 24 names, the network 8 classes
rate without a stream: {predict} {video} --fps=5
    --fps goes with it
stream of an offline network: {predict} {video} --stream
    model.online=true
video cut off: {predict} cut.mp4
    cannot read
no readable video: {predict} cut.mp4 {synthetic}/train.txt
    none of the videos
predictions into a file: {predict} {video} --out={video}
    --out: cannot write
long name of a video: {predict} {long}
    error: \x1bnnn
    does not exist

no source: {convert} --source none.pth
    none.pth: no such file
no source named: {convert}
    required: --source
web page: {convert} --source page.pth
    is a web page, not a checkpoint; download it
pointer: {convert} --source pointer.pth
    is a git-lfs pointer
    git lfs pull
source cut off: {convert} --source cut.pth
    cut.pth: is cut off or damaged
empty source: {convert} --source zero.pth
    zero.pth: is empty
a pickle: {convert} --source pickle.pth
    is a plain pickle, not written by torch.save
source of another network: scripts/convert_checkpoint.py --target {new} --source resnet.pth {x3d}
    resnet.pth: the names are neither PySlowFast's, pytorchvideo's nor mindvideo's X3D
source of another size: {convert} --source tsm.pth.tar
    instead of [16, 3, 7, 7]
source of other classes: {convert} --source tsm.pth.tar --model.first_width=2
    base_model.fc.weight is [7, 16] instead of [8, 16]
    --new_head leaves the classifier fresh
bad target: {convert} --source tsm.pth.tar --model.first_width=2 --new_head --target /proc/none/t
    --target: cannot write /proc/none/t.ckpt
text for a source: {convert} --source text.ckpt
    text.ckpt
old source cut off: {convert} --source cut.pth.tar
    cut.pth.tar
gzip for a source: {convert} --source gzip.pth
    gzip.pth
Caffe2: scripts/convert_checkpoint.py --target {new} --source caffe2.pkl {x3d}
    Caffe2

no videos: {lists} --videos nowhere --out {new}
    nowhere is no folder
video for a folder: {lists} --videos cut.mp4 --out {new}
    cut.mp4 is no folder
no class folders: {lists} --videos {synthetic}/videos/train --out {new}
    0 class folders with videos, but a data set needs two:
    CLASS/VIDEO.mp4
unwritable lists: {lists} --videos {synthetic}/videos --out /proc/none
    --out: cannot write /proc/none
blanks in a path: {lists} --out {new} --videos a path/with blanks
    unexpected argument path/with; a path with blanks needs quotes
quickstart argument: scripts/quickstart.py now
    now: this command takes no arguments
lists of images: {scan} {resnet} --out {new}
    resnet50 has no lists of videos
scan over its lists: {scan} {tsm} --data.root={synthetic} --out {synthetic}
    train.txt, which would be replaced
scan of a missing list: {scan} {tsm} --data.root=none --out {new}
    none/train.txt does not exist
pack into the videos: {pack} --out {synthetic}
    --out: cannot write
no such quality: {pack} --out {new} --quality 99
    --quality of video is 0 to
plot of no run: {plot} {bad}
    log.jsonl does not exist: name the output folder of a training
plot of no format: {plot} {run} --out a.pdf
    must end in .png or .svg
nothing to measure: benchmarks/benchmark.py {tsm}
    the following arguments are required: step|kernels|compile|memory|data|eval
devices in words: {plan} {tsm} --devices many
    --devices: must be numbers above 0, as in 8,64,512, not many
nothing to compare: scripts/analysis/compare_step.py {tsm}
    one of --record, --against, --case
file for videos: {videos} --out text.mp4
    --out: cannot write text.mp4
no number of videos: {videos} --out {new} --train x
    --train: invalid int value: 'x'; --help shows the usage
unwritable images: scripts/data/synthesize_images.py --out /proc/none
    cannot write /proc/none
no folder of images: scripts/data/pack_images.py --source nowhere --target {new}
    --source: nowhere is not a folder
missing folder of clips: benchmarks/measure_data.py --videos nowhere
    nowhere is no folder
no script: scripts/launch.py 2 none.py
    SCRIPT none.py: no such file; name one like
devices of a job in words: scripts/launch.py two tsm/train.py
    not two
setting of a tool: {lists} --videos={synthetic} --out={new} --data.x=3
    error: --data.x=3: this command takes no settings
test fraction of 1: {lists} --videos {synthetic} --out {new} --test 1
    --test must lie between 0 and 1, not 1
no such format of names: {lists} --videos {synthetic} --out {new} --names tsv
    --names: invalid choice: 'tsv'
no such codec: {pack} --out {new} --codec gif
    --codec: invalid choice: 'gif'
shards in words: {pack} --out {new} --shards x
    --shards: must be a whole number of at least 0, not x
missing folder of a scan: {pack} --out {new} --bad /nowhere
    --bad: /nowhere/train.txt.bad.tsv is not there
    name the --out of scripts/data/check_vid
nothing to verify: {pack} --out {new} --verify
    is not there; run scripts/data/pack_videos.py
pack of flow: {pack} --out {new} --data.source=frames --data.modality=flow
    optical flow is no video
pack of images: scripts/data/pack_videos.py {resnet} --out {new} --network resnet50
    scripts/data/pack_images.py packs images
scan of some frames: {scan} {tsm} --data.root={synthetic} --out {new} --frames=some
    --frames: invalid choice: 'some'
device to check: scripts/check_env.py --device=GPU
    --device=GPU: this command takes no arguments
"""


def read_errors() -> dict[str, list[str]]:
    """{name: [command, words of its error message, ...]}"""
    rows: list[list[str]] = []
    for line in filter(None, ERRORS.splitlines()):
        if line.startswith(" "):
            rows[-1].append(line.strip())
        else:
            rows.append(line.split(": ", 1))
    return {name: row for name, *row in rows}


ROWS = read_errors()


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
def replacements(data_root, tiny_args, tiny_ckpt, tmp_path_factory) -> dict[str, str]:
    """The values of the names in braces."""
    bad = tmp_path_factory.mktemp("bad")
    write_damaged_files(bad, data_root, tiny_ckpt)
    result = {"bad": bad, "synthetic": data_root, "trained": tiny_ckpt, "run": tiny_ckpt.parent}
    words = {"tiny": shlex.join(tiny_args), "long": "\x1b" + 300 * "n"}
    return {**{name: str(path) for name, path in result.items()}, **words}


@pytest.fixture
def run_line(run_here, monkeypatch, replacements):
    """A function that runs a command here; returns its status and last line on stderr."""

    def run(line: str, **more: str) -> tuple[int, str]:
        for name, command in COMMANDS.items():
            line = line.replace("{" + name + "}", command)
        done = run_here(*shlex.split(line.format(**replacements, **more)))
        return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]

    monkeypatch.chdir(replacements["bad"])
    return run


@pytest.mark.parametrize("name", ROWS)
def test_a_user_error_is_reported_in_one_line(name, run_line, replacements, tmp_path):
    line, *words = ROWS[name]
    before = sorted(Path(replacements["bad"]).rglob("*"))
    new = tmp_path / "new"
    status, message = run_line(line, new=str(new))
    assert status == 2, message
    assert message.startswith("error: ")
    for word in words:
        assert word in message
    assert sorted(Path(replacements["bad"]).rglob("*")) == before
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".ckpt", ".mindir")]
    assert not (line.startswith("{pack}") and new.exists())
    assert not (line.startswith("{predict}") and list(new.glob("*")))


def test_a_yaml_in_the_folder_of_another_network_is_read_if_its_settings_fit(monkeypatch, tmp_path):
    file = tmp_path / "x3d" / "configs" / "mine.yaml"
    file.parent.mkdir(parents=True)
    (tmp_path / "x3d" / "network.py").touch()
    shutil.copy(ROOT / "tsm" / "configs" / "tsm_smoke.yaml", file)
    monkeypatch.setattr(networks, "ROOT", tmp_path)
    assert load_for_script(Config, file, ["train.epochs=3"], "{}").train.epochs == 3
    with pytest.raises(ValueError, match="is in the folder of x3d: use x3d/eval.py"):
        load_for_script(Config, file, ["train.epochs=x"], "{}/eval.py")


def test_a_pack_refuses_videos_of_another_codec_or_quality(run_line, tmp_path):
    line = f"{{pack}} --data.train_list=test.txt --out {tmp_path}/packed --workers 1 --quality"
    assert run_line(f"{line} 1")[0] == 0
    for change, words in (
        ("1 --codec jpeg", "another codec (video, now jpeg); remove the folder or choose another"),
        ("2", "was begun with another quality (1, now 2)"),
    ):
        status, message = run_line(f"{line} {change}")
        assert status == 2
        assert words in message


def test_a_missing_tensorboard_is_reported_before_anything_is_written(
    run_line, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    status, message = run_line("{train} --run.tensorboard=true", new=str(tmp_path / "run"))
    assert status == 2
    assert "run.tensorboard: tensorboardX cannot be imported" in message
    assert "pip install tensorboardX" in message
    assert not (tmp_path / "run").exists()


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
    monkeypatch.setattr(decoders, "_load", lambda name: None)
    words = "'decord', which is not installed: pip install decord2, or --data.reader=auto"
    with pytest.raises(ValueError, match=words):
        decoders.open_video(data_root / "videos/train/left_000.mp4", "decord")
