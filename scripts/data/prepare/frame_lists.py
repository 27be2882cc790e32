"""Folders of frames, or of optical flow, of all listed videos, and the lists of these folders."""

import json
from pathlib import Path
from typing import Any, Optional

from scripts.data.prepare.copies import Copying, copy_lists, find_lists
from scripts.data.prepare.frames import SUFFIXES, FrameJob, extract_frames
from scripts.data.prepare.integrity import VideoJob
from scripts.executors.process_pool import PROCESSES, choose_workers
from utils import cli
from utils.networks import Network
from utils.settings import NetworkConfig


def extract_lists(
    network: Network,
    cfg: NetworkConfig,
    quality: int,
    flow_tmpl: str = "",
    *,
    out: Path,
    fps: cli.PositiveFloat = 0.0,
    short_side: cli.NonNegativeInt = 256,
    workers: Optional[cli.PositiveInt] = None,
) -> None:
    """Writes the folders and lists below `out`, and prints the JSON object of the command.

    The arguments are those of `FrameJob`. With `flow_tmpl`, the names of its images, it writes the
    optical flow. Raises ValueError if there is nothing to extract.
    """
    files = find_lists(network, cfg)
    data: Any = cfg.data  # of videos
    image_tmpl = flow_tmpl or data.image_tmpl
    if not image_tmpl.endswith(SUFFIXES):
        raise ValueError(f"data.image_tmpl: {image_tmpl} must end in {', '.join(SUFFIXES)}")

    def build_job(video: VideoJob, copy: Path) -> FrameJob:
        target = str(out / copy)
        return FrameJob(video, target, image_tmpl, fps, short_side, quality, flow=bool(flow_tmpl))

    workers = choose_workers(workers, PROCESSES)
    copying = Copying(out, build_job, extract_frames, "extracting frames", workers)
    result, findings = copy_lists(cfg, files, copying)
    result["frames"] = sum(finding.frames for finding in findings.values())
    print(json.dumps(result))
