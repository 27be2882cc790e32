"""Settings for all tests: graph mode on the CPU, no chatter."""

import gc
import logging

from utils.runtime import set_environment

set_environment()

import mindspore as ms
import psutil
import pytest
from mindspore import nn
from mindspore.graph.api import _cell_graph_executor

from utils import runtime
from utils.log import log
from utils.settings import Run


@pytest.fixture(scope="session", autouse=True)
def cpu():
    """Every test computes on the CPU in graph mode, with the instruction set a user gets.

    The rest is for speed: the queues of eager operators take half of the time, waiting, and a
    collection of garbage looks at all that was imported, unless it is frozen.
    """
    rt = runtime.start(Run(device="CPU"))
    ms.runtime.launch_blocking()
    gc.collect()
    gc.freeze()
    return rt


@pytest.fixture
def eager():
    """Networks run operator by operator: for one result, that takes less than a compilation."""
    with runtime.eager_mode():
        yield


@pytest.fixture(scope="module", autouse=True)
def free_networks():
    """Frees the networks and compiled graphs of a test file.

    MindSpore keeps a reference to the function that it differentiated last, and Python collects
    reference cycles by the number of objects, not by their size.
    """
    yield
    for cell in list(nn.Cell.global_cells):
        if cell.compile_cache:
            _cell_graph_executor.del_net_res(cell, cell.compile_cache)
            cell.compile_cache.clear()
    gc.collect()
    runtime.release_memory()


@pytest.fixture(autouse=True)
def free_large_networks():
    """Collects reference cycles after a test that has taken more than 100 MB."""
    process = psutil.Process()
    before = process.memory_info().rss
    yield
    if process.memory_info().rss > before + 100e6:
        gc.collect()
        runtime.release_memory()


@pytest.fixture
def log_messages(monkeypatch):
    """What is logged from now on; unlike caplog's, the same whoever set the log up before."""
    lines = []
    level = log.level
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(log, "handlers", [handler])
    log.setLevel(logging.INFO)
    yield lines
    log.setLevel(level)
