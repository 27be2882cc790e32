"""The batches that a network's `create_dataset` gives to MindData: chooses workers and prefetch.

The worker pool is our own (`utils.data.worker_pool`), and MindData takes its batches. By threads of
MindData, images get 0.1 to 0.2 of the rows a second: it looks every 0.1 s whether a row is there.
Each thread keeps up to 17 rows, whatever its prefetch size. As processes, its workers would need
workers * (prefetch size + 2) rows of /dev/shm; without it they end in a bus error. The figures:
docs/measured/data_path.md.

Threads or processes. A row of any network here holds Python's global lock (GIL) for 4 to 8 % of its
time: decoding, resizing and copying release it. So 8 threads wait for the lock 1 to 7 % of their
time, and 16 threads 5 to 26 %. Processes do not wait, but each is a copy of this process that grows
while it touches the records. So `auto` takes processes only for more than 8 workers.

It takes processes only on a CPU. A process that has opened an Ascend or a GPU has many threads of
ACL, HCCL or CUDA. A fork copies the locks that they hold at that moment, and may hang. So there
`auto` takes threads, at most 16: with 4 to 8 % of each row under the lock, more would gain little.
"""

import functools
import math
from typing import TYPE_CHECKING, Union

import numpy as np

from utils import cores
from utils.data.rows import Rows
from utils.data.worker_pool import PrefetchedBatches
from utils.log import log
from utils.settings import ImageData

if TYPE_CHECKING:
    import mindspore.dataset as ds

MAX_THREADS = 8  # by `auto` on a CPU; above it, workers are processes
MAX_DEVICE_THREADS = 16  # by `auto` on Ascend and GPU
# Batches, by `auto`
MIN_PREFETCH = 2
MAX_PREFETCH = 8
MEMORY_FRACTION = 1 / 4  # of the free memory, by `auto`: evaluation and the network need some too
MINDDATA_BUFFERED = 2  # batches that MindData holds


def build_pipeline(
    rows: Rows, data: ImageData, requested_workers: Union[int, str]
) -> "ds.GeneratorDataset":
    """The batches of rows in their order, made in advance by workers; MindData queues no others.

    `requested_workers` is as `data.workers`; `data` has the settings `processes` and `prefetch`.
    Raises ValueError if the batches do not fit into memory, or if worker processes are requested on
    a device.
    """
    import mindspore as ms  # here: who only reads videos does not load MindSpore
    import mindspore.dataset as ds

    ds.config.set_prefetch_size(1)
    blank = rows.blank()
    size = rows.batch * sum(np.asarray(value).nbytes for value in blank)
    device = ms.get_context("device_target")  # CPU, GPU or Ascend
    workers, processes = choose_workers(requested_workers, data.processes, device)
    prefetch = choose_prefetch(data.prefetch, size, max(1, len(rows) // rows.batch))
    note = f"; batches of {size / 1e6:.3g} MB, prefetched: {prefetch}"
    log_workers(requested_workers, workers=workers, processes=processes, note=note)
    batches = PrefetchedBatches(rows, blank, rows.batch, workers, processes, prefetch)
    return ds.GeneratorDataset(batches, list(rows.columns), shuffle=False)


def choose_workers(
    setting: Union[int, str], processes: Union[bool, str], device: str
) -> tuple[int, bool]:
    """(number of workers, whether they are processes), for `data.workers` and `data.processes`.

    Raises ValueError for `data.processes: true` on Ascend and GPU.
    """
    workers = cores.count_workers(setting)
    if device == "CPU":
        return workers, workers > MAX_THREADS if processes == "auto" else bool(processes)
    if processes is True:
        raise ValueError(
            f"data.processes: true forks this process, which has opened run.device {device}, and "
            "the worker processes may hang; set data.processes to auto or false, for threads"
        )
    return min(workers, MAX_DEVICE_THREADS) if setting == "auto" else workers, False


@functools.cache
def log_workers(setting: Union[int, str], workers: int, processes: bool, note: str) -> None:
    """Logs the number of workers and its reason, once per run and not at every evaluation.

    `setting` is `data.workers`.
    """
    log.info(
        "data: worker %s: %d (data.workers %s; cores: %d, ranks on this node: %d%s)%s",
        "processes" if processes else "threads",
        workers,
        setting,
        cores.count_usable_cores(),
        cores.get_local_rank_size(),
        ", each bound to its own" if cores.is_bound() else "",
        note,
    )


def choose_prefetch(setting: Union[int, str], size: int, total: float = math.inf) -> int:
    """The number of batches that the worker pool prefetches, for `data.prefetch`.

    `auto` takes as many as fit into MEMORY_FRACTION of the free memory, between MIN_PREFETCH and
    MAX_PREFETCH. `size` is the bytes of a batch, `total` the batches of the whole set; the result
    is not larger.

    Raises ValueError if these batches and MINDDATA_BUFFERED need more than the free memory.
    """
    free = cores.read_free_memory() / cores.get_local_rank_size()
    if isinstance(setting, int):
        prefetch = setting
    else:
        fitting = MEMORY_FRACTION * free // size - MINDDATA_BUFFERED
        prefetch = int(min(MAX_PREFETCH, max(MIN_PREFETCH, fitting)))
    batch_count = min(prefetch + MINDDATA_BUFFERED, total)
    if batch_count * size > free:
        raise ValueError(
            f"data.prefetch {setting}: {batch_count} batches of {size / 1e6:.0f} MB are more "
            f"than the {free / 1e6:.0f} MB that are free for each rank of this node; "
            "lower it, or data.batch and eval.batch"
        )
    return int(min(prefetch, total))
