"""Verifies a pack: the checksum of every video, and the pixels of some of them."""

import os
from pathlib import Path
from typing import Optional

import numpy as np

from scripts.data.integrity import make_job
from scripts.data.packing.encoder import EncodeOptions, compute_psnr, downscale, probe_frames
from utils.data.annotation_file import AnnotationFile, Record
from utils.data.packed.reader import PackedVideo, is_intact, pack_folder, read_index, read_packed
from utils.progress import track

COMPARED_VIDEOS = 16  # of a list
LOWEST_PSNR = 20.0  # dB; below it, the copy shows another picture


def verify_list(file: AnnotationFile, packed: Path, reader: str) -> dict:
    """Counts and PSNR of a packed list, whose originals may be missing; ValueError for damage."""
    records, _ = read_packed(file, packed, min_frames=1)
    progress = track(records, file.name)
    damaged = {record.location.shard for record in progress if not is_intact(record.location)}
    if damaged:
        raise ValueError(
            f"{', '.join(sorted(damaged))}: check sums differ; remove "
            f"{'it' if len(damaged) == 1 else 'them'} and run scripts/data/pack_videos.py again"
        )
    index = read_index(pack_folder(packed, file))
    options = EncodeOptions(*(index[name] for name in EncodeOptions._fields))
    chosen = np.random.RandomState(0).permutation(len(records))[:COMPARED_VIDEOS]
    results = [
        compare_with_copy(records[k], file=file, reader=reader, options=options) for k in chosen
    ]
    values = [value for value in results if value is not None]
    return {"videos": len(records), "compared": len(values), "psnr": np.array(values)}


def compare_with_copy(
    record: Record, file: AnnotationFile, reader: str, options: EncodeOptions
) -> Optional[float]:
    """The PSNR of some frames of a packed video in dB; None if the original is missing."""
    if not os.path.exists(record.path):
        return None
    job = make_job(record, file, reader)
    location = record.location
    with PackedVideo(record.path, location, job.max_pixels) as copy, job.open() as video:
        if len(copy) != len(video):
            raise ValueError(f"{record.path}: {len(video)} frames, its copy has {len(copy)}")
        numbers = probe_frames(len(video))
        frames = [downscale(frame, options.short_side) for frame in video.frames(numbers)]
        value = compute_psnr(copy.frames(numbers), np.stack(frames))
    if value < LOWEST_PSNR:
        raise ValueError(f"{record.path}: its copy in {location.shard} shows something else")
    return value
