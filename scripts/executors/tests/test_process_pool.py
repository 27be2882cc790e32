"""Jobs give the same results on the processes of this host and on a Dask cluster, or in parts."""

import argparse
import sys

import pytest

from scripts.executors import process_pool
from scripts.executors.process_pool import CrashError, Part, parse_executor, parse_part, run_all
from scripts.executors.tests.pool_jobs import FATAL, crash_or_square, refuse_three
from tests.dask_cluster import start_dask_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that gives a job up which has ended two workers."""
    pytest.importorskip("distributed")
    limit = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    with start_dask_cluster(tmp_path_factory.mktemp("dask"), **limit) as cluster:
        yield cluster


@pytest.mark.slow
def test_dask_gives_the_results_of_processes_though_jobs_crash_and_a_worker_is_killed(cluster):
    expected = dict(run_all(crash_or_square, range(60), 2))
    results = {}
    for job, result in run_all(crash_or_square, range(60), 2, cluster.executor):
        assert job not in results
        results[job] = result
        if len(results) == 15:
            cluster.kill_worker()
    assert {job for job in results if isinstance(results[job], CrashError)} == {FATAL}
    texts = {job: str(result) for job, result in expected.items()}
    assert {job: str(result) for job, result in results.items()} == texts


@pytest.mark.slow
def test_an_error_of_a_job_is_raised_here(cluster):
    with pytest.raises(ValueError, match="three is refused"):
        dict(run_all(refuse_three, jobs=range(9), workers=2, executor=cluster.executor))
    done = dict(run_all(refuse_three, jobs=range(3), workers=2, executor=cluster.executor))
    assert done == {0: 0, 1: 1, 2: 2}


def test_a_missing_package_is_a_user_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match="--executor .*pip install"):
        dict(run_all(refuse_three, jobs=range(2), workers=2, executor="dask:nowhere:1"))


@pytest.mark.parametrize("address", ["nowhere:1", "tls://127.0.0.1:1"])
def test_a_scheduler_that_is_missing_or_needs_certificates_is_named(address, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(process_pool, "CONNECT_TIMEOUT", 1)
    with pytest.raises(ValueError, match=f"--executor: .*{address}: "):
        dict(run_all(refuse_three, jobs=range(2), workers=2, executor=f"dask:{address}"))


def test_parts_hold_every_job_once_and_wrong_words_are_refused():
    parts = [Part(number, 3).select(range(10)) for number in (1, 2, 3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert parse_part("2/3") == Part(2, 3)
    wrong = {parse_part: ["0/4", "5/4", "1", "a/b", "1/0", "-1/4", ""]}
    wrong[parse_executor] = ["threads", "dask", "dask:"]
    for parse, texts in wrong.items():
        for text in texts:
            with pytest.raises(argparse.ArgumentTypeError):
                parse(text)
