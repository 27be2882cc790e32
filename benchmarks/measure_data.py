"""Measures the data paths of all networks on videos of yours: the tables of docs/data_path.md.

    python benchmarks/measure_data.py --videos DIR [--out out/data_path] [--seconds 10] [--clips 32]

The videos of DIR, repeated, become lists, frame folders, images and packs in --out; then
`benchmarks/benchmark.py data` runs once for each network and path, on the CPU, with two workers.
Prints the tables. The last line of stdout is one JSON object: rows, packs.
"""

import json
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.results import run
from utils import cli
from utils.config import ROOT
from utils.data.packed.encoder import JPEG, to_jpeg
from utils.files import report_write_errors, write_text
from utils.video.decoders import open_video
from utils.video.integrity import SUFFIXES

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
    "original, OpenCV": ["data.reader=opencv"],
    "original, PyAV": ["data.reader=pyav"],
    "packed, video": ["data.packed={out}/video"],
    "packed, jpeg": ["data.packed={out}/jpeg"],
}
PLAIN = ["data.rand_augment=", "data.repeated_aug=1"]  # MViT without RandAugment
# Clips a second that a device takes: TSM's of a V100 (49.9 hours on 6 for 100 epochs of 240,000
# clips, arXiv:1910.00932), the others by their multiply-adds: 720 thousand million a second.
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
        raise ValueError(f"--videos: {videos} is no folder")
    result = sorted(p for p in videos.resolve().iterdir() if p.suffix.lower() in SUFFIXES)
    if not result:
        raise ValueError(f"--videos: {videos} has no video")
    folder = out.resolve()
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        prepare(result, folder, clips)
    packs = {codec: packed(folder, codec) for codec in ("video", "jpeg")}
    rows = [
        {"network": network, "path": path, **benchmark(network, settings, folder, seconds)}
        for network, path, settings in cases(folder)
    ]
    for line in [*table(rows), "", *advice(rows)]:
        print(line)
    print(json.dumps({"rows": rows, "packs": packs}))


def prepare(videos: list[Path], folder: Path, clips: int) -> None:
    """Lists, frame folders and images of the videos, each repeated so that there are `clips`."""
    lines, frames = [], []
    for k, path in enumerate(islice(cycle(videos), clips)):
        name = f"clip_{k:03d}{path.suffix}"
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path)
        lines.append(f"{name} {k % 8}\n")
        count = write_frames(path, folder / "frames" / path.stem)
        frames.append(f"frames/{path.stem} {count} {k % 8}\n")
    for name in ("train.txt", "train.csv", "val.csv", "test.csv"):
        write_text(folder / name, "".join(lines))
    write_text(folder / "frames.txt", "".join(frames))
    for split in ("train", "val"):
        for k, path in enumerate(videos):
            target = folder / "images" / split / f"class_{k}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(folder / "frames" / path.stem)


def write_frames(video: Path, folder: Path) -> int:
    """All frames as JPEG files, once; their number."""
    if folder.is_dir():
        return len(list(folder.iterdir()))
    folder.mkdir(parents=True)
    with open_video(video) as source:
        for number, frame in enumerate(source.in_order(), 1):
            data = to_jpeg(frame[..., ::-1], JPEG)
            (folder / f"img_{number:05d}.jpg").write_bytes(data)
        return len(source)


def packed(folder: Path, codec: str) -> dict:
    """Packs the lists of TSM and of MViT, which X3D's are too."""
    options = [f"--out={folder / codec}", f"--codec={codec}"]
    result = [
        run("scripts/data/pack_videos.py", *arguments(network, [], folder), *options)
        for network in ("tsm", "mvit_multi")
    ]
    return result[0]


def cases(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(network, path, settings) of everything that is measured."""
    for network in ("tsm", "x3d", "mvit_multi"):
        for path, settings in PATHS.items():
            yield network, path, [setting.format(out=folder) for setting in settings]
    for path in ("original, decord", "original, PyAV"):
        yield "mvit_multi", f"{path}, without RandAugment", [*PATHS[path], *PLAIN]
    frames = ["data.source=frames", "data.train_list=frames.txt", "data.test_list=frames.txt"]
    yield "tsm", "folders of JPEG frames", frames
    yield "resnet50", "JPEG files", [f"data.root={folder / 'images'}"]


def arguments(network: str, settings: list[str], folder: Path) -> list[str]:
    yaml, *ours = YAMLS[network]
    given = [f"data.root={folder}", *ours, *settings, "run.device=CPU", "data.batch=8"]
    return ["--config_path", str(ROOT / yaml), *(f"--{setting}" for setting in given)]


def benchmark(network: str, settings: list[str], folder: Path, seconds: int) -> dict:
    fixed = ["--data.workers=2", "--seconds", str(seconds)]
    return run("benchmarks/benchmark.py", "data", *arguments(network, settings, folder), *fixed)


def table(rows: list[dict]) -> Iterator[str]:
    """Costs of a clip, and how many times as many clips a processor makes as by decord."""
    yield (
        "| network | path | clips per CPU-second | by decord: 1 | ms a clip | floor ms | ratio | "
        "open, seek | decode | convert | geometry | augment | copy, other | KB read |"
    )
    yield "|" + " --- |" * 14
    for row in rows:
        parts = row["milliseconds"]
        same = [r for r in rows if r["network"] == row["network"] and "decord" in r["path"]]
        same = [r for r in same if ("without" in r["path"]) == ("without" in row["path"])]
        times = same and row["clips_per_cpu_second"] / same[0]["clips_per_cpu_second"]
        shown = [
            NAMES[row["network"]],
            row["path"],
            f"{row['clips_per_cpu_second']:.1f}",
            f"{times:.1f}" if times else "–",
            f"{row['clip_milliseconds']:.1f}",
            f"{row['floor_milliseconds']:.1f}",
            f"{row['clip_over_floor']:.2f}",
            *(part_of(parts, *names) for names in COLUMNS),
            f"{row['bytes_read'] / 1e3:.0f}" if row["bytes_read"] else "–",
        ]
        yield f"| {' | '.join(shown)} |"


COLUMNS = (
    ("open", "seek"),
    ("decode", "operators"),
    ("convert",),
    ("geometry",),
    ("augment",),
    ("copy", "other"),
)


def part_of(parts: dict[str, float], *names: str) -> str:
    result = [parts[name] for name in names if name in parts]
    return f"{sum(result):.1f}" if result else "–"


def advice(rows: list[dict]) -> Iterator[str]:
    """Cores, and megabytes a second from disks or over the network, for so many devices."""
    yield (
        "| network, clips a second a device | path | "
        + " | ".join(f"{count} devices: cores, MB/s" for count in DEVICES)
        + " |"
    )
    yield "|" + " --- |" * (2 + len(DEVICES))
    for row in rows:
        if "without" in row["path"] or "decord" in row["path"] or "OpenCV" in row["path"]:
            continue
        rate, cost = DEMAND[row["network"]], 1 / row["clips_per_cpu_second"]
        needs = [
            f"{rounded(count * rate * cost)}, "
            + (rounded(count * rate * row["bytes_read"] / 1e6) if row["bytes_read"] else "–")
            for count in DEVICES
        ]
        yield f"| {NAMES[row['network']]}, {rate} | {row['path']} | {' | '.join(needs)} |"


def rounded(value: float) -> str:
    """Two digits, never less than is needed."""
    digits = max(0, int(np.floor(np.log10(max(value, 1)))) - 1)
    return f"{int(np.ceil(value / 10**digits)) * 10**digits:,}"


if __name__ == "__main__":
    cli.run_command(main, __doc__)
