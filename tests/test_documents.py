"""Runs the commands of each document in order, with small data, in a copy of the checkout.

A line of a ```bash block that is not run ends in `# not run by the tests: REASON`; a block that is
not run has `<!-- not run by the tests: REASON -->` above it. SMALL has the arguments that make a
command small. `write_inputs` writes data to the copy, `write_missing_files` other missing files.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.documents import DOCUMENTS, FILE, read_lines
from tests.helpers import build_env, copy_checkout, link_environment, save_random_weights
from tests.test_official_lists import CASES, IMAGES, SYNSETS, write_files, write_imagenet
from utils.files import ROOT
from utils.load_config import find_recipes, load_config
from utils.networks import find_network

SYNTHETIC = "--data.root=data/synthetic --data.test_list=test.txt"
RESNET = "--model.arch=resnet18 --model.first_width=2"
TSM = f"{RESNET} --data.segments=2 --run.device=CPU"
TINY = "--model.first_width=8 --data.segments=2 --data.crop=32 --data.resize=40 --data.batch=4"
TINY_X3D = "--data.scales=[32,32] --data.crop=32 --data.frames=4"
RUN = ("train", "eval", "predict", "stream", "export", "extract_features")
RUN += ("run_standalone_train", "run_distribute_train")
MEASURE = ("benchmark", "compare_step", "run_eval")
# Scripts, a part of the command, arguments that make it small. A command gets those of all rows.
SMALL = [
    ((*RUN, *MEASURE), "tsm_smoke.yaml", TINY),
    (("eval", "run_eval", "export"), "tsm_r50_k400", f"{SYNTHETIC} {TSM}"),
    (("train",), "tsm_r50_k400", f"{TSM} --data.batch=1 --train.epochs=1 --train.pretrained=null"),
    (("export",), "jester_online", "--run.device=CPU"),
    (("convert_checkpoint",), "tsm_r50", RESNET),
    (("convert_checkpoint",), "TSM_kinetics", "--model.num_classes=7"),
    (("finetune",), "tsm_r50_k400_8f", TSM),
    (("finetune",), "--recipe tsm", TINY),
    (("finetune",), "data/mine", "--data.batch=2 --train.epochs=2"),
    (("train",), "out/tuned", "--train.epochs=2"),
    (("train", "eval"), "x3d_smoke", f"{TINY_X3D} --data.batch=4 --train.precise_bn=1"),
    (("run_eval", "export"), "x3d_s_k400", f"{SYNTHETIC} {TINY_X3D} --run.device=CPU"),
    (("run_eval", "export"), "x3d_s_k400", "--model.depth_factor=0.4 --eval.clips=1"),
    (RUN, "mvit_multi_smoke", "--data.crop=32 --data.frames=4 --model.dim=8 --data.batch=4"),
    ((*RUN, "convert_checkpoint"), "resnet50_r50_imagenet_torchvision",
     f"{RESNET} --model.num_classes=10 --data.resize=64 --data.crop=64 --run.device=CPU"),
    (("synthesize_videos",), "data/synthetic", "--train 3 --test 1 --seed 1"),
    (("synthesize_videos",), "--sets", "--train 2 --test 1"),
    (("predict", "stream"), "--window", "--window 1 --step 0.5"),
    *((("benchmark",), f".py {name}", "--repeats=1") for name in ("step", "eval")),
    (("benchmark",), ".py data", "--seconds=1"),
]  # fmt: skip
# Text in a command -> package that it needs beyond requirements.txt.
PACKAGES = {"--run.tensorboard": "tensorboardX"}


def test_no_command_changes_the_installed_packages():
    lines = [line for page in DOCUMENTS for line in read_lines(page) if not line.reason]
    assert not [line.command for line in lines if "pip install" in line.command]


@pytest.fixture
def zoo(data_root, tmp_path) -> Path:
    """A copy of the checkout with videos of two classes, images and weights."""
    copy_checkout(tmp_path / "zoo")
    write_inputs(tmp_path / "zoo", data_root)
    link_environment(tmp_path / "zoo")
    return tmp_path / "zoo"


def write_inputs(folder: Path, data_root: Path) -> None:
    """Writes the inputs of the documents: small videos, images and published weights."""
    shutil.copytree(data_root, folder / "data" / "synthetic")
    videos = data_root / "videos" / "train"
    for motion in ("left", "grow"):
        target = folder / "data/mine/videos" / motion
        shutil.copytree(videos, target, ignore=ignore_other_names(motion))
    for name in ("data/clips", "new_videos"):
        shutil.copytree(videos, folder / name, ignore=ignore_other_names("up"))
    pixels = np.random.RandomState(0).randint(0, 256, (8, 80, 100, 3)).astype(np.uint8)
    for number, image in enumerate(pixels):
        split = ("train", "val")[number // 4]
        path = folder / "data/imagenet" / split / SYNSETS[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{number}.jpg")
    write_imagenet(folder, "ILSVRC2012_devkit_t12/data")
    photo = folder / f"data/imagenet/train/{SYNSETS[0]}/0.jpg"
    for name in IMAGES:
        for position in ("ILSVRC/Data/CLS-LOC/val", "ILSVRC2012_img_val"):
            (folder / position).mkdir(parents=True, exist_ok=True)
            shutil.copy(photo, folder / position / name)
    tsm = "TSM_kinetics_RGB_resnet50_shift8_blockres_avg_segment8_e50.pth"
    shutil.copy(folder / "tsm/tests/golden/tsm_r18_w2.pth.tar", folder / tsm)
    resnet = folder / "resnet50" / "tests" / "golden" / "resnet18_w2.pth"
    shutil.copy(resnet, folder / "resnet50-0676ba61.pth")


def ignore_other_names(start: str):
    return lambda _, names: [name for name in names if not name.startswith(start)]


def add_small_arguments(command: str) -> str:
    scripts = {Path(word).stem for word in command.split() if word.endswith((".py", ".sh"))}
    rows = [row for row in SMALL if scripts & set(row[0]) and row[1] in command]
    return " ".join([command, *(arguments for *_, arguments in rows)])


def list_commands(document: Path) -> list[str]:
    return [line.command for line in read_lines(document) if not line.reason]


OUTPUTS = ("--save", "--target", "--out", "--report")  # options that name what a command writes
SMOKE = "tsm/configs/tsm_smoke.yaml"
# Of checkpoints in a command without a config file, if neither file nor folder is named like one
RECIPES = {"k400": "tsm_r50_k400_8f", "tsm": "tsm_r50_k400_8f", "x3d_s": "x3d_s_k400_13x6"}
RECIPES["r50"] = "resnet50_r50_imagenet_torchvision"


def find_yaml(checkpoint: Path) -> str:
    """The config file that a checkpoint of the documents belongs to."""
    recipes = find_recipes()
    for name in (checkpoint.stem, checkpoint.parent.name):
        name = RECIPES.get(name, name)
        if name in recipes:
            return str(recipes[name].relative_to(ROOT))
    return SMOKE


def write_checkpoint(path: Path, yaml: str, overrides: list[str], folder: Path) -> None:
    """Writes random weights, which describe themselves with folders of the copied checkout."""
    network = Path(yaml).parts[0]
    cfg = load_config(find_network(network).config, folder / yaml, overrides)
    if cfg.data.root.is_relative_to(ROOT):
        overrides = [*overrides, f"data.root={folder / cfg.data.root.relative_to(ROOT)}"]
        cfg = load_config(find_network(network).config, folder / yaml, overrides)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_random_weights(cfg, path, network)


def write_missing_files(command: str, folder: Path) -> None:
    """Writes the missing inputs of a command: videos, annotations, runs and checkpoints."""
    words = shlex.split(command)
    options = dict(zip(words, words[1:]))
    outputs = {options.get(option) for option in OUTPUTS}
    words = [word for word in words if word not in outputs]
    names = [word for word in words if word.endswith((".mp4", ".jpg"))]
    if "--dataset" in options:
        annotations, videos = CASES[options["--dataset"]][:2]
        write_files(folder / options["--annotations"], annotations)
        if "--uncut" in words:
            videos = [re.sub(r"_\d{6}_\d{6}", "", video) for video in videos]
        names += [f"{options['--videos']}/{video}" for video in videos]
    for name in [name for name in names if not (folder / name).exists()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image = f"data/imagenet/val/{SYNSETS[0]}/4.jpg" if name.endswith(".jpg") else ""
        shutil.copy(folder / (image or "data/synthetic/videos/test/grow_000.mp4"), folder / name)
    runs = [word for word in words if re.match(r"out/\w+$", word)]
    for name in runs if "plot_training" in command else ():
        if not (folder / name / "log.jsonl").exists():
            train = f"python tsm/train.py --config_path {SMOKE} --train.epochs=2"
            run_commands([f"{train} --run.out={name}_run"], folder)
            (folder / name).mkdir(exist_ok=True)  # or there, with a checkpoint of other commands
            shutil.copy(folder / f"{name}_run" / "log.jsonl", folder / name)
    own = [word for word in words if word.endswith(".yaml")]
    for name in [word for word in words if re.fullmatch(r"(out|weights)/\S+\.ckpt", word)]:
        if not (folder / name).exists() and "convert_checkpoint" not in command:
            yaml = own[0] if own else find_yaml(Path(name))
            small = shlex.split(add_small_arguments(f"{words[1]} {yaml}"))
            overrides = [word[2:] for word in [*small, *words] if re.match(r"--\w+\.\w+=", word)]
            write_checkpoint(folder / name, yaml, overrides, folder)


def run_commands(commands: list[str], folder: Path) -> None:
    for command in map(add_small_arguments, commands):
        write_missing_files(command, folder)
        options = {"cwd": folder, "env": {**build_env(), "PWD": str(folder)}, "timeout": 900}
        words = ["bash", "-c", command]
        completed = subprocess.run(words, capture_output=True, text=True, **options)
        assert completed.returncode == 0, f"{command}\n{completed.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", filter(list_commands, DOCUMENTS), ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_command_of_a_document_runs(document, zoo):
    commands = list_commands(document)
    for word, package in PACKAGES.items():
        if any(word in command for command in commands):
            pytest.importorskip(package)
    for name, text in FILE.findall(document.read_text()):
        (zoo / name).parent.mkdir(parents=True, exist_ok=True)
        (zoo / name).write_text(text)
    run_commands(commands, zoo)
