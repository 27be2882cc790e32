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
reencode_videos.py if that pays, train.py, eval.py, plot_training.py. After the lists it writes
DIR/finetune.yaml, by simple rules, with the settings of the command line, and estimates the time of
the rest. The config file is yours from then on: change it and run the command again. Steps that are
done are skipped, and a training resumes where it was stopped. DIR is out/<name of VIDEOS>_<recipe>
by default. The last line of stdout is one JSON object: config, checkpoint, report, predict (a
command), and the result of eval.py. Docs: docs/own_videos.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from scripts.data.prepare.class_folders import ClassFolders, find_sources, scan_class_folders
from scripts.finetuning.config_file import (
    COPIES,
    VideoCounts,
    choose_list_names,
    find_start_recipe,
    inspect_network,
    load_start,
    name_lists,
    write_config_file,
)
from scripts.finetuning.own_commands import format_command, run_command
from scripts.finetuning.time_estimate import Times, describe_time, measure_decode
from utils import cli
from utils.files import (
    compute_sha256,
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
from utils.weights.checkpoint_file import RESUME, check_kind
from utils.weights.preparation import name_recipe, resolve_checkpoint

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
    with name_recipe(recipe or "RECIPE"):
        weights = Path(resolve_checkpoint(checkpoint)).resolve() if checkpoint else None
    if weights:
        check_kind(weights)
    source = find_start_recipe(recipe, weights)
    network = source.network
    videos = videos.resolve()
    folder = (out or get_base_folder() / "out" / f"{videos.name}_{source.name}").resolve()
    is_new = not (folder / "finetune.yaml").exists()
    folders = check_videos(videos, network=network, group=group, with_twins=is_new)
    if is_new:
        start = load_start(source, settings, weights)
        fitting = inspect_network(start)
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    if lock is None:
        raise ValueError(f"--out: {folder} is in use by another run; choose another one")
    journey = Journey(folder, network)
    origin = {"videos": str(videos), "recipe": source.name, "group": group}
    journey.check_origin({**origin, "checkpoint": str(weights) if weights else None})
    if not is_new:
        cfg = load_config(network.config, journey.config)
        for setting in settings:
            if load_config(network.config, journey.config, [setting]) != cfg:
                raise ValueError(
                    f"--{setting}: {journey.config} exists and has another value; change it there"
                )
        print_line(f"using {journey.config} as it is; delete it to have it written again")
    lists = journey.make_lists(videos, group)
    sources = f", of {lists['sources']} sources in all" if "sources" in lists else ""
    train, val, test = (lists[name] for name in ("train", "val", "test"))
    print_line(f"videos: {train} train, {val} validate, {test} test{sources}")
    if is_new:
        sizes = [(videos / v).stat().st_size for files in folders.classes.values() for v in files]
        counts = VideoCounts(lists["train"], lists["val"], sum(sizes) / len(sizes))
        names = read_names(folder / "lists" / "labels.txt")
        write_config_file(journey.config, start, videos, names, counts, fitting)
    cfg = load_config(network.config, journey.config)
    if not (cfg.run.out / RESUME).exists():
        files = [videos / name for names in folders.classes.values() for name in names]
        journey.print_time(cfg, counts=lists, files=files)
    return journey.run(cfg, lists["classes"])


def check_videos(videos: Path, network: Network, group: str, with_twins: bool) -> ClassFolders:
    """Raises ValueError if the folder is no data set, or a class has only one video.

    `with_twins`: equal ones count as one.
    """
    if not videos.is_dir():
        raise ValueError(f"VIDEOS: {videos} is not a folder")
    suffixes = IMAGE_SUFFIXES if choose_list_names(network) == "images" else VIDEO_SUFFIXES
    folders = scan_class_folders(videos, suffixes, with_twins)
    single = [name for name, files in folders.classes.items() if len(files) == 1]
    if single:
        raise ValueError(
            f"VIDEOS: classes with one video: {join_names(single, MAX_SHOWN)}; a class needs two, "
            "for training and test: add videos, or move its folder away"
        )
    if group:
        find_sources(folders, group)
    return folders


class Journey:
    """The commands of a fine-tuning, in order, and which of them are done.

    `folder` gets lists, good (checked lists), copies (of the videos), run, report, and
    finetune.json, which says what is done: a command is repeated if it, the config file, or what it
    reads has changed, or its result is gone. `videos` is a digest of the videos' names, sizes and
    times of change.
    """

    def __init__(self, folder: Path, network: Network):
        self.folder = folder
        self.network = network
        self.config = folder / "finetune.yaml"
        self.videos = ""
        self.state_file = folder / "finetune.json"
        self.state: dict[str, Any] = {"origin": None, "done": {}}
        if self.state_file.exists():
            self.state = read_state(self.state_file)

    def check_origin(self, origin: dict[str, Any]) -> None:
        """Raises ValueError if the folder is of other videos, another recipe or checkpoint."""
        before = self.state["origin"] or origin
        for name, value in origin.items():
            if before.get(name) != value:
                raise ValueError(
                    f"--out: {self.folder} was made with {name} {before.get(name)}, not {value}; "
                    "choose another --out"
                )
        self.state["origin"] = origin

    def make_lists(self, videos: Path, group: str) -> dict[str, Any]:
        command = ["scripts/data/make_lists.py", "--videos", videos, "--out", self.folder / "lists"]
        command += ["--names", choose_list_names(self.network), "--test", TEST, "--val", VAL]
        command += ["--group", group] if group else []
        self.videos = compute_names_digest(videos)
        return self.do("make the lists", command, self.folder / "lists" / "labels.txt", text="")

    def run(self, cfg: NetworkConfig, classes: int) -> Optional[int]:
        """Runs all commands after the config file; prints the result. Returns the exit status.

        Raises ValueError if the config file is of another number of classes.
        """
        if cfg.class_counts != (classes,):
            raise ValueError(
                f"VIDEOS has {classes} classes, and {self.config} is for {cfg.class_counts[0]}: "
                f"delete it and {cfg.run.out}, or choose another --out"
            )
        own = ["--config_path", self.config]
        shared = ["--network", self.network.name, *own]
        good = self.folder / "good"
        lists = [self.folder / "lists"]
        if isinstance(cfg.data, VideoData):
            copies = self.folder / COPIES
            has_copies = cfg.data.root == copies
            videos = [f"--data.root={self.state['origin']['videos']}"] if has_copies else []
            check = ["scripts/data/check_videos.py", *shared, "--out", good, *videos]
            check += name_lists(cfg, self.folder / "lists")
            self.do("check the videos", check, good / "labels.txt", reads=lists)
            check_good_lists(good, classes)
            lists = [good]
            if has_copies:
                copy = ["scripts/data/reencode_videos.py", *shared, "--out", copies, *videos]
                copy += name_lists(cfg, good)
                self.do("re-encode the videos", copy, copies / "labels.txt", reads=lists)
        run = cfg.run.out
        starts = [cfg.train.pretrained] if cfg.train.pretrained else []
        self.check_run(run, [*lists, *starts])
        command = [f"{self.network.name}/train.py", *own]
        trained = self.do("train", command, run / "best.ckpt", reads=[*lists, *starts])
        if not trained["complete"]:
            del self.state["done"]["train"]
            self.write_state()
            print_line(f"stopped after {trained['epochs']} epochs; the same command continues")
            return 1
        best = ["--checkpoint_path", run / "best.ckpt"]
        report = self.folder / "report"
        command = [f"{self.network.name}/eval.py", *own, *best, "--report", report]
        reads = [*lists, run / "best.ckpt"]
        result = self.do("evaluate the best checkpoint", command, report, reads=reads)
        command = ["scripts/analysis/plot_training.py", run]
        self.do("plot the training", command, run / "curves.png", reads=[run / "log.jsonl"])
        predict = format_command(["scripts/predict.py", *best, "VIDEO"])
        accuracy = f"{describe_accuracy('test', result)}, chance {1 / classes:.1%}"
        print_line(describe_chance("test", result, 1 / classes) or accuracy)
        print_line(f"report: {report / 'index.html'}; training curves: {run / 'curves.png'}")
        print(f"predict with\n    {predict}", file=sys.stderr)
        paths = {"config": str(self.config), "report": str(report), "predict": predict}
        print(json.dumps({**paths, **result}))
        return None

    def print_time(self, cfg: NetworkConfig, counts: dict[str, Any], files: Sequence[Path]) -> None:
        """Measures a training step and a decode; says how long all parts will take.

        `counts` are those of `make_lists`, of all `files`.
        """
        words = ["benchmarks/benchmark.py", "memory", "--part=train"]
        words += ["--network", self.network.name, "--config_path", str(self.config)]
        start = time.monotonic()
        step = run_step("measure a training step", words)["step_seconds"]
        start = time.monotonic() - start
        times = Times(decode=measure_decode(self.network, cfg, files), step=step, start=start)
        has_copies = cfg.data.root == self.folder / COPIES
        print_line(describe_time(self.network, cfg, counts, times, has_copies))

    def check_run(self, run: Path, reads: Sequence[Path]) -> None:
        """Raises ValueError if the training in `run` has read other videos, lists or weights."""
        digest = compute_digest([self.videos], reads)
        if self.state.get("trained_on", digest) != digest and (run / RESUME).exists():
            raise ValueError(
                f"{run} was trained on other videos, classes or weights than there are now: delete "
                "it to train again, or choose another --out"
            )
        self.state["trained_on"] = digest
        self.write_state()

    def do(
        self,
        title: str,
        command: Sequence[Any],
        result: Path,
        text: Optional[str] = None,
        reads: Sequence[Path] = (),
    ) -> dict[str, Any]:
        """Runs a command unless it is done; returns the JSON object in its last line of stdout.

        `result` is a file or folder that it writes; `text` the config file it reads, by default
        ours; `reads` are other files, and folders of files, that it reads besides the videos. Ends
        this process with its exit status if it fails.
        """
        words = [str(word) for word in command]
        text = self.config.read_text(encoding="utf-8") if text is None else text
        key = compute_digest([*words, text, self.videos], reads)
        before = self.state["done"].get(title, {})
        if before.get("key") == key and result.exists():
            print_line(f"{title}: done before; delete {result} to repeat it")
            return before["result"]
        done = run_step(title, words)
        self.state["done"][title] = {"key": key, "result": done}
        self.write_state()
        return done

    def write_state(self) -> None:
        with report_write_errors(self.state_file, "--out"):
            write_text(self.state_file, json.dumps(self.state, indent=1) + "\n")


def run_step(title: str, words: Sequence[str]) -> dict[str, Any]:
    """Prints a command and runs it; the JSON object in its last line of stdout."""
    print(f"{title}:\n    {escape_control(format_command(words))}", file=sys.stderr, flush=True)
    with pass_on_signals() as add:
        return run_command(words, add)


def read_state(path: Path) -> dict[str, Any]:
    """What a journey has done. Raises ValueError if the file is damaged."""
    state = read_json(path, str(path))
    done = state.get("done")
    entries = [state.get("origin") or {}, done, *(done.values() if isinstance(done, dict) else ())]
    if "origin" not in state or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} is damaged: delete it, and all steps are repeated")
    return state


