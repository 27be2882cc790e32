#!/usr/bin/env python3
"""Shows the clips of a training or an evaluation as the network gets them, before a long run.

    python scripts/data/show_clips.py --config_path Y --out DIR [--split train|val|test]
        [--count 16] [--devices 1] [--network x3d] [--section.key=value ...]

writes DIR/clips.png: a line of frames for each clip, in RGB (of flow its x component; of several
frames of a segment the first), with its seconds, classes and file. `train`: the first clips of the
run, on the first of so many `--devices`, after augmentation and flips, mixed as the train step
mixes them; a mixed clip has both classes with their shares, and the seconds and file of the first.
DIR/lr.png is then the learning rate of every update. `val` and `test`: samples from all parts of
the list, of several views one in the middle. The last line of stdout is one JSON object, which is
also in DIR/clips.json: sheet, clips, and of a training lr (a file) and updates.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal, Optional

import numpy as np
from matplotlib.figure import Figure

from scripts.prediction.plots import PreviewRow, draw_preview, save
from utils import cli, runtime
from utils.data.annotation_file import list_labels, name_record
from utils.data.rows import EvalRows, FileRows, Share, TrainRows, VideoWarnings
from utils.evaluate.label_space import LabelSpace, list_class_names
from utils.files import check_folder, report_write_errors, write_text
from utils.messages import format_line
from utils.networks import Network, find_build
from utils.settings import NetworkConfig
from utils.video.reader import FrameReader, find_time

CAPTION_LENGTH = 150  # characters
# A record, the seconds of the frames that were read, views uint8 (V, ...), and their classes
Clip = tuple[Any, Optional[np.ndarray], np.ndarray, Sequence[Share]]


class VideoTimes(VideoWarnings):
    """Also keeps the seconds of the frames of the newest video."""

    times: Optional[np.ndarray] = None

    def add(self, source: FrameReader) -> None:
        super().add(source)
        self.times = find_time(source, source.requested) if source.fps else None


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    out: Path,
    split: Literal["train", "val", "test"] = "train",
    count: Annotated[int, cli.number_between(1, 64)] = 16,
    devices: cli.PositiveInt = 1,
) -> None:
    check_folder(out, {"clips.json": r'\{"sheet": '})
    cfg = replace(cfg, run=replace(cfg.run, device="CPU"))
    rt = runtime.start(cfg.run)
    spaces = network.list_label_spaces(cfg)
    list_class_names(spaces, cfg.run.out)
    if split != "test":  # one view
        for space in spaces:
            space.clips = space.crops = 1
    result: dict[str, Any] = {"sheet": str(out / "clips.png")}
    if split == "train":
        from scripts.analysis.build_networks import drop_pretrained  # here, with MindSpore
        from utils.train.plan import Plan

        # The rows of the first device in the run, and its parts with random weights
        cfg = drop_pretrained(cfg)
        records = network.read_records(cfg, "train")
        sampler = network.build_train_sampler(cfg, records, replace(rt, size=devices))
        epochs = cfg.train.epochs
        rows = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=epochs, skip=0)
        parts = find_build(network.name)(cfg, Plan(network, cfg, rt, sampler))
        clips = islice(read_training(rows, parts.mix, count), count)
        result.update(lr=str(out / "lr.png"), updates=len(parts.lr))
    else:
        clips = read_views(network.build_eval_rows(cfg, rt, spaces, split), count)
    lines = [describe_clip(clip, spaces, f"{cfg.data.root}/") for clip in clips]
    result["clips"] = [description for description, _ in lines]
    with report_write_errors(out, "--out"):
        write_text(out / "clips.json", json.dumps(result) + "\n")
    if split == "train":
        batch = sampler.effective_batch_size(cfg.train.accumulation_steps)
        figure = Figure(figsize=(9, 3), layout="constrained")
        axes = figure.subplots()
        updates = len(parts.lr)
        axes.plot(np.arange(1, updates + 1), parts.lr, ".-" if updates < 100 else "-")
        axes.set(xlabel=f"update, of {batch} samples; {epochs} epochs", title="learning rate")
        save(figure, out / "lr.png")
    draw_preview(out / "clips.png", f"{split}, {len(lines)} clips", [row for _, row in lines])
    print(json.dumps(result))


def read_training(rows: TrainRows, mix: Any, count: int) -> Iterator[Clip]:
    """The clips of a training in their order, mixed by `mix`, which is `TrainStep`'s.

    `count` are wanted; more are read only if a whole batch is mixed.
    """
    from mindspore import Tensor

    data = rows.cfg.data
    size = rows.batch if data.mixes else min(rows.batch, count)
    for first in range(0, len(rows) - size + 1, size):
        samples = [rows.sampler.sample_at(first + k) for k in range(size)]
        tried = [[*rows.draw_candidates(*sample)] for sample in samples]
        videos = [read_row(rows, first + k, tried[k]) for k in range(size)]
        clips, targets = (np.stack(column) for column in zip(*(row for *_, row in videos)))
        if mix is not None:
            with runtime.eager_mode():
                clips = mix(Tensor(clips), Tensor(targets)).asnumpy()
                if data.mixes:  # then they are normalised
                    pixels = np.stack([np.full(clips[0].shape, k, np.uint8) for k in (0, 255)])
                    black, white = mix.normalize(Tensor(pixels)).asnumpy()
                    clips = 255 * (clips - black) / (white - black)
        for k, shares in enumerate(rows.list_shares(targets)):
            view = np.rint(clips[k : k + 1]).astype(np.uint8)
            yield *videos[k // data.clips_per_sample][:2], view, shares


def read_views(rows_of: Mapping[int, EvalRows], count: int) -> Iterator[Clip]:
    """The views of samples at equal distances in each list, about `count` in all."""
    for space, rows in rows_of.items():
        wanted = -(-count // len(rows_of))
        for index in np.unique(np.linspace(0, len(rows.records) - 1, wanted).astype(int)):
            record, times, row = read_row(rows, index, [index])
            shares = [(space, label, 1.0) for label in list_labels(record.label)]
            yield record, times, row[0], shares


def read_row(rows: FileRows, index: int, tried: Sequence[int]) -> tuple:
    """(record, seconds of its frames, row): of the first readable one of the samples `tried`."""
    rows.warnings = VideoTimes()
    unreadable = rows.unreadable.view_flags()
    unreadable[:] = False
    row = rows[index]
    sample = next((k for k in tried if not unreadable[k]), tried[0])
    if len(tried) > 1 and unreadable[sample]:
        raise ValueError(f"none of {len(tried)} files of the list could be read; see above")
    return rows.records[sample], rows.warnings.times, row


def describe_clip(clip: Clip, spaces: Sequence[LabelSpace], root: str) -> tuple[dict, PreviewRow]:
    """A clip for the result of the command, and as a line of the sheet."""
    record, times, views, shares = clip
    result: dict[str, Any] = {"file": name_record(record).removeprefix(root), "classes": []}
    texts = []
    for k, label, weight in filter(lambda share: share[2], shares):
        owner = spaces[k].name
        name = spaces[k].own_names[label] if spaces[k].own_names else ""
        share = round(float(weight), 3)
        result["classes"].append({"set": owner, "label": label, "name": name, "share": share})
        percent = f"{share:.0%}" if share < 1 else ""
        texts.append(" ".join(filter(None, (owner, str(label), name, percent))))
    frames = spaces[shares[0][0] if shares else 0].preview_frames(views)
    middle = len(frames) // 2
    words = [" + ".join(texts) or "no class", result["file"]]
    if times is not None:
        start = record.segment.start if record.segment else 0.0
        times = start + times.reshape(*frames.shape[:2], -1)[None, middle]
        result.update(start=round(float(times.min()), 3), end=round(float(times.max()), 3))
        words.insert(1, "{start:.2f} to {end:.2f} s".format(**result))
        times = times[..., 0]
    caption = format_line("; ".join(words), CAPTION_LENGTH)
    return result, PreviewRow(caption, frames[middle : middle + 1], [], times)


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
