"""Packs the videos of a network's lists into MindRecord shards, for faster reading.

    python scripts/data/pack_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--short_side 256] [--gop 12] [--quality 18] [--shards N] [--bad DIR] [--workers N]
        [--executor processes|dask:ADDRESS] [--part I/N] [--network x3d]
    python scripts/data/pack_videos.py --config_path Y --out DIR --verify [--section.key=value ...]

Then write `packed: DIR` under `data` in the config file. A pack is H.264 with a key frame every
`gop` pictures. Videos with a short side above `short_side` are downscaled; 0 keeps all sizes.
`quality` is the constant rate factor of H.264, 0 to 51, lower is better. Lines are assigned to
shards at random; the number of devices should divide the number of shards. Videos that cannot be
read are left out and listed in `bad.tsv`. With `--bad DIR`, the command does not try the videos
that `check_videos.py --out DIR` found bad. Images are not packed: folders of frames are read faster
(`scripts/data/extract_frames.py`).

An interrupted packing, even a killed one, continues when the command is run again, shard by shard.
`--executor dask:ADDRESS` encodes on a Dask cluster. `--part I/N` writes part I of N of the shards,
from 1 to N, and no index. When all parts have ended, run the command without `--part`: it writes
the index, and the shards that a part has left. Docs: docs/many_machines.md.

`--verify` compares every checksum; it decodes some videos and compares them with the originals. The
last line of stdout is one JSON object: of packing videos, bad, shards, bytes, original_bytes, psnr
(dB), packed (in this run), seconds; of `--verify` videos, compared, psnr.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import time
from typing import Optional

import numpy as np

from scripts.data.integrity import read_table
from scripts.data.packing.encoder import build_encode_options
from scripts.executors.process_pool import PROCESSES, Executor, PartOption, choose_workers
from utils import cli
from utils.config import NetworkConfig
from utils.data.annotation_file import choose_output_names
from utils.data.packed.reader import pack_folder
from utils.networks import Network


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    verify: bool = False,
    shards: cli.NonNegativeInt = 0,
    bad: Optional[Path] = None,
    workers: Optional[cli.PositiveInt] = None,
    executor: Executor = PROCESSES,
    part: Optional[PartOption] = None,
    **encoding,
) -> None:
    # Imported here: worker processes import this file, and must not load MindSpore.
    from scripts.data.packing.pack import pack_lists, plan_packing
    from scripts.data.packing.verify import verify_list

    workers = choose_workers(workers, executor)
    start = time.monotonic()
    files = network.list_annotation_files(cfg)
    if not files:
        advice = "scripts/data/pack_images.py packs images"
        raise ValueError(f"{network.name} has no lists of videos; {advice}")
    if verify and (part or executor != PROCESSES):
        raise ValueError("--verify reads in this process: --part and --executor do not go with it")
    if verify:
        results = [verify_list(file, out, cfg.data.reader) for file in files]
    else:
        options = build_encode_options(**encoding)
        if cfg.data.is_flow:
            raise ValueError("data.modality flow: packs hold videos; flow is read from its folders")
        plans = {}  # by folder: the train and the test list may be the same
        for file, name in zip(files, choose_output_names(files)):
            folder = pack_folder(out, file)
            known_bad = read_bad_videos(bad, name)
            plans[folder] = plan_packing(
                file, folder=folder, options=options, shards=shards, known_bad=known_bad
            )
        results = pack_lists(
            list(plans.values()),
            reader=cfg.data.reader,
            workers=workers,
            executor=executor,
            part=part,
        )
    values = np.concatenate([counts.pop("psnr", []) for counts in results])
    values = values[np.isfinite(values)]  # of equal frames it is infinite
    result = {key: sum(counts[key] for counts in results) for key in results[0]}
    if len(values):
        psnr = {"median": float(np.median(values)), "lowest": float(values.min())}
        result["psnr"] = {key: round(value, 1) for key, value in psnr.items()}
    if part and not verify:
        result["part"] = str(part)
    print(json.dumps({"out": str(out), **result, "seconds": round(time.monotonic() - start, 1)}))


def read_bad_videos(folder: Optional[Path], name: Path) -> dict:
    """The findings of `scripts/data/check_videos.py` in its --out folder, by path of the video."""
    if folder is None:
        return {}
    path = folder / f"{name}.bad.tsv"
    if not path.is_file():
        raise ValueError(
            f"--bad: {path} is not there; name the --out of scripts/data/check_videos.py"
        )
    return read_table(path)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, build_encode_options)
