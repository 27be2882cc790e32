"""Measures the data paths of all networks on videos: the tables of docs/measured/data_path.md.

    python benchmarks/measure_data.py --videos DIR [--out out/data_path] [--seconds 10] [--clips 32]

From the videos of DIR, repeated, it makes annotation files, folders of frames, images and small
copies in --out. Then `benchmarks/benchmark.py data` runs once for each network and path, on the
CPU, with two workers. Prints the tables. The last line of stdout is one JSON object: rows,
reencoded, extracted.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from collections.abc import Iterator
from itertools import cycle, islice

import numpy as np

from benchmarks.results import format_table, run_script
from utils import cli
from utils.files import ROOT, report_write_errors, write_text
from utils.video.media_files import VIDEO_SUFFIXES, has_suffix

ROWS_OF_SET = "data.sets=[{name: clips, num_classes: 400}]"
YAMLS = {
    "tsm": ("tsm/configs/tsm_r50_k400_8f.yaml", "data.test_list=train.txt"),
    "x3d": (
        "x3d/configs/x3d_s_k400_13x6.yaml",
        "data.train_list=train.txt",
        "data.test_list=train.txt",
    ),
    "mvit_multi": ("mvit_multi/configs/mvit_multi_plain_b_k400_32x3.yaml", ROWS_OF_SET),
    "resnet50": ("resnet50/configs/resnet50_r50_imagenet_torchvision.yaml",),
}
NAMES = {
    "tsm": "TSM 8 x 224",
    "x3d": "X3D-S 13 x 6, 160",
    "mvit_multi": "MViTv2 32 x 3, 224, 2 copies",
    "resnet50": "ResNet-50, 224",
}
PATHS = {
    "original, decord": ["data.reader=decord"],
    "original, PyAV": ["data.reader=pyav"],
    "re-encoded": ["data.root={out}/small"],
    "folders of JPEG frames": ["data.root={out}/frames", "data.source=frames"],
}
WITHOUT_RAND_AUGMENT = ["data.rand_augment=", "data.repeated_aug=1"]  # of MViT
# Clips a second that a device trains: TSM's on a V100 (49.9 hours on 6 for 100 epochs of 240,000
# clips, arXiv:1910.00932); for the other networks the same multiply-adds a second, 720e9.
DEMAND = {"tsm": 22, "x3d": 367, "mvit_multi": 1.6, "resnet50": 176}
DEVICES = (8, 64, 1536)


def main(
    *,
    videos: Path,
    out: Path = Path("out/data_path"),
    seconds: cli.PositiveInt = 10,
    clips: cli.PositiveInt = 32,
) -> None:
    if not videos.is_dir():
        raise ValueError(f"--videos: {videos} is not a folder")
    files = sorted(p for p in videos.resolve().iterdir() if has_suffix(p.name, VIDEO_SUFFIXES))
    if not files:
        raise ValueError(f"--videos: {videos} has no video")
    folder = out.resolve()
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_lists(files, folder, clips)
    reencoded = run_for_lists("reencode_videos", folder, folder / "small")
    extracted = run_for_lists("extract_frames", folder, folder / "frames")
    link_images(files, folder)
    options = ["--data.workers=2", "--seconds", str(seconds)]
    rows = []
    for network, path, settings in list_cases(folder):
        inputs = list_arguments(network, settings, folder)
        result = run_script("benchmarks/benchmark.py", "data", *inputs, *options)
        rows.append({"network": network, "path": path, **result})
    for line in [*format_costs(rows), "", *format_needs(rows)]:
        print(line)
    print(json.dumps({"rows": rows, "reencoded": reencoded, "extracted": extracted}))


def write_lists(videos: list[Path], folder: Path, clips: int) -> None:
    """Writes annotation files; the videos repeat until `clips` clips."""
    lines = []
    for k, path in enumerate(islice(cycle(videos), clips)):
        name = name_clip(k, path)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path)
        lines.append(f"{name} {k % 8}\n")
    for name in ("train.txt", "train.csv", "val.csv", "test.csv"):
        write_text(folder / name, "".join(lines))


def name_clip(number: int, video: Path) -> str:
    return f"clip_{number:03d}{video.suffix}"


def link_images(videos: list[Path], folder: Path) -> None:
    """Makes a class folder of images of the frames of each video."""
    for split in ("train", "val"):
        for k, path in enumerate(videos):
            target = folder / "images" / split / f"class_{k}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(folder / "frames" / name_clip(k, path))


def run_for_lists(script: str, folder: Path, out: Path) -> dict:
    """Runs a script for TSM, and for MViT, whose lists X3D uses too; returns TSM's result."""
    results = [
        run_script(
            f"scripts/data/{script}.py", *list_arguments(network, [], folder), f"--out={out}"
        )
        for network in ("tsm", "mvit_multi")
    ]
    return results[0]


def list_cases(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(network, path, settings) of each measurement."""
    for network in ("tsm", "x3d", "mvit_multi"):
        for path, settings in PATHS.items():
            yield network, path, [setting.format(out=folder) for setting in settings]
    for path in ("original, decord", "original, PyAV"):
        yield "mvit_multi", f"{path}, without RandAugment", [*PATHS[path], *WITHOUT_RAND_AUGMENT]
    yield "resnet50", "JPEG files", [f"data.root={folder / 'images'}"]


def list_arguments(network: str, settings: list[str], folder: Path) -> list[str]:
    yaml, *lists = YAMLS[network]
    settings = [f"data.root={folder}", *lists, *settings, "run.device=CPU", "data.batch=8"]
    return ["--config_path", str(ROOT / yaml), *(f"--{setting}" for setting in settings)]


def format_costs(rows: list[dict]) -> Iterator[str]:
    """The costs of a clip; clips per CPU-second also relative to those with decord."""
    header = ["network", "path", "clips per CPU-second", "by decord: 1", "decoding ms", "KB read"]
    cells = []
    for row in rows:
        decord = [
            r["clips_per_cpu_second"]
            for r in rows
            if r["network"] == row["network"]
            and "decord" in r["path"]
            and ("without" in r["path"]) == ("without" in row["path"])
        ]
        cells.append(
            [
                NAMES[row["network"]],
                row["path"],
                f"{row['clips_per_cpu_second']:.1f}",
                f"{row['clips_per_cpu_second'] / decord[0]:.1f}" if decord else "–",
                f"{row['floor_milliseconds']:.1f}",
                f"{row['bytes_read'] / 1e3:.0f}" if row["bytes_read"] else "–",
            ]
        )
    return format_table(header, cells)


def format_needs(rows: list[dict]) -> Iterator[str]:
    """Cores, and megabytes a second from disks or over the network, by the number of devices."""
    header = ["network, clips a second a device", "path"]
    header += [f"{count} devices: cores, MB/s" for count in DEVICES]
    cells = []
    for row in rows:
        if any(word in row["path"] for word in ("without", "decord")):
            continue
        demand = DEMAND[row["network"]]
        read = row["bytes_read"]
        line = [f"{NAMES[row['network']]}, {demand}", row["path"]]
        for rate in (count * demand for count in DEVICES):
            megabytes = round_up(rate * read / 1e6) if read else "–"
            line.append(f"{round_up(rate / row['clips_per_cpu_second'])}, {megabytes}")
        cells.append(line)
    return format_table(header, cells)


def round_up(value: float) -> str:
    """Two digits, rounded up."""
    unit = 10 ** max(0, int(np.log10(max(value, 1))) - 1)
    return f"{int(np.ceil(value / unit)) * unit:,}"


if __name__ == "__main__":
    cli.run_command(main, __doc__)
