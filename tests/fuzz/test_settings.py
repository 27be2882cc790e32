"""Random config files, overrides and command lines load or end in one short error message."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.launcher.launch_config import read_job
from tests.fuzz import settings
from utils import runtime
from utils.load_config import load_config, to_dict, to_yaml
from utils.messages import LINE, SETTINGS_LINE
from utils.networks import find_network, list_networks

pytestmark = pytest.mark.timeout(1800)  # a stop against hangs
SCRIPTS = [
    *(f"{net}/{name}.py" for net in list_networks() for name in ("train", "eval", "export")),
    *(f"scripts/{name}.py" for name in ("predict", "convert_checkpoint", "launch")),
    *(f"scripts/data/{name}.py" for name in ("check_videos", "reencode_videos", "make_lists")),
    *(f"scripts/analysis/{name}.py" for name in ("complexity", "compare_step", "plan_allreduce")),
    "scripts/data/sort_imagenet.py",
    "scripts/analysis/plot_training.py",
]
VARIABLES = ["NODES", "NODE_RANK", "MASTER_PORT", "MASTER_TIMEOUT", "MASTER_ADDR"]
VARIABLES += ["RANK_TABLE_FILE", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
SLOW = pytest.param(1000, 600, marks=pytest.mark.slow)


def list_numbers(values) -> list:
    """All numbers in nested dicts and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [number for value in values for number in list_numbers(value)]
    return [values] if isinstance(values, (int, float)) else []


def assert_loads_or_is_refused(network: str, path: Path, overrides: list[str]) -> bool:
    """Returns whether it loads."""
    try:
        config = load_config(find_network(network).config, path, overrides)
    except ValueError as error:
        message = str(error)
        assert len(message) <= SETTINGS_LINE
        assert message.isprintable(), message
        return False
    assert all(map(math.isfinite, list_numbers(to_dict(config))))
    copy = path.with_name("copy.yaml")
    copy.write_text(to_yaml(config), encoding="utf-8", errors="surrogateescape")
    assert to_dict(load_config(find_network(network).config, copy)) == to_dict(config)
    return True


def make_override_case(seed: int) -> tuple[str, bytes, str]:
    network = list_networks()[seed % len(list_networks())]
    override = settings.make_override(seed, find_network(network).config)
    return network, settings.YAMLS[network][0].read_bytes(), override


def try_settings(folder: Path, seeds: range, make_case: Callable[[int], tuple]) -> None:
    """`make_case` returns the network, the content of a config file and overrides, of a seed."""
    loaded = 0
    path = folder / "random.yaml"
    for seed in seeds:
        network, content, *overrides = make_case(seed)
        path.write_bytes(content)
        try:
            loaded += assert_loads_or_is_refused(network, path, overrides)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {str(overrides or content)[:300]}") from error
    assert 0 < loaded < len(seeds)
    assert {file.name for file in folder.iterdir()} <= {"random.yaml", "copy.yaml"}


@pytest.fixture
def run_until_work(run_here, monkeypatch, tmp_path):
    """run_here, but a script ends with status 0 when it begins its work."""

    def work(*_, **__) -> None:
        sys.exit()

    monkeypatch.setattr(runtime, "start", work)
    monkeypatch.setattr("scripts.launcher.worker_group.WorkerGroup", work)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("utils.processes.adopt_orphans", lambda: None)
    monkeypatch.setattr("scripts.executors.process_pool.Pool", work, raising=False)
    monkeypatch.chdir(tmp_path)
    return run_here


def try_command_lines(run, folder: Path, seeds: range) -> None:
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "text.yaml").write_text("run: {seed: x}\n")
    (folder / "binary").write_bytes(bytes(range(256)))
    os.mkfifo(folder / "pipe")
    statuses = []
    for seed in seeds:
        script = SCRIPTS[seed % len(SCRIPTS)]
        network = script.partition("/")[0].replace("scripts", "tsm")
        arguments = settings.make_command_line(seed, find_network(network).config, folder)
        try:
            done = run(script, *arguments)
            assert done.returncode in (0, 2)
            last = (done.stderr.strip().splitlines() or [""])[-1]
            if done.returncode == 2 and arguments:
                assert last.startswith("error: ")
                assert len(last) <= LINE
                assert last.isprintable()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {script} {arguments!r}"[:2000]) from error
        statuses.append(done.returncode)
    assert statuses.count(2) > len(statuses) // 2
    assert not list(folder.rglob("hacked"))


def try_jobs(seeds: range) -> None:
    """Tries arguments and variables of the launcher; few host names, because of DNS requests."""
    for seed in seeds:
        draw = settings.random.Random(seed)
        environ = {
            name: draw.choice([*settings.VALUES, "2", "1", "127.0.0.1"]).replace("\0", "")
            for name in VARIABLES
            if draw.random() < 0.4
        }
        if environ.get("MASTER_ADDR"):
            hosts = ["127.0.0.1", "::1", "x" * 300, "a b", "\udce9", "1.2"]
            environ["MASTER_ADDR"] = draw.choice(hosts)
        words = [*settings.VALUES, "2", "tsm/train.py"]
        rest = [draw.choice(words) for _ in range(draw.randrange(5))]
        try:
            read_job(rest, environ)
        except ValueError:
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {rest} {environ}"[:2000]) from error


@pytest.mark.parametrize(("start", "count"), [(0, 150), SLOW])
def test_random_settings_load_or_are_refused(tmp_path, seed, start, count):
    for make_case in (settings.make_yaml, make_override_case):
        try_settings(tmp_path, range(seed + start, seed + start + count), make_case)


@pytest.mark.parametrize(("start", "count"), [(0, 150), SLOW])
def test_random_command_lines_end_in_one_line(run_until_work, tmp_path, seed, start, count):
    try_command_lines(run_until_work, tmp_path, range(seed + start, seed + start + count))
    try_jobs(range(seed + start, seed + start + (5 * count if start else 100)))
