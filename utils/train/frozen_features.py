"""Features that a training computes once, because it changes nothing but the classifier.

Epoch e trains on the features of the clips that epoch e % `train.feature_draws` would read, and a
validation evaluates those of its views; all else is as in any training. They are in `features/`
beside the run's folder, in files named by a checksum of what decides them (the backbone's weights,
samples, settings, code) and by the run that made them, which deletes them when it needs others. A
stopped run goes on after the last whole record of a file.
"""

import glob
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol, runtime_checkable

import numpy as np
from mindspore import Tensor, nn

from utils.cores import count_workers
from utils.data.rows import EvalRows, FileRows, Row, Rows, TrainRows
from utils.evaluate.metrics import EvalSet
from utils.evaluate.windows import read_ahead
from utils.files import report_write_errors, wait_for_lock
from utils.log import Progress, log
from utils.networks import Job, compute_key
from utils.nn.dropout import DropPath
from utils.train.plan import BACKBONE
from utils.train.run_dir import CHANGEABLE_ON_RESUME, hash_records
from utils.video.media_files import compute_stamp
from utils.weights.checkpoint import weights_of

LOST = 2  # the last field of an unreadable sample; 1 of others, 0 where nothing was written


@runtime_checkable
class HasFeatures(Protocol):
    """A network that takes what `compute_features` returns in the place of clips, too."""

    def compute_features(self, clip: Tensor) -> Tensor:
        """(N, ...), the input of the classifier, before its dropout."""


class Backbone(nn.Cell):
    def __init__(self, net: HasFeatures):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, clip: Tensor) -> Tensor:
        return self.net.compute_features(clip)


class FeatureRows(Rows):
    """The rows of `rows`, of a training or an evaluation, with features in the place of clips.

    Row k is record `find(k)` of a table that has the columns of `rows`; zeros if that is None.
    """

    def __init__(self, rows: FileRows, table: np.ndarray, find: Callable[[int], Optional[int]]):
        vars(self).update(vars(rows))  # records, settings, shape, unreadable files
        self.rows = rows
        self.columns = rows.columns
        self.views = rows.views if isinstance(rows, EvalRows) else ""
        self.table = table
        self.find = find

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        record = self.find(int(index))
        return self.example() if record is None else tuple(self.table[record])

    def example(self) -> Row:
        return tuple(np.zeros(1, self.table.dtype)[0])


