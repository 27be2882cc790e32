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
or go, the lists stay as they are, and a line says what to delete. DIR is out/<name of
VIDEOS>_<recipe> by default. The last line of stdout is one JSON object: config, checkpoint, report,
predict (a command), and the result of eval.py. Docs: docs/own_videos.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from scripts.data.prepare.class_folders import find_sources, scan_class_folders
from scripts.finetuning.config_file import (
    COPIES,
    VideoCounts,
    choose_list_names,
    find_start_recipe,
    inspect_network,
    list_files,
    load_start,
    name_lists,
    write_config_file,
)
from scripts.finetuning.listed_videos import describe_changes, describe_lists, read_lists
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
from utils.settings import NetworkConfig, VideoData
from utils.train.meter import describe_accuracy, describe_chance
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from utils.weights.checkpoint_file import check_kind
from utils.weights.preparation import name_recipe, resolve_checkpoint

TEST = 0.2  # the fractions of a class in the lists of the test and the validation
VAL = 0.1
MAX_SHOWN = 5  # names in a message


class Step(NamedTuple):
    """A command, the files that it writes last, and files that it reads.

    Whoever deletes `result`, a file or a folder, has the command repeated.
    """

    title: str
    command: Sequence[Any]
    result: Path
    files: Sequence[Path]
    reads: Sequence[Path] = ()

    @property
    def is_done(self) -> bool:
        """Whether all files exist, and nothing that the command reads is newer."""
        if not all(path.exists() for path in self.files):
            return False
        oldest = min(path.stat().st_mtime_ns for path in self.files)
        return all(path.stat().st_mtime_ns <= oldest for path in self.reads if path.exists())


def main(
    settings: list[str],
    videos: Path,
    *,
    recipe: str = "",
    checkpoint: str = "",
    out: Optional[Path] = None,
    group: str = "",
) -> Optional[int]:
    with name_recipe(recipe or "RECIPE"):
        weights = Path(resolve_checkpoint(checkpoint)).resolve() if checkpoint else None
    if weights:
        check_kind(weights)
    source = find_start_recipe(recipe, weights)
    network = source.network
    names = choose_list_names(network)
    suffixes = IMAGE_SUFFIXES if names == "images" else VIDEO_SUFFIXES
    videos = videos.resolve()
    folder = (out or get_base_folder() / "out" / f"{videos.name}_{source.name}").resolve()
    config = folder / "finetune.yaml"
    labels = folder / "lists" / "labels.txt"
    if not videos.is_dir():
        raise ValueError(f"VIDEOS: {videos} is not a folder")
    if folder == videos:
        raise ValueError("--out: it is the folder of the videos; choose another one")
    if not labels.exists():
        check_videos(videos, suffixes, group)
    start = None
    if config.exists():
        pretrained = [f"train.pretrained={weights}"] if weights else []
        check_config(config, source.name, network, [*settings, *pretrained])
    else:
        start = load_start(source, settings, weights)
        fitting = inspect_network(start)
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    if lock is None:
        raise ValueError(f"--out: {folder} is in use by another run; choose another one")
    command = ["scripts/data/make_lists.py", "--videos", videos, "--overwrite"]
    command += ["--out", labels.parent]
    command += ["--names", names, "--test", TEST, "--val", VAL]
    command += ["--group", group] if group else []
    run_unless_done(Step("make the lists", command, labels.parent, files=[labels]))
    lists = read_lists(labels.parent, videos)
    changes = describe_changes(videos, suffixes, lists, folder)
    for line in [*changes, *describe_lists(lists, group)]:
        print_line(line)
    classes = read_names(labels)
    if start:
        files = [videos / name for names in lists.values() for name in names]
        sizes = [file.stat().st_size for file in files if file.exists()]
        counts = VideoCounts(len(lists["train"]), len(lists["val"]), sum(sizes) / len(sizes))
        write_config_file(config, start, videos, classes, counts, fitting)
    cfg = load_config(network.config, config)
    if cfg.class_counts != (len(classes),):
        raise ValueError(
            f"{labels} has {len(classes)} classes, and {config} is for {cfg.class_counts[0]}: "
            f"delete it and {cfg.run.out}, or choose another --out"
        )
    files = [labels]
    if isinstance(cfg.data, VideoData):
        files = prepare_videos(folder, network, cfg, videos, classes)
    return train_and_evaluate(folder, network, cfg, files)


def check_videos(videos: Path, suffixes: Sequence[str], group: str) -> None:
    """Raises ValueError if the folder is no data set, or a class has only one video."""
    folders = scan_class_folders(videos, suffixes)
    single = [name for name, files in folders.classes.items() if len(files) == 1]
    if single:
        raise ValueError(
            f"VIDEOS: classes with one video: {join_names(single, MAX_SHOWN)}; a class needs two, "
            "for training and test: add videos, or move its folder away"
        )
    if group:
        find_sources([name for files in folders.classes.values() for name in files], group)


def check_config(config: Path, recipe: str, network: Network, settings: Sequence[str]) -> None:
    """Raises ValueError if a config file is of another recipe, or has another setting."""
    made_of = re.match(r"# (.*) for the videos of ", read_text(config, str(config)))
    if made_of and made_of[1] != recipe:
        raise ValueError(
            f"--recipe: {config} is of {made_of[1]}, not of {recipe}; choose another --out"
        )
    cfg = load_config(network.config, config)
    for setting in settings:
        if load_config(network.config, config, [setting]) != cfg:
            raise ValueError(f"--{setting}: {config} exists and has another value; change it there")
    print_line(f"using {config} as it is; delete it to have it written again")


