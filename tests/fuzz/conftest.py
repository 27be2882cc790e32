"""The option `--seed N`: further mutations than the fixed ones, as in `pytest tests/fuzz --seed 7`.

N is added to every fixed seed; 0, the default, is what CI runs.
"""

import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="added to the fixed seeds of the fuzz")


@pytest.fixture(scope="session")
def seed(request) -> int:
    """The number that is added to the fixed seeds."""
    return request.config.getoption("--seed", default=0)
