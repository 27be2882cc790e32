"""Dry runs of all recipes for one chip: kernels, memory and AllReduces, as a table.

    python scripts/analysis/dry_run_recipes.py --out FILE.md [--chip ascend910b] [--ranks 8]
        [--only NAME,NAME]

Runs one training step of each recipe of the zoo as scripts/analysis/dry_run.py does, at its full
size: one to six minutes each, hours for all. After each recipe a JSON line is appended to
FILE.jsonl and the table in FILE.md is written anew; the same command goes on where it stopped.
Delete FILE.jsonl to start again. --only takes names of recipes. The last line of stdout is one JSON
object: recipes, failed. Exit status 1 if a step cannot be built or run.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Any, Literal

from scripts.dry_run.simulator import CHIPS, Machine, dry_run
from utils import cli
from utils.files import ROOT, check_outputs, report_write_errors, write_text
from utils.load_config import load_config
from utils.messages import check_choice
from utils.networks import find_network_of_yaml

HEAD = "recipe | precision | clips of a step | kernel launches | peak GB | `run.device_memory`"
HEAD += " | AllReduces | backward kernels after the first AllReduce"


def main(
    *,
    out: Path,
    chip: Literal[tuple(CHIPS)] = "ascend910b",
    ranks: cli.PositiveInt = 8,
    only: str = "",
) -> int:
    recipes = sorted(path for path in ROOT.glob("*/configs/*.yaml") if "_smoke" not in path.stem)
    paths = {path.stem: path for path in recipes}
    names = only.split(",") if only else list(paths)
    for name in names:
        check_choice(name, paths, "name of --only ")
    done = out.with_suffix(".jsonl")
    check_outputs([out])
    with report_write_errors(out, "--out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        lines = done.read_text().splitlines() if done.is_file() else []
    saved = map(json.loads, lines)
    rows = {row["recipe"]: row for row in saved if (row["chip"], row["ranks"]) == (chip, ranks)}
    for name in names:
        if name in rows:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows[name] = run_recipe(paths[name], chip, ranks)
        with report_write_errors(out, "--out"):
            with open(done, "a") as file:
                file.write(json.dumps(rows[name]) + "\n")
            write_text(out, format_table(rows) + "\n", "--out")
    failed = [name for name in names if not rows[name]["finished"]]
    print(format_table(rows))
    print(json.dumps({"recipes": len(names), "failed": failed}))
    return 1 if failed else 0


def run_recipe(path: Path, chip: str, ranks: int) -> dict[str, Any]:
    """The row of a recipe: the summary of its dry run, and the other columns of the table."""
    network = find_network_of_yaml(path)
    cfg = load_config(network.config, path)
    result = dry_run(network.name, cfg, Machine(chip, ranks))
    clips = cfg.data.batch * cfg.data.clips_per_sample
    row = {"recipe": path.stem, "ranks": ranks, "amp": cfg.run.amp, "clips": clips}
    return {**row, "device_memory_gb": cfg.run.device_memory, **result.summary()}


def format_table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [f"| {HEAD} |", "|" + " --- |" * (HEAD.count("|") + 1)]
    for name, row in sorted(rows.items()):
        cells = [f"`{name}`", row["amp"], str(row["clips"])]
        if row["finished"]:
            reduces = row["all_reduces"]
            after = f"{reduces[0]['backward_after']:.0%}" if reduces else "–"
            cells += [f"{row['launches']:,}", f"{row['peak_gb']:.1f}"]
            cells += [f"{row['device_memory_gb']} GB", str(len(reduces)), after]
        else:
            cells += [f"fails: {row['reason']}", *["–"] * 4]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