def prepare_videos(
    folder: Path, network: Network, cfg: NetworkConfig, videos: Path, classes: Sequence[str]
) -> list[Path]:
    """Makes lists of the readable videos, and copies of these if the config file names them.

    Returns the lists.
    """
    shared = ["--network", network.name, "--config_path", folder / "finetune.yaml"]
    has_copies = cfg.data.root == folder / COPIES
    shared += [f"--data.root={videos}"] if has_copies else []
    lists, good, copies = (folder / name for name in ("lists", "good", COPIES))
    command = ["scripts/data/check_videos.py", *shared, "--out", good, *name_lists(cfg, lists)]
    files = list_files(cfg, good)
    step = Step("check the videos", command, good, files, reads=[lists / "labels.txt"])
    checked = [videos / name for names in read_lists(good, videos).values() for name in names]
    if all(map(Path.exists, checked)) or (cfg.run.out / "resume.ckpt").exists():
        run_unless_done(step)
    else:  # a listed video went before the training
        run_command_of(step.title, step.command)
    check_good_lists(good, classes)
    if has_copies:
        command = ["scripts/data/reencode_videos.py", *shared, "--out", copies]
        command += name_lists(cfg, good)
        copied = list_files(cfg, copies)
        run_unless_done(Step("re-encode the videos", command, copies, copied, reads=files))
        return copied
    return files


def train_and_evaluate(
    folder: Path, network: Network, cfg: NetworkConfig, lists: Sequence[Path]
) -> Optional[int]:
    """Runs the commands after those of the data; prints the result. Returns the exit status."""
    config = folder / "finetune.yaml"
    own = ["--config_path", config]
    run = cfg.run.out
    reads = [config, *lists]
    clips = folder / "clips"
    command = ["scripts/data/show_clips.py", "--network", network.name, *own, "--out", clips]
    run_unless_done(Step("show the clips", command, clips, [clips / "clips.png"], reads))
    print_line(f"clips as the network gets them: {clips / 'clips.png'}; learning rate: lr.png")
    checkpoint = run / "best.ckpt"
    command = [f"{network.name}/train.py", *own]
    report = folder / "report"
    kept = folder / "result.json"  # of eval.py, which follows a complete training only
    trained = run_unless_done(Step("train", command, run, files=[checkpoint, kept], reads=reads))
    if trained and not trained["complete"]:
        print_line(f"stopped after {trained['epochs']} epochs; the same command continues")
        return 1
    best = ["--checkpoint_path", checkpoint]
    command = [f"{network.name}/eval.py", *own, *best, "--report", report]
    reads.append(checkpoint)
    files = [kept, report / "index.html"]
    result = run_unless_done(Step("evaluate", command, report, files, reads))
    if result is None:
        result = read_json(kept, str(kept))
    else:
        with report_write_errors(kept, "--out"):
            write_text(kept, json.dumps(result) + "\n")
    curves = run / "curves.png"
    command = ["scripts/analysis/plot_training.py", run]
    step = Step("plot the training", command, curves, files=[curves], reads=[run / "log.jsonl"])
    if not step.is_done:
        curves.unlink(missing_ok=True)
    run_unless_done(step)
    predict = format_command(["scripts/predict.py", *best, "VIDEO"])
    chance = 1 / cfg.class_counts[0]
    accuracy = f"{describe_accuracy('test', result)}, chance {chance:.1%}"
    print_line(describe_chance("test", result, chance) or accuracy)
    print_line(f"report: {report / 'index.html'}; training curves: {curves}")
    print(f"predict with\n    {predict}", file=sys.stderr)
    paths = {"config": str(config), "report": str(report), "predict": predict}
    print(json.dumps({**paths, **result}))
    return None


def run_unless_done(step: Step) -> Optional[dict[str, Any]]:
    """The JSON object that the command prints; None if its results are there."""
    if step.is_done:
        print_line(f"{step.title}: done before; delete {step.result} to repeat it")
        return None
    return run_command_of(step.title, step.command)


def run_command_of(title: str, command: Sequence[Any]) -> dict[str, Any]:
    """Prints a command and runs it; the JSON object in its last line of stdout.

    Ends this process with its exit status if it fails.
    """
    words = [str(word) for word in command]
    print(f"{title}:\n    {escape_control(format_command(words))}", file=sys.stderr, flush=True)
    with pass_on_signals() as add:
        return run_command(words, add)


def check_good_lists(folder: Path, names: Sequence[str]) -> None:
    """Raises ValueError if a class has no readable video for training or for the test."""
    for name in ("train", "test"):
        (path,) = (file for file in folder.glob(f"{name}.*") if file.suffix in (".txt", ".csv"))
        text = read_text(path, str(path), "surrogateescape")
        labels = {int(line.rpartition(" ")[2]) for line in text.split("\n") if line}
        missing = [names[k] for k in range(len(names)) if k not in labels]
        if missing:
            raise ValueError(
                f"{path} has no readable video of {join_names(missing, MAX_SHOWN)}: "
                f"{path}.bad.tsv has the reasons"
            )


def read_names(path: Path) -> list[str]:
    """The lines of a file that make_lists.py wrote: names of folders, which may be any bytes."""
    return read_text(path, str(path), "surrogateescape").removesuffix("\n").split("\n")


if __name__ == "__main__":
    configs = [find_network(name).config for name in list_networks()]
    names = [name for config in configs for name in list_settings(config)]
    cli.run_command(main, __doc__, settings=names)
