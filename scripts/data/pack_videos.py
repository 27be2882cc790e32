"""Packs the videos of a network's lists into MindRecord shards, which are read many times as fast.

    python scripts/data/pack_videos.py --config_path Y --out DIR [--section.key=value ...]
        [--codec video|jpeg] [--short_side 256] [--gop 12] [--quality Q] [--shards N]
        [--bad DIR] [--workers N] [--network x3d]
    python scripts/data/pack_videos.py --config_path Y --out DIR --verify [--section.key=value ...]

Then write `packed: DIR` under `data` in the yaml. `video`: H.264 with a key frame every `gop`
pictures; `jpeg`: a file a frame, read faster still, at three to six times the bytes. Videos with a
short side above `short_side` become smaller; 0 keeps all sizes. `quality`: JPEG's, 1 to 100 (90),
or H.264's constant rate factor, 0 to 51, lower is better (18). Lines are dealt to shards by chance;
the number of shards should divide by that of devices. What cannot be read is left out and told in
`bad.tsv`; what `check_videos.py --out DIR` found bad is not even tried with `--bad DIR`.

An interrupted packing, even a killed one, goes on where it was, shard by shard. `--verify` checks
every check sum, and decodes some videos and compares them with the originals. The last line of
stdout is one JSON object: of packing videos, bad, shards, bytes, original_bytes, psnr (dB), packed
(in this run), seconds; of `--verify` videos, compared, psnr.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np

from utils import cli
from utils.data.annotation_file import AnnotationFile, choose_output_names
from utils.data.packed.encoder import Form, form_of
from utils.data.packed.reader import pack_folder
from utils.networks import Network
from utils.video.integrity import Finding, read_table


def main(
    network: Network,
    cfg,
    *,
    out: Path,
    verify: bool = False,
    shards: cli.NonNegativeInt = 0,
    bad: Optional[Path] = None,
    workers: Optional[cli.PositiveInt] = None,
    **form,
) -> None:
    from utils.data.packed.pack import (
        pack_lists,  # not above: workers import this file, not MindSpore
    )
    from utils.data.packed.verify import verify_list

    began, files = time.monotonic(), network.dataset.list_annotation_files(cfg)
    if not files:
        advice = "scripts/data/pack_images.py packs images"
        raise ValueError(f"{network.name} has no lists of videos; {advice}")
    if verify:
        results = [verify_list(file, out, cfg.data.reader) for file in files]
    else:
        flow = getattr(cfg.data, "modality", "rgb") == "flow"
        plans = planned(files, out, form_of(flow, **form), shards, bad)
        results = pack_lists(plans, cfg.data.reader, workers or len(os.sched_getaffinity(0)))
    values = np.concatenate([each.pop("psnr") for each in results])
    values = values[np.isfinite(values)]  # frames that were taken as they are, are infinitely near
    result = {key: sum(each[key] for each in results) for key in results[0]}
    if len(values):
        result["psnr"] = {"median": float(np.median(values)), "lowest": float(values.min())}
        result["psnr"] = {key: round(value, 1) for key, value in result["psnr"].items()}
    print(json.dumps({"out": str(out), **result, "seconds": round(time.monotonic() - began, 1)}))


def planned(
    files: list[AnnotationFile], out: Path, form: Form, shards: int, bad: Optional[Path]
) -> list:
    """A plan for each list; the train and the test list may be one."""
    from utils.data.packed.pack import plan_of

    known = [
        read_bad(bad / f"{name}.bad.tsv") if bad else {} for name in choose_output_names(files)
    ]
    plans = {
        pack_folder(out, file): plan_of(file, pack_folder(out, file), form, shards, known_bad)
        for file, known_bad in zip(files, known)
    }
    return list(plans.values())


def read_bad(path: Path) -> dict[str, Finding]:
    """What `scripts/data/check_videos.py` found."""
    if not path.is_file():
        raise ValueError(
            f"--bad: {path} is not there; name the --out of scripts/data/check_videos.py"
        )
    return read_table(path)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__, form_of)