def use_features(
    job: Job, net: nn.Cell, rows: TrainRows, eval_sets: Sequence[EvalSet]
) -> tuple[Rows, list[EvalSet]]:
    """The rows that a training reads, and the sets of its validations: of features.

    If they would change from epoch to epoch, a line says why, and both stay as they are. Raises
    ValueError if too many samples cannot be read.
    """
    cfg = job.cfg
    place = (job.rt.size, job.rt.device, cfg.run.amp_level)
    drops = (isinstance(cell, DropPath) and cell.p > 0 for _, cell in net.cells_and_names())
    is_fixed = cfg.train.freeze == BACKBONE and not (cfg.data.mixes or any(drops))
    if not is_fixed or place != (1, "CPU", "O0") or not isinstance(net, HasFeatures):
        log.info(
            "train.feature_draws has no effect: it needs train.freeze backbone, no data.mixup, "
            "data.cutmix and model.drop_path, and one process on a CPU in float32"
        )
        return rows, [*eval_sets]
    count = len(rows.records)
    draws = min(cfg.train.feature_draws, cfg.train.epochs)
    text = "train.feature_draws: the features of %d clips of each of %d %ss are computed once"
    log.info(text, draws, count, rows.kind)

    def read(index: int) -> Row:
        fault = rows.find_fault()
        if fault:
            raise ValueError(fault)
        return rows.read_sample(index % count, epoch=index // count)

    def find(index: int) -> int:
        sample, epoch = rows.sampler.sample_at(rows.start + index)
        return (epoch + rows.sampler.repetition_at(rows.start + index)) % draws * count + sample

    file, *files = choose_files(job, net, [rows, *(part.rows for part in eval_sets)])
    table = compute_table(job, net, rows, file, read, draws * count)
    features = FeatureRows(rows, table, find)
    parts = []
    for part, file in zip(eval_sets, files):
        tested = part.rows
        table = compute_table(job, net, tested, file, tested.__getitem__, len(tested.records))
        views: Any = FeatureRows(tested, table, tested.samples_of_rank.__getitem__)
        parts.append(part._replace(rows=views))
    return features, parts


def choose_files(job: Job, net: nn.Cell, parts: Sequence[FileRows]) -> list[Path]:
    """The file of the features of each part, also another run's; deletes this run's other ones.

    Its name is a checksum of all that decides the features.
    """
    cfg = job.cfg
    folder = cfg.run.out.parent / "features"
    run = cfg.run.out.name
    files = []
    digest = hashlib.sha256()
    for name, weight in weights_of(net).items():
        if not re.search(job.network.classifier, name):
            digest.update(weight.asnumpy())
    data = [item for item in vars(cfg.data).items() if item[0] not in CHANGEABLE_ON_RESUME["data"]]
    for rows in parts:
        paths = [record.path for record in rows.records]
        sources = [path if os.path.exists(path) else path.rpartition(" in ")[2] for path in paths]
        stamps = [compute_stamp(file) for file in dict.fromkeys(sources) if os.path.exists(file)]
        samples = (hash_records(rows.records).tolist(), stamps)
        content = (digest.hexdigest(), data, cfg.eval, cfg.run.seed, rows.columns, samples)
        key = compute_key(job.network.name, cfg, repr(content))
        files.append(next(folder.glob(f"{key}.*"), folder / f"{key}.{run}"))
    with report_write_errors(folder):
        for file in {*folder.glob("?" * len(key) + f".{glob.escape(run)}")} - {*files}:
            file.unlink(missing_ok=True)
    return files


def compute_table(
    job: Job, net: nn.Cell, rows: FileRows, path: Path, read: Callable[[int], Row], count: int
) -> np.ndarray:
    """A record for each of `count` rows, with features in the place of its clip.

    `read(k)` has the columns of `rows`, of sample k % the number of samples. Records that the file
    has are not computed again. Their last field says which samples were unreadable.
    """
    backbone = Backbone(net).set_train(False)
    axes = len(job.network.get_input_shape(job.cfg))  # of a clip

    def replace_clips(row: Row) -> Row:
        clips = np.asarray(row[0])  # or one clip
        x = backbone(Tensor(clips.reshape(-1, *clips.shape[-axes:]))).asnumpy()
        return x.reshape(*clips.shape[:-axes], *x.shape[1:]), *row[1:]

    columns = zip(rows.columns, map(np.asarray, replace_clips(rows.example())))
    fields = [(name, value.dtype, value.shape) for name, value in columns]
    dtype = np.dtype([*fields, ("state", np.uint8)])
    samples = len(rows.records)
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(path.parent, lambda: None), open(path, "a+b") as file:
            file.seek(0)
            done = 0
            # A kill may cut the last record; after a power failure a file may end in zeros.
            while len(data := file.read(dtype.itemsize)) == dtype.itemsize and data[-1]:
                done += 1
            file.truncate(done * dtype.itemsize)
            if done:
                lost = np.memmap(file, dtype, "r")["state"] == LOST
                rows.unreadable.restore_marks(np.flatnonzero(lost) % samples)
            missing = range(done, count)
            parts = read_ahead(lambda k: map(read, [k]), missing, count_workers("auto"))
            for k, values in Progress(parts, "features", total=len(missing), unit="clips"):
                row = replace_clips(next(values))
                state = LOST if rows.unreadable.view_flags()[k % samples] else 1
                file.write(np.array([(*row, state)], dtype).tobytes())
            file.flush()
            return np.memmap(file, dtype, "r")[:count][[*rows.columns]]
