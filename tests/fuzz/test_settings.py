"""Random yaml files, overrides and command lines end in settings or in one short line."""

import math
import os
import runpy
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import settings
from utils import cli, log, runtime, signals
from utils.config import ROOT, load_config, to_dict, to_yaml
from utils.distributed.launch_config import read_job
from utils.messages import LINE, SETTINGS_LINE
from utils.networks import find_network, list_networks

SECONDS = 5  # of computing for one case
SCRIPTS = [
    *(f"{net}/{name}.py" for net in list_networks() for name in ("train", "eval", "export")),
    *(f"scripts/{name}.py" for name in ("predict", "convert_checkpoint", "launch")),
    *(f"scripts/data/{name}.py" for name in ("check_videos", "pack_videos", "make_lists")),
    *(f"scripts/analysis/{name}.py" for name in ("complexity", "compare_step", "plan_allreduce")),
    "scripts/data/sort_imagenet.py",
    "scripts/analysis/plot_training.py",
]
VARIABLES = ["NODES", "NODE_RANK", "MASTER_PORT", "MASTER_TIMEOUT", "MASTER_ADDR", "ZOO_JOB_TOKEN"]
VARIABLES += ["RANK_TABLE_FILE", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]


def numbers(values) -> list:
    """All numbers in nested dicts and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [number for value in values for number in numbers(value)]
    return [values] if isinstance(values, (int, float)) else []


def assert_loads_or_is_refused(network: str, path: Path, overrides=()) -> bool:
    """Returns whether it loads."""
    began = time.process_time()
    try:
        config = load_config(find_network(network).config, path, list(overrides))
    except ValueError as error:
        message = str(error)
        assert len(message) <= SETTINGS_LINE
        assert message.isprintable(), message
        return False
    finally:
        assert time.process_time() - began < SECONDS
    assert all(map(math.isfinite, numbers(to_dict(config))))
    copy = path.with_name("copy.yaml")
    copy.write_text(to_yaml(config), encoding="utf-8", errors="surrogateescape")
    assert to_dict(load_config(find_network(network).config, copy)) == to_dict(config)
    return True


def try_yamls(folder: Path, seeds: range) -> None:
    path = folder / "random.yaml"
    loaded = 0
    for seed in seeds:
        network, content = settings.make_yaml(seed)
        path.write_bytes(content)
        try:
            loaded += assert_loads_or_is_refused(network, path)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {content[:300]!r}") from error
    assert 0 < loaded < len(seeds)
    assert {file.name for file in folder.iterdir()} <= {"random.yaml", "copy.yaml"}


def try_overrides(folder: Path, seeds: range) -> None:
    loaded = 0
    for seed in seeds:
        network = list_networks()[seed % len(list_networks())]
        override = settings.make_override(seed, find_network(network).config)
        path = folder / "shipped.yaml"
        path.write_bytes(settings.YAMLS[network][0].read_bytes())
        try:
            loaded += assert_loads_or_is_refused(network, path, [override])
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {override[:300]!r}") from error
    assert 0 < loaded < len(seeds)


class Ended(BaseException):
    """The command would have left the process with this status, or begun its work."""


@pytest.fixture
def end_of(monkeypatch, capsys, tmp_path):
    """Runs a script in this process until it begins to work: status (None if it does), stderr."""

    def exit_now(status: int, line: str) -> None:
        print(line, file=sys.stderr)
        raise Ended(status)

    def work(*_, **__) -> None:
        raise Ended(None)

    def run(script: str, arguments: list[str]) -> tuple:
        monkeypatch.setattr(sys, "argv", [str(ROOT / script), *arguments])
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
            status = 0
        except (Ended, SystemExit) as end:
            status = end.args[0] if end.args else 0
        return status, capsys.readouterr().err

    monkeypatch.setattr(cli, "exit_now", exit_now)
    monkeypatch.setattr(signals, "watch", lambda: None)
    monkeypatch.setattr(runtime, "start", work)
    monkeypatch.setattr("utils.distributed.worker_group.WorkerGroup", work)
    monkeypatch.setattr("utils.distributed.rendezvous.Rendezvous", work)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("utils.processes.adopt_orphans", lambda: None)
    monkeypatch.setattr("utils.process_pool.Pool", work, raising=False)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.chdir(tmp_path)
    handlers = list(log.log.handlers)
    yield run
    log.log.handlers[:] = handlers


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
            status, errors = run(script, arguments)
            assert status in (0, 2, None)
            last = (errors.strip().splitlines() or [""])[-1]
            if status == 2 and arguments:
                assert last.startswith("error: ")
                assert len(last) <= LINE
                assert last.isprintable()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {script} {arguments!r}"[:2000]) from error
        statuses.append(status)
    assert statuses.count(2) > len(statuses) // 2
    assert not list(folder.rglob("hacked"))


def try_jobs(seeds: range) -> None:
    """The arguments and variables of the launcher; few host names, each of which is looked up."""
    for seed in seeds:
        draw = settings.random.Random(seed)
        environ = {
            name: draw.choice([*settings.VALUES, "2", "1", "127.0.0.1"]).replace("\0", "")
            for name in VARIABLES
            if draw.random() < 0.4
        }
        if environ.get("MASTER_ADDR"):
            environ["MASTER_ADDR"] = draw.choice(
                ["127.0.0.1", "::1", "x" * 300, "a b", "\udce9", "1.2"]
            )
        rest = [
            draw.choice([*settings.VALUES, "2", "tsm/train.py"]) for _ in range(draw.randrange(5))
        ]
        try:
            read_job(rest, environ)
        except ValueError:
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {rest} {environ}"[:2000]) from error


def test_random_settings_load_or_are_refused(tmp_path, seed):
    try_yamls(tmp_path, range(seed, seed + 150))
    try_overrides(tmp_path, range(seed, seed + 150))


def test_random_command_lines_end_in_one_line(end_of, tmp_path, seed):
    try_command_lines(end_of, tmp_path, range(seed, seed + 150))
    try_jobs(range(seed, seed + 100))


@pytest.mark.slow
def test_many_random_settings_load_or_are_refused(tmp_path, seed):
    try_yamls(tmp_path, range(seed + 1000, seed + 1600))
    try_overrides(tmp_path, range(seed + 1000, seed + 1600))


@pytest.mark.slow
def test_many_random_command_lines_end_in_one_line(end_of, tmp_path, seed):
    try_command_lines(end_of, tmp_path, range(seed + 1000, seed + 1600))
    try_jobs(range(seed + 1000, seed + 4000))