def compute_digest(texts: Iterable[str], paths: Iterable[Path]) -> str:
    """A checksum of texts, and of names and contents of files and of those in folders.

    Of a link in a folder, it takes the name only: `make_lists.py` links images.
    """
    result = hashlib.sha256("\n".join(texts).encode(errors="surrogateescape"))
    for path in paths:
        files = sorted(f for f in path.rglob("*") if f.name[0] != ".") if path.is_dir() else [path]
        for file in files:
            content = compute_sha256(file) if file.is_file() and not file.is_symlink() else ""
            result.update(f"\n{file}\n{content}".encode(errors="surrogateescape"))
    return result.hexdigest()


def compute_names_digest(videos: Path) -> str:
    """A checksum of the names, sizes and times of change of all files below a folder."""
    files = [(file, file.stat()) for file in sorted(videos.rglob("*")) if file.is_file()]
    return compute_digest([f"{file} {s.st_size} {s.st_mtime_ns}" for file, s in files], [])


def check_good_lists(folder: Path, classes: int) -> None:
    """Raises ValueError if a class has no readable video for training or for the test."""
    names = read_names(folder / "labels.txt")
    names += [f"class {k}" for k in range(len(names), classes)]
    for name in ("train", "test"):
        (path,) = (file for file in folder.glob(f"{name}.*") if file.suffix in (".txt", ".csv"))
        text = read_text(path, str(path), "surrogateescape")
        labels = {int(line.rpartition(" ")[2]) for line in text.split("\n") if line}
        missing = [names[k] for k in range(classes) if k not in labels]
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
