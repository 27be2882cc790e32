"""Shows, layer by layer, where one training step parts from a recorded one.

    python scripts/analysis/compare_step.py --config_path Y --record F.npz [--checkpoint_path C]
    python scripts/analysis/compare_step.py --config_path Y --against F.npz [--checkpoint_path C]
    python scripts/analysis/compare_step.py --config_path Y --case
        tsm/tests/golden/tsm_r50_8f_small.json
        [--recipe "head_lr_mult=1"] [--tolerance 1e-4] [--section.key=value ...]

--record takes one step of the yaml: the first batch of its data, weights from the checkpoint, or
from the seed; and writes batch, weights, activations, loss, gradients and update. --against takes
the same step again, on another device, with other settings, after a change: batch and weights are
compared, and then taken from the record, so that every later stage is judged alone. --case compares
with a golden case (yaml and settings say only which network and device); --recipe replays it with
other settings, named in RECIPE of the network's golden.py, so that what they change stands out.

Prints a line for everything: stage, name, relative error. The last line of stdout is one JSON
object: first (stage, name and error of the first beyond the tolerance, or null), largest (by
stage), tolerance.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np
from mindspore import Tensor

from utils import cli, log, runtime
from utils.networks import Network
from utils.testing import step_comparison
from utils.testing.golden import load_case
from utils.weights import checkpoint


def main(
    network: Network,
    cfg,
    *,
    record: Optional[Path] = None,
    against: Optional[Path] = None,
    case: Optional[Path] = None,
    checkpoint_path: Optional[Path] = None,
    tolerance: float = 1e-4,
    recipe: str = "",
) -> None:
    if sum(path is not None for path in (record, against, case)) != 1:
        raise ValueError("give one of --record, --against, --case")
    if recipe and not case:
        raise ValueError("--recipe changes a golden case: it needs --case")
    # A difference of 1e-4 would otherwise be that of HF32 or TF32, which devices use by default.
    cfg = replace(cfg, run=replace(cfg.run, tf32=False))
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    if case:
        golden = network.golden_case
        changed = step_comparison.change_recipe(read_case(case), golden, recipe)
        return report(step_comparison.against_case(changed, golden), tolerance)
    step, clip, target = first_step(network, cfg, rt, checkpoint_path)
    if record:
        taken = step_comparison.take_step(step, clip, target)
        step_comparison.save_record(record, taken)
        print(json.dumps({"record": str(record), "entries": len(taken)}))
        return None
    recorded = step_comparison.load_record(against)
    own = {"data/clip": clip, "data/target": target}
    own.update({f"weights/{n}": v for n, v in step_comparison.weights_values(step.net).items()})
    put_weights(step, recorded)
    taken = step_comparison.take_step(step, recorded["data/clip"], recorded["data/target"])
    return report(step_comparison.differences({**taken, **own}, recorded), tolerance)


def read_case(path: Path) -> dict:
    try:
        return load_case(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--case: {path} is no golden case: {error}") from None


def first_step(network: Network, cfg, rt: runtime.Runtime, path: Optional[Path]) -> tuple:
    """(train step, clip, target): the yaml's network and the first batch of its data."""
    dataset = network.dataset
    records = dataset.read_records(cfg, "train")
    order = dataset.build_train_sampler(cfg, records, rt)
    if path:
        cfg = replace(cfg, train=replace(cfg.train, pretrained=path))
    step = network.train.build(cfg, rt, order).step
    source = dataset.TrainSource(records, cfg, order, 1, 0)
    rows = source.dataset().create_tuple_iterator(num_epochs=1, output_numpy=True)
    clip, target = next(iter(rows))
    return step, clip, target


def put_weights(step, recorded: dict) -> None:
    """The recorded weights; ValueError where they are another network's."""
    wanted = checkpoint.weights_of(step.net)
    result = {n[len("weights/") :]: v for n, v in recorded.items() if n.startswith("weights/")}
    shapes = {name: tuple(p.shape) for name, p in wanted.items()}
    if {name: v.shape for name, v in result.items()} != shapes:
        raise ValueError("--against: the record is of another network, or of other classes")
    for name, parameter in wanted.items():
        parameter.set_data(Tensor(result[name], parameter.dtype))


def report(result: list[step_comparison.Difference], limit: float) -> None:
    """A line for everything, then the JSON line."""
    first, largest = None, {}
    for each in result:
        beyond = not each.error <= limit
        first = first or (each if beyond else None)
        largest[each.stage] = max(largest.get(each.stage, 0.0), each.error)
        print(f"{each.stage:10s} {each.error:10.3e} {'>' if beyond else ' '} {each.name}")
    largest = {stage: rounded(error) for stage, error in largest.items()}
    named = {**first._asdict(), "error": rounded(first.error)} if first else None
    print(json.dumps({"first": named, "largest": largest, "tolerance": limit}))


def rounded(error: float) -> Optional[float]:
    """Three digits; None for what has no number."""
    return float(f"{error:.3g}") if np.isfinite(error) else None


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
