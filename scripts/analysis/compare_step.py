"""Compares one training step with a recorded one, layer by layer.

    python scripts/analysis/compare_step.py --config_path Y --record F.npz [--checkpoint_path C]
    python scripts/analysis/compare_step.py --config_path Y --against F.npz [--checkpoint_path C]
    python scripts/analysis/compare_step.py --config_path Y --case
        tsm/tests/golden/tsm_r50_8f_small.json
        [--tolerance 1e-4] [--section.key=value ...]

--record takes one step: the first batch of the config file's data, weights from the checkpoint or
from the seed. It writes batch, weights, activations, loss, gradients and update. --against takes
the same step again, for example on another device, with other settings, or after a change. It
compares batch and weights, then takes both from the record, so that an error in them does not hide
later ones.
--case compares with a golden case; the settings then only choose network and device.

Prints a line for each array: stage, name, relative error. The last line of stdout is one JSON
object: first (stage, name and error of the first beyond the tolerance, or null), largest (by
stage), tolerance.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from dataclasses import replace
from typing import Optional

import numpy as np

from scripts.analysis import step_comparison
from utils import cli, log, runtime
from utils.commands.train import build_training
from utils.networks import Job, Network
from utils.nn import kernels
from utils.settings import NetworkConfig
from utils.testing.golden import find_case, load_case


def main(
    network: Network,
    cfg: NetworkConfig,
    *,
    record: Optional[Path] = None,
    against: Optional[Path] = None,
    case: Optional[Path] = None,
    checkpoint_path: Optional[Path] = None,
    tolerance: float = 1e-4,
) -> None:
    if sum(path is not None for path in (record, against, case)) != 1:
        raise ValueError("give one of --record, --against, --case")
    # A difference of 1e-4 would otherwise be that of HF32 or TF32, which devices use by default.
    cfg = replace(cfg, run=replace(cfg.run, tf32=False))
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    if case:
        golden = find_case(network.name, read_case(case))
        with kernels.use(kernels.select(cfg.run.device)):
            differences = step_comparison.compare_with_case(golden)
        return report(differences, tolerance)
    step, clip, target = build_first_step(network, cfg=cfg, rt=rt, path=checkpoint_path)
    if record:
        arrays = step_comparison.record_step(step, clip, target)
        step_comparison.save_record(record, arrays)
        print(json.dumps({"record": str(record), "entries": len(arrays)}))
        return None
    recorded = step_comparison.load_record(against)
    weights = step_comparison.copy_weights(step.net)
    own = {f"weights/{name}": value for name, value in weights.items()}
    recorded_weights = {key: value for key, value in recorded.items() if key.startswith("weights/")}
    if {key: v.shape for key, v in recorded_weights.items()} != {
        key: v.shape for key, v in own.items()
    }:
        raise ValueError("--against: the record is of another network, or of other classes")
    own.update({"data/clip": clip, "data/target": target})
    step_comparison.set_weights(
        step.net, {name: recorded_weights[f"weights/{name}"] for name in weights}
    )
    arrays = step_comparison.record_step(step, recorded["data/clip"], recorded["data/target"])
    return report(step_comparison.compare_records({**arrays, **own}, recorded), tolerance)


def read_case(path: Path) -> dict:
    try:
        return load_case(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--case: {path} is not a golden case: {error}") from None


def build_first_step(
    network: Network, cfg: NetworkConfig, rt: runtime.Runtime, path: Optional[Path]
) -> tuple:
    """(train step, clip, target): the config file's network and the first batch of its data."""
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, rt)
    if path:
        cfg = replace(cfg, train=replace(cfg.train, pretrained=path))
    step = build_training(Job(network, cfg, rt), sampler).step
    source = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    rows = source.dataset().create_tuple_iterator(num_epochs=1, output_numpy=True)
    return step, *next(iter(rows))


def report(result: list[step_comparison.Difference], tolerance: float) -> None:
    earliest = None
    largest = {}
    for item in result:
        is_beyond = not item.error <= tolerance
        if is_beyond and not earliest:
            earliest = {**item._asdict(), "error": round_error(item.error)}
        largest[item.stage] = max(largest.get(item.stage, 0.0), item.error)
        print(f"{item.stage:10s} {item.error:10.3e} {'>' if is_beyond else ' '} {item.name}")
    largest = {stage: round_error(error) for stage, error in largest.items()}
    print(json.dumps({"first": earliest, "largest": largest, "tolerance": tolerance}))


def round_error(error: float) -> Optional[float]:
    """The error to three digits; None for infinity and NaN, which JSON lacks."""
    return float(f"{error:.3g}") if np.isfinite(error) else None


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
