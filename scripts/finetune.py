#!/usr/bin/env python3
"""Trains a recipe of the zoo on your own videos, from class folders to a report.

    python scripts/finetune.py VIDEOS [--recipe tsm_r50_k400_8f] [--checkpoint W] [--out DIR]
        [--group PATTERN] [--section.key=value ...]

VIDEOS has a folder for each class, VIDEOS/CLASS/VIDEO; for recipes of resnet50 images. With
`--checkpoint`, a converted checkpoint or the name of published weights (docs/weights.md), the
training starts from these with a new classifier, and on a CPU trains only that; without, it starts
from random weights. A checkpoint of the zoo has its recipe: then `--recipe` may be missing.
`--group`: see make_lists.py.

The command runs other commands of the zoo and prints each: make_lists.py, check_videos.py,
reencode_videos.py if that pays, show_clips.py, train.py, eval.py, plot_training.py. After the
lists it writes DIR/finetune.yaml, by simple rules, with the settings of the command line. The
config file is yours from then on: change it and run the command again. A step whose result exists
is skipped, unless what it reads is newer; a training resumes where it was stopped. If videos come
or go, the lists stay as they are. DIR is out/<name of VIDEOS>_<recipe> by default. The last line of
stdout is one JSON object: config, checkpoint, report, predict (a command), and the result of
eval.py. Docs: docs/own_videos.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Optional

from scripts.data.prepare.class_folders import ClassFolders, find_sources, scan_class_folders
from scripts.finetuning.config_file import (
    COPIES,
    VideoCounts,
    inspect_network,
    list_files,
    read_start,
    write_config_file,
)
from scripts.finetuning.own_commands import format_command, run_command
from utils import cli
from utils.files import (
    get_base_folder,
    lock_folder,
    read_json,
    read_text,
    report_write_errors,
    write_text,
)
from utils.load_config import list_settings, load_config
from utils.messages import escape_control, join_names, print_line
from utils.networks import Network, find_network, list_networks
from utils.processes import pass_on_signals
from utils.settings import NetworkConfig, VideoData, VideoSet
from utils.train.schedule import describe_accuracy, describe_chance
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from utils.weights.checkpoint_file import check_kind
from utils.weights.preparation import resolve_checkpoint

TEST = 0.2  # the fractions of a class in the lists of the test and the validation
VAL = 0.1
MAX_SHOWN = 5  # names in a message


def main(
    settings: list[str],
    videos: Path,
    *,
    recipe: str = "",
    checkpoint: str = "",
    out: Optional[Path] = None,
    group: str = "",
) -> Optional[int]:
    weights = Path(resolve_checkpoint(checkpoint)).resolve() if checkpoint else None
    if weights:
        check_kind(weights)
    start = read_start(recipe, weights, settings)
    network = start.network
    data = start.cfg.data
    names = "txt" if isinstance(data, VideoSet) else "csv"  # as in `make_lists.py --names`
    names = names if isinstance(data, VideoData) else "images"
    videos = videos.resolve()
    folder = (out or get_base_folder() / "out" / f"{videos.name}_{start.name}").resolve()
    config = folder / "finetune.yaml"
    labels = folder / "lists" / "labels.txt"
    if not videos.is_dir():
        raise ValueError(f"VIDEOS: {videos} is not a folder")
    folders = scan_class_folders(videos, IMAGE_SUFFIXES if names == "images" else VIDEO_SUFFIXES)
    if not labels.exists():
        check_videos(folders, group)
    is_new = not config.exists()
    if is_new:
        fitting = inspect_network(start)
    else:
        pretrained = [f"train.pretrained={weights}"] if weights else []
        check_config(config, start.name, network, [*settings, *pretrained])
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    if lock is None:
        raise ValueError(f"--out: {folder} is in use by another run; choose another one")
    command = ["scripts/data/make_lists.py", "--videos", videos, "--overwrite"]
    command += ["--out", labels.parent, "--names", names, "--test", TEST, "--val", VAL]
    command += ["--group", group] if group else []
    run_step("make the lists", command, labels.parent, files=[labels])
    lists = read_lists(labels.parent, videos, group)
    print_line("videos: " + ", ".join(f"{len(files)} {name}" for name, files in lists.items()))
    present = {video for files in folders.classes.values() for video in files}
    if changed := sorted(present ^ set().union(*lists.values())):
        advice = f"the lists stay; to make new ones, delete {labels.parent} and {folder / 'run'}"
        print_line(f"videos came or went ({join_names(changed, MAX_SHOWN)}): {advice}")
    # Names of folders may be any bytes.
    classes = read_text(labels, str(labels), "surrogateescape").removesuffix("\n").split("\n")
    if is_new:
        files = [videos / name for listed in lists.values() for name in listed]
        sizes = [file.stat().st_size for file in files if file.exists()]
        counted = VideoCounts(len(lists["train"]), len(lists["val"]), sum(sizes) / len(sizes))
        write_config_file(config, start, videos, classes, counted, fitting)
    cfg = load_config(network.config, config)
    if cfg.class_counts != (len(classes),):
        old = f"{config} and {cfg.run.out}"
        raise ValueError(f"{labels} has other classes than {old}: delete these, or choose --out")
    return run_steps(folder, network, cfg, videos)


def check_videos(folders: ClassFolders, group: str) -> None:
    """Raises ValueError if a class has fewer than two videos, or `group` finds no sources."""
    few = [name for name, files in folders.classes.items() if len(files) < 2]
    if few:
        shown = join_names(few, MAX_SHOWN)
        raise ValueError(f"VIDEOS: a class needs two, for training and test; add some to: {shown}")
    if group:
        find_sources([name for files in folders.classes.values() for name in files], group)


def check_config(config: Path, recipe: str, network: Network, settings: Sequence[str]) -> None:
    """Raises ValueError if a config file is of another recipe, or has another setting."""
    made_of = re.match(r"# (.*) for the videos of ", read_text(config, str(config)))
    if made_of and made_of[1] != recipe:
        raise ValueError(f"--recipe: {config} is of {made_of[1]}; choose another --out")
    cfg = load_config(network.config, config)
    for setting in settings:
        if load_config(network.config, config, [setting]) != cfg:
            raise ValueError(f"--{setting}: {config} exists and has another value; change it there")
    print_line(f"using {config} as it is; delete it to have it written again")


def read_lists(folder: Path, videos: Path, group: str = "") -> dict[str, list[str]]:
    """{train, val, test: paths relative to `videos`} of lists, or of folders of links to images.

    Raises ValueError if none of the videos is there, or `group` finds a source in several lists.
    """
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, listed in lists.items():
        links = [path for path in (folder / name).rglob("*") if path.is_symlink()]
        listed += [os.path.relpath(os.readlink(link), videos) for link in links]
        for path in (folder / f"{name}{suffix}" for suffix in (".txt", ".csv")):
            if path.exists():
                lines = read_text(path, str(path), "surrogateescape").split("\n")
                listed += [line.rpartition(" ")[0].removeprefix("./") for line in lines if line]
    every = [video for listed in lists.values() for video in listed]
    if not any((videos / video).exists() for video in every):
        raise ValueError(f"VIDEOS: none of the videos in {folder} is in {videos}; choose --out")
    if group:
        source_of = find_sources(every, group)
        sources = [{source_of[video] for video in listed} for listed in lists.values()]
        if sum(map(len, sources)) > len(set.union(*sources)):
            raise ValueError(f"--group: {folder} was made with another one; delete that folder")
        counts = (f"{len(part)} {name}" for name, part in zip(lists, sources))
        print_line(f"sources: {', '.join(counts)}")
    return lists


def run_steps(folder: Path, network: Network, cfg: NetworkConfig, videos: Path) -> Optional[int]:
    """Runs the commands after `finetune.yaml`; prints the result. Returns the exit status."""
    config = folder / "finetune.yaml"
    own = ["--config_path", config]
    named = ["--network", network.name, *own]
    folders = ("lists", "good", COPIES, "clips", "report")
    lists, good, copies, clips, report = map(folder.joinpath, folders)
    reads = [lists / "labels.txt"]
    if isinstance(cfg.data, VideoData):
        shared = named
        steps = [("check the videos", "scripts/data/check_videos.py", good)]
        if cfg.data.root == copies:
            shared = [*named, f"--data.root={videos}"]
            steps.append(("re-encode the videos", "scripts/data/reencode_videos.py", copies))
        _, named_lists = list_files(cfg, lists)
        for title, script, target in steps:
            command = [script, *shared, "--out", target, *named_lists]
            files, named_lists = list_files(cfg, target)
            run_step(title, command, target, files, reads)
            reads = files
    reads = [config, *reads]
    command = ["scripts/data/show_clips.py", *named, "--out", clips]
    run_step("show the clips", command, clips, [clips / "clips.png"], reads)
    print_line(f"clips as the network gets them: {clips / 'clips.png'}; learning rate: lr.png")

    run = cfg.run.out
    checkpoint = run / "best.ckpt"
    kept = folder / "result.json"  # of eval.py, which follows a complete training only
    trained = run_step("train", [f"{network.name}/train.py", *own], run, [checkpoint, kept], reads)
    if trained and not trained["complete"]:
        print_line(f"stopped after {trained['epochs']} epochs; the same command continues")
        return 1

    best = ["--checkpoint_path", checkpoint]
    command = [f"{network.name}/eval.py", *own, *best, "--report", report]
    files = [kept, report / "index.html"]
    result = run_step("evaluate", command, report, files, [*reads, checkpoint])
    if result is None:
        result = read_json(kept, str(kept))
    else:
        with report_write_errors(kept, "--out"):
            write_text(kept, json.dumps(result) + "\n")

    curves = run / "curves.png"
    command = ["scripts/analysis/plot_training.py", run, "--overwrite"]
    run_step("plot the training", command, curves, [curves], reads=[run / "log.jsonl"])
    predict = format_command(["scripts/predict.py", *best, "VIDEO"])
    chance = 1 / cfg.class_counts[0]
    accuracy = f"{describe_accuracy('test', result)}, chance {chance:.1%}"
    print_line(describe_chance("test", result, chance) or accuracy)
    print_line(f"report: {report / 'index.html'}; training curves: {curves}")
    print(f"predict with\n    {predict}", file=sys.stderr)
    paths = {"config": str(config), "report": str(report), "predict": predict}
    print(json.dumps({**paths, **result}))
    return None


def run_step(
    title: str,
    command: Sequence[Any],
    result: Path,
    files: Sequence[Path],
    reads: Sequence[Path] = (),
) -> Optional[dict[str, Any]]:
    """Prints a command and runs it; the JSON object in its last line of stdout.

    Returns None if its `files` exist, and nothing that it reads is newer. Whoever deletes `result`,
    a file or a folder, has it repeated. If it fails, this process ends with its exit status.
    """
    if all(path.exists() for path in files):
        oldest = min(path.stat().st_mtime_ns for path in files)
        if all(path.stat().st_mtime_ns <= oldest for path in reads if path.exists()):
            print_line(f"{title}: done before; delete {result} to repeat it")
            return None
    words = [str(word) for word in command]
    print(f"{title}:\n    {escape_control(format_command(words))}", file=sys.stderr, flush=True)
    with pass_on_signals() as add:
        return run_command(words, add)


if __name__ == "__main__":
    configs = [find_network(name).config for name in list_networks()]
    names = [name for config in configs for name in list_settings(config)]
    cli.run_command(main, __doc__, settings=names)
