"""Whether a pack is still what was packed: every check sum, and some videos' pixels."""

import os
from pathlib import Path
from typing import Optional

import numpy as np
from tqdm import tqdm

from utils.data.annotation_file import AnnotationFile, Record
from utils.data.packed.encoder import Form, job_of, looked_at, open_job, psnr, shrunk
from utils.data.packed.reader import PackedVideo, is_whole, pack_folder, read_index, read_packed

SAMPLE = 16  # videos of a list whose pixels are compared
LEAST = 20.0  # dB; less is another picture


def verify_list(file: AnnotationFile, packed: Path, reader: str) -> dict:
    """ValueError names what is damaged; originals that are gone are not compared."""
    records, _ = read_packed(file, packed, min_frames=1)
    damaged = {
        r.location.shard for r in tqdm(records, file.name, disable=None) if not is_whole(r.location)
    }
    if damaged:
        raise ValueError(
            f"{', '.join(sorted(damaged))}: check sums differ; remove "
            f"{'it' if len(damaged) == 1 else 'them'} and run scripts/data/pack_videos.py again"
        )
    form = Form(*(read_index(pack_folder(packed, file))[name] for name in Form._fields))
    drawn = np.random.RandomState(0).permutation(len(records))[:SAMPLE]
    result = [compare(records[k], file, reader, form) for k in drawn]
    values = [value for value in result if value is not None]
    return {"videos": len(records), "compared": len(values), "psnr": np.array(values)}


def compare(record: Record, file: AnnotationFile, reader: str, form: Form) -> Optional[float]:
    """The nearness of a copy, in dB; None where the original is gone."""
    if not os.path.exists(record.path):
        return None
    job = job_of(record, file, reader)
    position = record.location
    with PackedVideo(record.path, position, job.max_pixels) as copy, open_job(job) as source:
        if len(copy) != len(source):
            raise ValueError(f"{record.path}: {len(source)} frames, its copy has {len(copy)}")
        numbers = looked_at(len(source))
        frames = [shrunk(frame, form) for frame in source.frames(numbers)]
        value = psnr(copy.frames(numbers), np.stack(frames))
    if value < LEAST:
        raise ValueError(f"{record.path}: its copy in {position.shard} shows something else")
    return value
