"""What a network computes, moves and holds for one clip.

    python scripts/analysis/complexity.py
    python scripts/analysis/complexity.py --config_path Y [--layers] [--section.key=value ...]
        [--network x3d]

Without arguments a row for every network of the zoo's yaml files; those that differ in the number
of classes only share one, for the number that is the most common. With a yaml its row, then one
for every kind of operator, and with --layers one for every layer, in the order of the forward
pass. Counted is one run in evaluation, on the CPU, of a clip as in training. Bytes: of the input
uint8, as it travels; of activations, what all layers write, and of gradients, all trainable
parameters, float32. The columns `per ...` are multiply-adds for every such byte. The last line of
stdout is one JSON object with all numbers.
"""

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np

from utils import cli, runtime
from utils.config import ROOT, Run, load_config
from utils.networks import Network, find_network_of_yaml, list_networks
from utils.nn.complexity import LayerCost, count_layers

COMPUTING = {  # kind of operator: its name among the shares
    "1x1 convolution": "1x1",
    "spatial convolution": "spatial",
    "temporal convolution": "temporal",
    "3-D convolution": "3-D",
    "depthwise convolution": "depthwise",
    "dense": "dense",
    "attention": "attention",
}
SIZES = ("input", "activation", "gradient")
COLUMNS = ("network", "clip", "parameters", "G mult-adds")
COLUMNS += (*(f"{name} MB" for name in SIZES), *(f"per {name} B" for name in SIZES))
COLUMNS += ("% of multiply-adds",)
# What changes the start, the pixels or the classifier only.
UNCOUNTED = ("num_classes", "mean", "std", "fan", "zero_last", "zero_init", "dropout", "drop_path")
TEXTS = ("network", "clip", "layer", "kind", "% of multiply-adds")  # to the left; numbers are not
SUMS = ("macs", "parameters", "inputs", "outputs")  # of a layer, and over the layers of a kind


def main(network: Network, cfg: Any, *, layers: bool = False) -> None:
    """One network: its row, its kinds, its layers."""
    runtime.start(Run(device="CPU"))
    cfg = on_cpu(cfg)
    results, name = run_once(network, cfg), cfg.run.out.name
    row = figures(network.dataset.get_input_shape(cfg.data), results)
    result = {"network": name, **row}
    show_table(COLUMNS, [[name, *cells(row)]])
    lines = [[kind, *(f"{n:,}" for n in sums.values())] for kind, sums in row["kinds"].items()]
    show_table(("kind", "layers", *SUMS), lines)
    if layers:
        lines = [[e.name, e.kind, *(f"{getattr(e, key):,}" for key in SUMS)] for e in results]
        show_table(("layer", "kind", *SUMS), lines)
        result["layers"] = [asdict(layer) for layer in results]
    print(json.dumps(result))


def every_network() -> None:
    """A row for each network, shown as soon as it is counted."""
    runtime.start(Run(device="CPU"))
    groups, rows = alike(), []
    widths = [max(len(heading), 11) for heading in COLUMNS]
    widths[:2] = max(len(paths[0].stem) for paths in groups), 14
    show_line(COLUMNS, COLUMNS, widths)
    for paths in groups:
        began, (network, cfg) = time.monotonic(), opened(paths[0])
        row = figures(network.dataset.get_input_shape(cfg.data), run_once(network, cfg))
        show_line([paths[0].stem, *cells(row)], COLUMNS, widths)
        seconds, names = round(time.monotonic() - began, 1), [path.stem for path in paths]
        rows.append({"network": names[0], "yamls": names, "seconds": seconds, **row})
    print(json.dumps({"networks": rows}))


def alike() -> list[list[Path]]:
    """The yaml files of all networks, those of one model and shape of clip together.

    First comes the one whose classes are as many as most yaml files of its network have.
    """
    groups, classes = defaultdict(list), {}
    for name in list_networks():
        for path in sorted((ROOT / name / "configs").glob("*.yaml")):
            network, cfg = opened(path)
            arguments = cfg.model_arguments()
            classes[path] = (name, arguments["num_classes"])
            arguments = {k: v for k, v in sorted(arguments.items()) if k not in UNCOUNTED}
            clip = network.dataset.get_input_shape(cfg.data)
            groups[repr((network.name, clip, arguments))].append(path)
    common = Counter(classes.values())
    return [sorted(paths, key=lambda p: -common[classes[p]]) for paths in groups.values()]


def opened(path: Path) -> tuple[str, Any]:
    """(network, configuration) of a yaml file in its network's folder."""
    network = find_network_of_yaml(path)
    return network, on_cpu(load_config(network.config, path))


def on_cpu(cfg: Any) -> Any:
    """Counts are the same on every device; the CPU's forms of the operators are there always."""
    return replace(cfg, run=replace(cfg.run, device="CPU"))


def run_once(network: Network, cfg: Any) -> list[LayerCost]:
    net = network.model.build_network(**cfg.model_arguments())
    return count_layers(net, network.dataset.get_input_shape(cfg.data))


def figures(clip: tuple[int, ...], layers: Sequence[LayerCost]) -> dict:
    """The numbers of a network."""
    macs, parameters, _, written = (sum(getattr(e, key) for e in layers) for key in SUMS)
    sizes = dict(zip(SIZES, (int(np.prod(clip)), 4 * written, 4 * parameters)))
    return {
        "clip": list(clip),
        "parameters": parameters,
        "multiply_adds": macs,
        **{f"{name}_bytes": size for name, size in sizes.items()},
        **{f"per_{name}_byte": round(macs / size, 2) for name, size in sizes.items()},
        "kinds": by_kind(layers),
    }


def by_kind(layers: Sequence[LayerCost]) -> dict[str, dict[str, int]]:
    """{kind: how many layers, and the sums over them}; the kinds that compute come first."""
    order = [*COMPUTING, *(layer.kind for layer in layers)]
    kinds = sorted({layer.kind for layer in layers}, key=order.index)
    result = {kind: [layer for layer in layers if layer.kind == kind] for kind in kinds}
    return {
        kind: {"layers": len(own), **{key: sum(getattr(e, key) for e in own) for key in SUMS}}
        for kind, own in result.items()
    }


def cells(row: dict) -> list[str]:
    """A row as COLUMNS show it, after the name."""
    fractions = {
        COMPUTING[kind]: 100 * sums["macs"] / row["multiply_adds"]
        for kind, sums in row["kinds"].items()
        if kind in COMPUTING
    }
    return [
        "x".join(str(size) for size in row["clip"]),
        f"{row['parameters']:,}",
        f"{row['multiply_adds'] / 1e9:,.3f}",
        *(f"{row[f'{name}_bytes'] / 1e6:,.3f}" for name in SIZES),
        *(f"{row[f'per_{name}_byte']:,.1f}" for name in SIZES),
        ", ".join(
            f"{name} {fraction:.1f}" for name, fraction in fractions.items() if fraction >= 0.05
        ),
    ]


def show_table(heading: Sequence[str], lines: list[list[str]]) -> None:
    """Aligned columns, and an empty line."""
    widths = [max(len(text) for text in column) for column in zip(heading, *lines)]
    for line in (heading, *lines):
        show_line(line, heading, widths)
    print()


def show_line(line: Sequence[str], heading: Sequence[str], widths: Sequence[int]) -> None:
    """Words to the left, numbers to the right."""
    texts = [
        f"{text:{'<' if name in TEXTS else '>'}{width}}"
        for text, name, width in zip(line, heading, widths)
    ]
    print("  ".join(texts).rstrip(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        cli.run_for_network(main, __doc__)
    cli.run_command(every_network, __doc__)
