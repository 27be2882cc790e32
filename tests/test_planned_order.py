"""Plans by the execution order of a dry run: AllReduces start at the planned positions."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from scripts.analysis.plan_allreduce import RANKS
from scripts.dry_run import stub_libraries
from scripts.dry_run.simulator import Machine, dry_run
from tests.helpers import read_rows, run_json
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import find_network

MISSING = stub_libraries.explain_missing()
needs_dry_run = pytest.mark.skipif(bool(MISSING), reason=MISSING or "a dry run is possible")
CONFIG = ROOT / "tsm" / "configs" / "tsm_smoke.yaml"
CHIP = "ascend910b"
NETWORK = ["--bandwidth=0.01", "--latency=20", "--cluster={devices_per_node: 4, tflops: 0.02}"]
# A fraction of the backward kernels: 2 of the 226 of TSM. MindSpore 2.10 has the same order with an
# AllReduce for each gradient; another version may move a kernel past one. Segments differ by more
# than twice the tolerance.
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a plan of the smoke recipe for 8 devices, in the order of a dry run."""
    folder = tmp_path_factory.mktemp("planned")
    arguments = ["--config_path", CONFIG, "--run.amp=O2", f"--out={folder}", *NETWORK]
    arguments += [f"--devices={RANKS}", f"--chip={CHIP}"]
    result = run_json("scripts/analysis/plan_allreduce.py", *arguments)
    (folder / "split.yaml").write_text(result["yaml"])
    return folder


def read_plan(folder: Path) -> list[float]:
    """The positions of the segments of the best split, 0..1, in the order in which they are sent.

    A position is that of `ready`, when the AllReduce is queued; `begin` includes the wait for the
    channel.
    """
    rows = read_rows(folder / "plan.csv")
    step = max(float(row["ready_ms"]) for row in rows)
    forward = step / 3  # of counted operations
    times = [float(row["ready_ms"]) for row in rows if row["split"] == "best"]
    return [(ready - forward) / (step - forward) for ready in times]


@pytest.mark.slow
@needs_dry_run
def test_every_planned_segment_starts_at_its_planned_position(folder):
    """The last AllReduce has the metrics and the overflow flag."""
    planned = read_plan(folder)
    ends = yaml.safe_load((folder / "split.yaml").read_text())["run"]["all_reduce"]
    overrides = ["run.amp=O2", f"run.all_reduce=[{', '.join(ends)}]"]
    cfg = load_config(find_network("tsm").config, CONFIG, overrides)
    result = dry_run("tsm", cfg=cfg, machine=Machine(CHIP, RANKS))
    assert result.finished, result.reason
    started = [1 - after for after in result.all_reduces.values()]
    assert len(planned) > 2
    np.testing.assert_allclose(started, [*planned, 1.0], atol=TOLERANCE)
    assert np.diff(planned).min() > 2 * TOLERANCE
