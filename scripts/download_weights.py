#!/usr/bin/env python3
"""Lists published weights; downloads, checks and converts those that are named.

    python scripts/download_weights.py [NAME ...]

Without NAME, prints a table: name, network, published accuracy with its views (clips x crops),
recipe with settings, size (- if unknown), licence, source; then the page of each source. A named
file is downloaded to `weights/downloads`, and converted to `weights/NAME.ckpt`.
Prints the command that evaluates it or, for a network of ImageNet, trains from it. The last line of
stdout is then one JSON object, {name: checkpoint}. Interrupted downloads are continued. The table
is in `utils/weights/published.yaml`; docs/weights.md has proxies, mirrors and checks.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from typing import Optional

from utils import cli
from utils.weights.preparation import describe_use, prepare
from utils.weights.published import find_published, list_published

HEAD = ("name", "network", "published", "recipe", "MiB", "licence", "source")


def main(names: Optional[list[str]] = None) -> None:
    if not names:
        entries = list(list_published().values())
        rows = [HEAD]
        for entry in entries:
            recipe = " ".join([Path(entry.recipe).stem, *entry.settings]) or f"none: {entry.unused}"
            recipe = f"{'start of ' * entry.start}{recipe}"
            size = f"{entry.size:.0f}" if entry.size else "-"
            by_hand = " (by hand)" if entry.link else ""
            about = (entry.name, entry.network or "-", entry.published or "-")
            rows.append((*about, recipe, size, entry.licence, f"{entry.source}{by_hand}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:
            print("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip())
        for source, page in {entry.source: entry.page for entry in entries}.items():
            print(f"{source}: {page}")
        return
    entries = [find_published(name) for name in names]
    for entry in entries:
        prepare(entry.name)
        print(describe_use(entry))
    print(json.dumps({entry.name: str(entry.checkpoint) for entry in entries}))


if __name__ == "__main__":
    cli.run_command(main, __doc__)
