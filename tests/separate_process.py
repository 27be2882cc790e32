"""Runs a function in a separate process, because MindSpore keeps memory of every graph.

After a network is deleted, MindSpore 2.10 still holds 0.1 to 0.7 GB of its compiled training step.
A worker of the test runner that compiles fifty of them grows to 7 GB.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable

from utils import runtime
from utils.config import Run

# The server imports MindSpore once and starts no kernel; its children fork in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.separate_process", "utils.networks", "utils.testing.golden"])


def run_in_separate_process(function: Callable, *arguments: Any) -> Any:
    """Returns the result of a module's function; raises its exceptions."""
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        return pool.submit(prepare_and_call, function, *arguments).result()


def prepare_and_call(function: Callable, *arguments: Any) -> Any:
    """Starts MindSpore as for every test, then calls the function."""
    runtime.start(Run(device="CPU"))
    return function(*arguments)
