"""Loader and worker pool: same batches for any number of workers, memory limits, process exit."""

import fcntl
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import psutil
import pytest

from utils import cores
from utils.cli import find_failure
from utils.data import loader
from utils.data.loader import PrefetchedBatches
from utils.data.rows import TrainRows
from utils.data.sampler import TrainSampler
from utils.files import ROOT
from utils.settings import ImageData, NetworkConfig, Run
from x3d.dataset import create_dataset

F_SETPIPE_SZ = 1031  # fcntl has it from Python 3.10 on

# Threads last: one that ends holds a lock of OpenCV, which a fork would copy.
KINDS = pytest.mark.parametrize("processes", [True, False], ids=["processes", "threads"])


BATCH = 4


def make_settings(workers="auto", processes="auto", prefetch="auto"):
    return ImageData(Path(), batch=BATCH, workers=workers, processes=processes, prefetch=prefetch)


class Clips(TrainRows):
    """Clips of random pixels; like real clips, they depend on the row's random generator."""

    def make_row(self, record, rng):
        return rng.randint(0, 255, (3, 2, 8, 8)).astype(np.uint8), np.int32(record.label)

    def example(self):
        return np.zeros((3, 2, 8, 8), np.uint8), np.int32(0)


class Rows:
    """Rows of `width` numbers that a function makes."""

    columns = ("value",)
    batch = BATCH

    def __init__(self, make, width=1, count=100):
        self.make = make
        self.width = width
        self.count = count

    def example(self):
        return (np.zeros(self.width),)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return (np.float64(self.make(index)),)


def iterate_rows(rows, *arguments, **options):
    """An iterator over the batches of rows."""
    cfg = SimpleNamespace(data=make_settings(*arguments, **options))
    batches = create_dataset(cfg, rows, cfg.data.workers)
    return batches.create_tuple_iterator(num_epochs=1, output_numpy=True)


def iterate_batches(make, width, *arguments, **options):
    """An iterator over the batches of `Rows(make, width)`."""
    return iterate_rows(Rows(make, width), *arguments, **options)


@pytest.fixture
def live_workers():
    """live_workers(): the processes and Python threads that the test has started."""
    me = psutil.Process()
    old_pids = {child.pid for child in me.children(recursive=True)}
    old_threads = set(threading.enumerate())

    def find_new_workers():
        children = [c for c in me.children(recursive=True) if c.pid not in old_pids]
        threads = [t for t in threading.enumerate() if "Dummy" not in t.name]  # MindData's own
        return children + [thread for thread in threads if thread not in old_threads]

    return find_new_workers


def wait_until(condition):
    """Waits until the condition is true; returns whether it is."""
    end = time.monotonic() + 600
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def run_python(code, *command, **options):
    """Starts a Python script that imports the checkout's modules, in its own process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, sys.executable, "-c", code], env=environment, **options)


# Makes batches of 4 MB in two processes; prints their process ids, reads most batches, then waits.
READ_MOST_SCRIPT = """
from itertools import islice
import numpy as np, psutil
from utils import cores
from utils.tests.data.test_loader import Rows, iterate_rows

cores.count_usable_cores = lambda: 2
iterator = iterate_rows(Rows(lambda k: np.full(2**17, k), 2**17, 200), 2, True, 4)
batch = next(iterator)
print(*[child.pid for child in psutil.Process().children()], flush=True)
print(sum(1 for _ in islice(iterator, 30)), flush=True)
input()
"""

# Ends while MindData waits for rows, which take 0.2 seconds each. Processes first: they are forked.
PARTLY_READ_SCRIPT = """
import time
from utils import cores
from utils.tests.data.test_loader import Rows, iterate_rows

cores.count_usable_cores = lambda: 2
rows = Rows(lambda k: [time.sleep(0.2) or k], 1, 1000)
iterators = [iterate_rows(rows, 2, processes, 4) for processes in (True, False)]
for iterator in iterators:
    print(next(iterator)[0].shape)
