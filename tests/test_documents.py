"""Every command of the documents is run, in order, with small data, or says why not.

A line of a ```bash block that the tests do not run ends in `# not run by the tests: REASON`; a
block of them has `<!-- not run by the tests: REASON -->` above it. Each document runs in a copy of
the checkout of its own; SMALL says what is appended to which commands to make them small, `furnish`
what lies there beforehand. What a command names and no earlier line has made comes from `provide`:
a checkpoint is a fresh network, a video a synthetic one, a run a short training.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.helpers import build_env, copy_checkout, mark_installed
from tests.test_official_lists import CASES, IMAGES, write_files, write_imagenet
from utils.config import ROOT, load_config
from utils.networks import find_network, list_networks
from utils.weights import checkpoint

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += [ROOT / network / "README.md" for network in list_networks()]
MARK = "not run by the tests: "
FILE = re.compile(r"```yaml file=(\S+)\n(.*?)```", re.DOTALL)  # what the reader writes
BLOCK = re.compile(rf"(?:<!-- {MARK}(.+?) -->\n)?```bash\n(.*?)```", re.DOTALL)

SYNTHETIC = "--data.root=data/synthetic --data.train_list=train.txt --data.test_list=test.txt "
TSM = "--model.arch=resnet18 --model.first_width=2 --data.segments=2 --run.device=CPU "
TINY = "--model.first_width=8 --data.segments=2 --data.crop=32 --data.resize=40 --data.batch=4"
# What a command that matches is made small with. All that match are appended.
SMALL = {
    r"(train|eval|predict|export|step|benchmark|backward)\S* .*tsm_smoke\.yaml": TINY,
    r"tsm_r50_(k400|sthv2)\w*\.yaml .*checkpoint|run_eval.*tsm_r50_": SYNTHETIC + TSM,
    r"train.py .*tsm_r50_k400_8f\.yaml --data": TSM + "--data.batch=1 --train.epochs=1 "
    "--train.pretrained=null",
    r"convert.*tsm_r50": "--model.arch=resnet18 --model.first_width=2",
    r"convert.*TSM_kinetics": "--model.num_classes=7",
    r"(train|eval|predict)\S* .*tsm_mine": TSM + "--data.batch=2",
    r"train.py .*tsm_mine\.yaml": "--run.save_every=25",
    r"train.py .*tsm_mine_small": "--train.epochs=6",
    r"(train|eval)\S* .*x3d_smoke": "--data.scales=[32,32] --data.crop=32 --data.frames=4 "
    "--data.batch=4 --train.precise_bn=1",
    r"mvit_multi_smoke": "--data.crop=32 --data.frames=4 --model.dim=8 --data.batch=4",
    r"(run_eval|export).*x3d_s_k400": "--run.device=CPU --data.root=data/synthetic "
    "--data.test_list=test.txt --data.scales=[32,32] --data.crop=32 --data.frames=4 "
    "--model.depth_factor=0.4 --eval.clips=1",
    r"resnet50_r50_imagenet_torchvision": "--model.arch=resnet18 --model.first_width=2 "
    "--model.num_classes=10 --data.resize=64 --data.crop=64 --run.device=CPU",
    r"synthesize_videos.*data/synthetic": "--train 3 --test 1 --seed 1",
    r"synthesize_videos.*--sets": "--train 2 --test 1",
    r"predict.*--window": "--window 1 --step 0.5",
    r"benchmark.py (step|eval)": "--repeats=1",
    r"benchmark.py data": "--seconds=1",
    r"profile_backward": "--points 2 --repeats 1",
    r"measure_data": "--seconds 1 --clips 8",
}
# What a document's commands need beyond requirements.txt.
PACKAGES = {"--run.tensorboard": "tensorboardX", "--format onnx": "onnxruntime"}
# What the suite runs each time: the way from videos to a result. The rest is slow.
QUICK = re.compile(
    r"^python (tsm/train.*epochs=3|tsm/eval.*epoch_003"
    r"|scripts/(check_env|data/make_lists|analysis/plot_training))"
)


class Line(NamedTuple):
    """A command, and why it is not run; empty for one that is."""

    command: str
    reason: str


def lines_of(document: Path) -> list[Line]:
    result = []
    for reason, block in BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, own = line.partition(f"# {MARK}")
            if command.strip():
                result.append(Line(command.strip(), own.strip() or reason))
    return result


@pytest.fixture
def zoo(data_root, tmp_path) -> Path:
    """A copy of the checkout with data of two classes, of images and of weights."""
    folder = tmp_path / "zoo"
    copy_checkout(folder)
    furnish(folder, data_root)
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("installed-"):
            (folder / ".venv" / part.name).symlink_to(part)
    mark_installed(folder)
    return folder


def furnish(folder: Path, synthetic: Path) -> None:
    """What the documents take for granted: videos, images and published weights, in small."""
    shutil.copytree(synthetic, folder / "data" / "synthetic")
    videos = synthetic / "videos" / "train"
    for motion in ("left", "grow"):
        shutil.copytree(videos, folder / "data/mine/videos" / motion, ignore=all_but(motion))
    shutil.copytree(videos, folder / "data" / "clips", ignore=all_but("up"))
    pixels = np.random.RandomState(0).randint(0, 256, (8, 80, 100, 3)).astype(np.uint8)
    for number, image in enumerate(pixels):
        path = folder / "data/imagenet" / ("train", "val")[number // 4] / "ab"[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{number}.jpg")
    write_imagenet(folder, "ILSVRC2012_devkit_t12/data")
    for name in IMAGES:
        for position in ("ILSVRC/Data/CLS-LOC/val", "ILSVRC2012_img_val"):
            (folder / position).mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "data/imagenet/train/a/0.jpg", folder / position / name)
    tsm = "TSM_kinetics_RGB_resnet50_shift8_blockres_avg_segment8_e50.pth"
    shutil.copy(folder / "tsm/tests/golden/tsm_r18_w2.pth.tar", folder / tsm)
    resnet = folder / "resnet50" / "tests" / "golden" / "resnet18_w2.pth"
    shutil.copy(resnet, folder / "resnet50-0676ba61.pth")


def all_but(start: str):
    return lambda _, names: [name for name in names if not name.startswith(start)]


def small(command: str) -> str:
    return " ".join([command, *(more for each, more in SMALL.items() if re.search(each, command))])


def provide(command: str, folder: Path) -> None:
    """What a command names and is not there: videos, annotations, runs, and fresh networks."""
    words = shlex.split(command)
    given = dict(zip(words, words[1:]))
    names = [word for word in words if word.endswith((".mp4", ".jpg"))]
    if "--dataset" in given:
        annotations, videos = CASES[given["--dataset"]][:2]
        write_files(folder / given["--annotations"], annotations)
        names += [f"{given['--videos']}/{video}" for video in videos]
    for name in [name for name in names if not (folder / name).exists()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image = "data/imagenet/val/a/4.jpg" if name.endswith(".jpg") else ""
        shutil.copy(folder / (image or "data/synthetic/videos/test/grow_000.mp4"), folder / name)
    runs = [word for word in words if re.match(r"out/\w+$", word)]
    for name in runs if "plot_training" in command else ():
        if not (folder / name / "log.jsonl").exists():
            train = "python tsm/train.py --config_path tsm/configs/tsm_smoke.yaml --train.epochs=2"
            execute([f"{train} --run.out={name}"], folder)
    (yaml,) = [word for word in words if word.endswith(".yaml")] or [""]
    for name in [word for word in words if re.fullmatch(r"(out|weights)/\S+\.ckpt", word)]:
        if not (folder / name).exists() and "convert_checkpoint" not in command:
            save_fresh(folder / name, folder / yaml, words)


def save_fresh(path: Path, yaml: Path, words: list[str]) -> None:
    """A network of fresh weights, as the yaml and the command's settings describe it."""
    network = yaml.parent.parent.name
    overrides = [word[2:] for word in words if re.match(r"--\w+\.\w+=", word)]
    cfg = load_config(find_network(network).config, yaml, overrides)
    net = find_network(network).model.build_network(**cfg.model_arguments())
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, checkpoint.weights_of(net))


def execute(commands: list[str], folder: Path) -> None:
    for command in map(small, commands):
        provide(command, folder)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**build_env(), "PWD": str(folder)},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"


def run_lines(document: Path) -> list[str]:
    return [line.command for line in lines_of(document) if not line.reason]


def test_the_way_from_videos_to_a_result_runs_as_the_readme_says(zoo):
    commands = [line for line in run_lines(ROOT / "README.md") if QUICK.match(line)]
    assert len(commands) == 5
    execute(commands, zoo)
    assert (zoo / "out" / "tsm_smoke" / "curves.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_a_document_runs(document, zoo):
    commands = run_lines(document)
    if not commands:
        pytest.skip("no command to run")
    for word, package in PACKAGES.items():
        if any(word in command for command in commands):
            pytest.importorskip(package)
    for name, text in FILE.findall(document.read_text()):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text(text)
    execute(commands, zoo)


def test_what_is_small_is_named_by_a_document():
    """A row of SMALL that no command matches any more is left over."""
    commands = [command for document in DOCUMENTS for command in run_lines(document)]
    assert [each for each in SMALL if not any(re.search(each, c) for c in commands)] == []
