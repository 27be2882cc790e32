"""Settings for all tests: graph mode on the CPU, no chatter."""

import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings; errors still show

import pytest

from utils import runtime
from utils.config import Run


@pytest.fixture(scope="session", autouse=True)
def cpu():
    """Every test computes on the CPU in graph mode, with the instruction set a user gets."""
    return runtime.start(Run(device="CPU"))
