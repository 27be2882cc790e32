"""Settings: types, defaults and paths; errors name the setting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional, Union

import pytest

from utils.files import ROOT
from utils.load_config import load_config, to_dict, to_yaml
from utils.settings import Run, check_positive


@dataclass(frozen=True)
class Data:
    root: Path
    batch: int = 8
    scales: tuple[float, ...] = (1, 0.5)
    pairs: tuple[tuple[int, int], ...] = ()
    kind: Literal["a", "b"] = "a"
    extra: Optional[Path] = None
    mixed: tuple[Union[int, str], ...] = ()
    flip: bool = True
    workers: Union[int, Literal["auto"]] = "auto"
    processes: Union[bool, Literal["auto"]] = "auto"

    def __post_init__(self):
        check_positive(self, "data", "workers")


@dataclass(frozen=True)
class Config:
    run: Run
    data: Data


@pytest.fixture
def yaml_file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text("run: {device: CPU}\ndata: {root: some/where, scales: [1, 1e-1]}\n")
    return path


def test_values_get_the_types_of_their_fields(yaml_file):
    cfg = load_config(Config, yaml_file, ["data.pairs=[[1, 2]]", "data.mixed=[layer2, 5]"])
    assert cfg.data.scales == (1.0, 0.1)
    assert cfg.data.pairs == ((1, 2),)
    assert cfg.data.mixed == ("layer2", 5)


def test_yaml_paths_start_at_the_checkout_and_command_line_paths_at_the_current_folder(
    yaml_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert load_config(Config, yaml_file).data.root == ROOT / "some/where"
    assert load_config(Config, yaml_file, ["data.root=here"]).data.root == tmp_path / "here"
    assert load_config(Config, yaml_file).run.out == ROOT / "out/toy"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.bach=3", "data.bach; nearest: batch"),
        ("data.batch=many", "data.batch must be an integer, not 'many'"),
        ("data.kind=c", "data.kind must be one of a, b"),
        ("data.scales=[x]", r"data.scales\[0\]"),
        ("data.workers=many", "data.workers must be an integer or auto"),
        ("data.workers=-1", "data.workers must be above 0"),
        ("run.log_every=0", "run.log_every"),
        ("data.batch", "--section.key=value"),
    ],
)
def test_a_wrong_override_is_refused_by_name(yaml_file, override, words):
    with pytest.raises(ValueError, match=words):
        load_config(Config, yaml_file, [override])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"run: {}\n", "missing setting data.root"),
        (b"run: {}\ndata: {root: x, butch: 1}\n", "data.butch; nearest: batch"),
        (b"- a\n", "expected sections"),
        (b"run: {device: CPU\n", "not a readable config file"),
        (b"run: {all_reduce: auto}\ndata: {root: x}\n", "run.all_reduce must be"),
        (b"run: {flat_weights: true}\ndata: {root: x}\n", "run.flat_weights"),
    ],
)
def test_a_wrong_yaml_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=words):
        load_config(Config, path)


def test_the_config_of_an_older_run_loads(tmp_path):
    """Its settings of the planner and of packs are null, and flat weights are off."""
    path = tmp_path / "config.yaml"
    old = "cluster: null, gradient_profile: null, flat_weights: false"
    path.write_text(f"run: {{{old}}}\ndata: {{root: x, packed: null}}\n")
    assert load_config(Config, path).run.all_reduce == "none"


@pytest.mark.parametrize(
    ("overrides", "level"),
    [
        (["run.device=CPU"], "O0"),
        (["run.device=CPU", "run.amp=O2"], "O2"),
        (["run.amp=O3", "run.device=CPU"], "O3"),
        (["run.device=GPU"], "O2"),
        ([], "O2"),
    ],
)
def test_a_cpu_computes_in_float32_unless_the_command_line_says_otherwise(
    overrides, level, tmp_path
):
    """Also a run that continues with its own saved settings."""
    path = tmp_path / "toy.yaml"
    copy = tmp_path / "copy.yaml"
    path.write_text("run: {device: Ascend, amp: O2}\ndata: {root: here}\n")
    cfg = load_config(Config, path, overrides)
    assert cfg.run.amp_level == level
    copy.write_text(to_yaml(cfg))
    assert load_config(Config, copy) == cfg
    assert to_dict(load_config(Config, copy)) == to_dict(load_config(Config, path, overrides))
