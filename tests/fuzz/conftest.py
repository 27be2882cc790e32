"""The option `--seed N` adds N to all fixed seeds: `pytest tests/fuzz --seed 7`. CI runs N = 0."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="added to the fixed seeds of the fuzz")


@pytest.fixture(scope="session")
def seed(request) -> int:
    """The number of `--seed`, which is added to the fixed seeds."""
    return request.config.getoption("--seed", default=0)
