"""Runs functions and tests in a separate process, because MindSpore keeps memory of every graph.

After a network is deleted, MindSpore 2.10 still holds 0.1 to 0.7 GB of its compiled training step.
A worker of the test runner that compiles fifty of them grows to 7 GB.
"""

import functools
import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable

from utils import runtime
from utils.settings import Run

# The server imports MindSpore once and starts no kernel; its children fork in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.separate_process", "utils.networks", "tests.golden_cases"])


def run_in_separate_process(function: Callable, *arguments: Any) -> Any:
    """Returns the result of a module's function; raises its exceptions."""
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        return pool.submit(prepare_and_call, function, *arguments).result()


def in_separate_process(test: Callable) -> Callable:
    """Decorates a test. If an assertion fails there, pytest does not show its values."""

    @functools.wraps(test)
    def run_test(**arguments: Any) -> None:
        run_in_separate_process(call_test, test.__module__, test.__name__, arguments)

    return run_test


def call_test(module: str, name: str, arguments: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).__wrapped__(**arguments)


def prepare_and_call(function: Callable, *arguments: Any) -> Any:
    """Starts MindSpore as for every test, then calls the function."""
    runtime.start(Run(device="CPU"))
    return function(*arguments)
