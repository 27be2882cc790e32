"""MindData over Python sources."""

import os

import mindspore.dataset as ds

from utils.run_log import log


def generator(source, columns: list[str], data, batch: int):
    """MindData over a random-access source, in its order; workers are capped at the cores."""
    ds.config.set_prefetch_size(data.prefetch * batch)
    workers = min(data.workers, os.cpu_count() or 1)
    if workers < data.workers:
        log.info("data.workers: %d instead of %d, one a core", workers, data.workers)
    return ds.GeneratorDataset(
        source,
        columns,
        sampler=ds.SequentialSampler(),
        num_parallel_workers=workers,
        python_multiprocessing=data.processes,
    )
