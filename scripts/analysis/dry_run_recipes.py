"""Dry runs of all recipes for one chip: kernels, memory and AllReduces, as a table.

    python scripts/analysis/dry_run_recipes.py --out FILE.md [--chip ascend910b] [--ranks 8]
        [--only NAME,NAME]

Runs one training step of each yaml of the zoo as scripts/analysis/dry_run.py does, at its full
size: one to six minutes each, hours for all. After each recipe a JSON line is appended to
FILE.jsonl and the table in FILE.md is written anew; the same command goes on where it stopped.
Delete FILE.jsonl to start again. --only takes names of yamls. The last line of stdout is one JSON
object: recipes, failed. Exit status 1 if a step cannot be built or run.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli
from utils.config import ROOT, get_base_folder, load_config
from utils.files import report_write_errors, write_text
from utils.messages import check_choice
from utils.networks import find_network_of_yaml
from utils.simulation.dry_run import choose_ranks, dry_run

SMOKE = "_smoke"
HEAD = (
    "recipe",
    "precision",
    "clips of a step",
    "kernel launches",
    "peak GB",
    "`run.device_memory`",
) + ("AllReduces", "backward kernels after the first AllReduce")


def main(*, out: Path, chip: str = "ascend910b", ranks: cli.PositiveInt = 8, only: str = "") -> int:
    paths = {path.stem: path for path in list_recipes()}
    names = only.split(",") if only else list(paths)
    for name in names:
        check_choice(name, paths, "name of --only ")
    rows = {}
    with report_write_errors(out, "--out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        for row in read_rows(out.with_suffix(".jsonl")):
            if (row["chip"], row["ranks"]) == (chip, ranks):
                rows[row["recipe"]] = row
    for name in names:
        if name in rows:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows[name] = run_recipe(paths[name], chip, ranks)
        with report_write_errors(out, "--out"):
            with open(out.with_suffix(".jsonl"), "a") as file:
                file.write(json.dumps(rows[name]) + "\n")
            write_text(out, "\n".join(list_lines(rows)) + "\n")
    failed = [name for name in names if not rows[name]["finished"]]
    print("\n".join(list_lines(rows)))
    print(json.dumps({"recipes": len(names), "failed": failed}))
    return 1 if failed else 0


def list_recipes() -> list[Path]:
    """The yamls of all networks, but for those of the quickstart."""
    return sorted(path for path in ROOT.glob("*/configs/*.yaml") if SMOKE not in path.stem)


def run_recipe(path: Path, chip: str, ranks: int) -> dict[str, Any]:
    """The row of a recipe: the summary of its dry run, and what the table says beside it."""
    network = find_network_of_yaml(path)
    cfg = load_config(network.config, path)
    cache = get_base_folder() / ".cache" / "dry_run"
    simulated = choose_ranks(cfg.run.cluster, ranks)
    result = dry_run(network.name, path, [], chip, cache, ranks=simulated)
    clips = cfg.data.batch * getattr(cfg.data, "repeated_aug", 1)
    row = {"recipe": path.stem, "ranks": ranks, "amp": cfg.run.amp, "clips": clips}
    return {**row, "device_memory_gb": cfg.run.device_memory, **result.summary()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that an earlier run of this command has written; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def list_lines(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The table in Markdown."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|" + " --- |" * len(HEAD)
    for name in sorted(rows):
        row = rows[name]
        shown = [f"`{name}`", row["amp"], str(row["clips"])]
        if row["finished"]:
            reduces = row["all_reduces"]
            after = f"{reduces[0]['backward_after']:.0%}" if reduces else "–"
            shown += [f"{row['launches']:,}", f"{row['peak_gb']:.1f}"]
            shown += [f"{row['device_memory_gb']} GB", str(len(reduces)), after]
        else:
            shown += [f"fails: {row['reason']}", *["–"] * 4]
        yield f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    cli.run_command(main, __doc__)
