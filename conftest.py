"""Settings for all tests: graph mode on the CPU, no chatter."""

import logging
import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings; errors still show

import pytest

from utils import runtime
from utils.config import Run
from utils.log import log


@pytest.fixture(scope="session", autouse=True)
def cpu():
    """Every test computes on the CPU in graph mode, with the instruction set a user gets."""
    return runtime.start(Run(device="CPU"))


@pytest.fixture
def log_messages(monkeypatch):
    """What is logged from now on; unlike caplog's, the same whoever set the log up before."""
    lines, level = [], log.level
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(log, "handlers", [handler])
    log.setLevel(logging.INFO)
    yield lines
    log.setLevel(level)
