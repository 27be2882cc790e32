"""`train.sync_batch_norm`: two ranks train as one rank with their batches together."""

import numpy as np
import pytest
from mindspore import nn

from scripts.analysis.build_networks import build_train_step
from tests.helpers import load_smoke_config, run_script
from tests.sync_norm_worker import CASES
from utils.files import ROOT
from utils.runtime import Runtime
from utils.tests.parity import mark_slow_except

WORKER = "tests/sync_norm_worker.py"


@pytest.mark.parametrize("case", mark_slow_except(CASES, "tsm"))
def test_two_ranks_equal_one_with_twice_the_batch(case, tmp_path):
    """Losses, weights and statistics, also where scales are 1 and shifts 0 at the beginning.

    Statistics of each device would change them by more than 5e-3.
    """
    for command in ([WORKER], ["scripts/launch.py", "2", ROOT / WORKER]):
        done = run_script(*command, tmp_path, case)
        assert done.returncode == 0, done.stderr
    names = ("0_of_1", "0_of_2", "1_of_2")
    alone, *ranks = [np.load(tmp_path / f"rank_{name}.npz") for name in names]
    limit = 3e-3 if case == "tsm amp" else 1e-6  # of float16
    assert len(alone.files) > 100
    for name in alone.files:
        first, second = (rank[name] for rank in ranks)
        np.testing.assert_array_equal(first, second, err_msg=name)
        np.testing.assert_allclose(first, alone[name], rtol=limit, atol=limit, err_msg=name)


def test_one_device_keeps_its_operators():
    operators = []
    for setting in ("true", "false"):
        cfg = load_smoke_config("tsm", f"train.sync_batch_norm={setting}")
        net = build_train_step("tsm", cfg, Runtime()).net
        norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
        operators.append([type(norm.bn_train) for norm in norms])
    assert operators[0] == operators[1]


@pytest.mark.parametrize(
    ("network", "settings"),
    [("mvit_multi", []), ("tsm", ["train.batch_norm=frozen"]), ("x3d", ["train.freeze=backbone"])],
)
def test_a_network_that_trains_no_batch_norm_is_refused(network, settings):
    cfg = load_smoke_config(network, "train.sync_batch_norm=true", *settings)
    with pytest.raises(ValueError, match=r"train\.sync_batch_norm"):
        build_train_step(network, cfg, Runtime())