"""


def test_batches_are_the_same_for_any_workers(monkeypatch):
    monkeypatch.setattr(cores, "count_usable_cores", lambda: 3)
    result = []
    for data in (
        make_settings(1, False),
        make_settings(2, False),
        make_settings(2, True, 1),
        make_settings(),
    ):
        records = [SimpleNamespace(path=f"{k}.mp4", label=k) for k in range(21)]
        cfg = NetworkConfig(Run(), data, SimpleNamespace(num_classes=21))
        sampler = TrainSampler(21, batch=4, rank=0, size=1, seed=5)
        clips = Clips(records, cfg=cfg, sampler=sampler, epochs=3, skip=2)
        batches = create_dataset(clips.cfg, clips, data.workers)
        assert batches.get_dataset_size() == 13
        result.append(list(batches.create_tuple_iterator(num_epochs=1, output_numpy=True)))
    rows = [clips[k] for k in range(52)]
    for batches in result:
        for column in (0, 1):
            values = np.concatenate([batch[column] for batch in batches])
            assert values.dtype == rows[0][column].dtype
            assert np.array_equal(values, [row[column] for row in rows])


def test_a_run_may_end_before_its_data():
    with run_python(PARTLY_READ_SCRIPT) as it:
        output, errors = it.communicate(timeout=600)
    assert (it.returncode, output, errors) == (0, "(4, 1)\n(4, 1)\n", "")


@KINDS
def test_prefetch_limits_the_number_of_rows(processes):
    made = np.frombuffer(mmap.mmap(-1, 100), np.uint8)  # shared with forked processes

    def note(index):
        made[index] += 1
        return [index]

    batches = iterate_batches(note, 1, 1, processes, 3)
    next(batches)
    assert wait_until(lambda: made.sum() >= 4 * (1 + 3))
    time.sleep(0.5)
    assert made.sum() <= 4 * (1 + 3 + loader.MINDDATA_BUFFERED)
    assert sum(len(batch) for (batch,) in batches) == 96
    assert (made == 1).all()


def prefetch_numbers(rows, batch, **options):
    return PrefetchedBatches(rows, like=rows.example(), batch=batch, **options)


@pytest.fixture
def small_pipes(monkeypatch):
    """Pipes of one page: the system's default for a user with many pipes."""
    open_pipe = multiprocessing.Pipe

    def small_pipe(*arguments, **options):
        ends = open_pipe(*arguments, **options)
        assert fcntl.fcntl(ends[0].fileno(), F_SETPIPE_SZ, 4096) == 4096
        return ends

    monkeypatch.setattr(multiprocessing, "Pipe", small_pipe)


def iterate_slowly(processes, rows, batch, prefetch):
    """Yields the values of all batches; waits after the first two, so that the pipes fill up."""
    numbers = Rows(lambda k: [k], count=rows)
    batches = prefetch_numbers(numbers, batch, workers=2, processes=processes, prefetch=prefetch)
    for k, (values,) in enumerate(batches):
        yield values[:, 0]
        time.sleep(rows / 1e5 if k < 2 else 0)


@KINDS
@pytest.mark.parametrize(
    ("rows", "batch", "prefetch", "small", "collected"),
    [
        (5_000, 2_500, 1, True, True),
        (40_000, 10_000, 2, False, True),
        (10_000, 2_500, 2, True, False),
    ],
)
def test_many_rows_may_be_in_flight(
    rows, batch, prefetch, small, collected, processes, live_workers, request
):
    """More than the two pipes hold: twice 512 numbers if they are small, else twice 8,192.

    Both pipes are full when a pool is closed whose rows are not collected.
    """
    if small:
        request.getfixturevalue("small_pipes")
    batches = iterate_slowly(processes, rows=rows, batch=batch, prefetch=prefetch)
    if collected:
        assert np.array_equal(np.concatenate(list(batches)), np.arange(rows))
        assert wait_until(lambda: not live_workers()), live_workers()
    else:
        next(batches)
        time.sleep(0.5)
        batches.close()
        assert not live_workers()


def test_processes_are_forked_when_the_batches_are_built(live_workers):
    """By this thread, before MindData's threads run, which may hold locks during a fork."""
    rows = Rows(lambda k: [k], count=4_000)
    batches = prefetch_numbers(rows, 2_000, workers=2, processes=True, prefetch=1)
    pids = {worker.pid for worker in live_workers()}
    assert len(pids) == 2
    iterator = iter(batches)
    next(iterator)
    assert {worker.pid for worker in live_workers()} == pids
    iterator.close()
    with pytest.raises(RuntimeError, match="the batches of one iteration only"):
        next(iter(batches))
    assert not live_workers()


@KINDS
def test_workers_end_with_their_iterator(processes, live_workers):
    batches = iterate_batches(lambda index: [index], 1, 2, processes)
    next(batches)
    assert len(live_workers()) == min(2, cores.count_usable_cores())
    del batches
    assert wait_until(lambda: not live_workers()), live_workers()


BAD_ROWS = {
    "KeyError: 'thirteen'": lambda k: [k] if k != 13 else {}["thirteen"],
    r"row 5: \(3,\) instead of \(1,\)": lambda k: [k] * (3 if k == 5 else 1),
}


@KINDS
@pytest.mark.parametrize("message", BAD_ROWS)
def test_the_exception_of_a_row_is_raised(message, processes, live_workers):
    with pytest.raises(RuntimeError, match=message):
        list(iterate_batches(BAD_ROWS[message], 1, 2, processes))
    assert wait_until(lambda: not live_workers()), live_workers()


def test_a_killed_worker_process_is_an_error(live_workers):
    batches = iterate_batches(lambda index: [index], 1, 1, True)
    next(batches)
    live_workers()[0].kill()
    with pytest.raises(RuntimeError, match="a worker process was killed by SIGKILL") as raised:
        list(batches)
    failure = find_failure(raised.value)
    assert failure.startswith("data.processes: a worker process was killed by SIGKILL")
    assert "\n" not in failure


@KINDS
def test_one_worker_keeps_one_core_busy(processes):
    """Without a limit OpenCV would use all cores."""
    cv2.setNumThreads(4)
    picture = np.zeros((500, 500, 3), np.float32)

    def work(index):
        cv2.resize(picture, (1000, 1000), interpolation=cv2.INTER_LANCZOS4)
        return time.process_time(), time.thread_time()

    times = np.concatenate([batch for (batch,) in iterate_batches(work, 2, 1, processes)])
    process, worker = times[-1] - times[0]
    assert process <= 1.2 * worker


def test_workers_need_no_space_in_dev_shm_and_die_with_their_parent():
    """Where nothing can be mounted, /dev/shm has its usual size."""
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    inside = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"]).returncode:
        inside = []
    with run_python(READ_MOST_SCRIPT, *inside, stdin=subprocess.PIPE) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert parent.stdout.readline() == "30\n"
        assert all(map(psutil.pid_exists, workers))
        parent.kill()
    assert wait_until(lambda: not any(map(psutil.pid_exists, workers)))


@pytest.mark.parametrize(
    ("count", "ranks", "launcher", "quota", "expected"),
    [
        (8, 3, 0, 0, (2, 5, 8)),
        (24, 8, 24, 0, (3, 5, 24)),  # msrun could not bind it
        (24, 8, 192, 0, (24, 5, 24)),
        (24, 8, 192, 96, (12, 5, 24)),  # a container's CPU quota is for all ranks together
    ],
)
def test_workers_are_limited_to_the_cores_of_a_rank(
    count, ranks, launcher, quota, expected, tmp_path, monkeypatch
):
    """For `data.workers` auto, 5 and 64; a bound rank does not divide its cores again."""
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(count))
    monkeypatch.setattr(cores, "get_local_rank_size", lambda: ranks)
    if launcher:
        monkeypatch.setenv(cores.LAUNCHER_CORES, ",".join(map(str, range(launcher))))
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}00000 100000\n")
    assert tuple(map(cores.count_workers, ("auto", 5, 64))) == expected


@pytest.mark.parametrize(
    ("device", "ranks", "settings", "expected"),
    [
        ("Ascend", 1, ("auto", "auto"), (16, False)),
        ("CPU", 3, ("auto", "auto"), (8, False)),
        ("CPU", 2, ("auto", "auto"), (12, True)),
    ],
)
def test_workers_are_processes_if_there_are_many_on_a_cpu(
    device, ranks, settings, expected, monkeypatch
):
    monkeypatch.setattr(cores, "count_usable_cores", lambda: 24)
    monkeypatch.setattr(cores, "get_local_rank_size", lambda: ranks)
    assert loader.choose_workers(*settings, device) == expected
    if device != "CPU":
        with pytest.raises(ValueError, match="data.processes"):
            loader.choose_workers(4, True, device)


def test_prefetched_batches_fit_the_free_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("8000\n")
    monkeypatch.setattr(cores, "get_local_rank_size", lambda: 2)  # 4000 bytes each
    for size, expected in ((1, 8), (100, 8), (200, 3), (900, 2)):
        assert loader.choose_prefetch("auto", size) == expected
    assert loader.choose_prefetch(30, 100) == 30
    assert loader.choose_prefetch("auto", size=3000, total=1) == 1
    for setting, size in (("auto", 1001), (39, 100)):
        with pytest.raises(ValueError, match=f"data.prefetch {setting}: .* batches of .* are free"):
            loader.choose_prefetch(setting, size)
