"""Multiply-adds, activations and parameters of a network for one clip.

    python scripts/analysis/complexity.py
    python scripts/analysis/complexity.py --config_path Y [--layers] [--section.key=value ...]
        [--network x3d]

Without arguments prints a row for every network of the zoo's recipes. Recipes that differ in the
number of classes only have one row, for the most common number. With a recipe prints its row, then
one for every kind of operator, and with --layers one for every layer, in the order of the
forward pass. The counts are of one run in evaluation, on the CPU, of a clip as in training. Bytes:
of the input as uint8; of activations, the outputs of all layers, and of gradients, all trainable
parameters, as float32. The columns `per ...` are multiply-adds for each of these bytes. The last
line of stdout is one JSON object with all numbers.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from utils import cli, runtime
from utils.complexity import LayerCost, count_layers
from utils.files import ROOT
from utils.load_config import load_config
from utils.networks import Network, find_network_of_yaml
from utils.settings import NetworkConfig, Run

COMPUTING = {  # kind of operator: its name in the last column
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
# Arguments that change initial weights, pixels, padding or the classifier only.
UNCOUNTED = ("num_classes", "mean", "std", "fan", "init", "zero_last", "zero_init")
UNCOUNTED += ("dropout", "drop_path", "padding")
# Columns of text, aligned to the left.
TEXTS = ("network", "clip", "layer", "kind", "% of multiply-adds")
SUMS = ("macs", "parameters", "inputs", "outputs")  # of a layer, and over the layers of a kind


def main(network: Network, cfg: NetworkConfig, *, layers: bool = False) -> None:
    runtime.start(Run(device="CPU"))
    costs = count_costs(network, cfg)
    name = cfg.run.out.name
    row = summarize(network.get_input_shape(cfg), costs)
    result = {"network": name, **row}
    print_table(COLUMNS, [[name, *format_row(row)]])
    lines = [[kind, *(f"{n:,}" for n in sums.values())] for kind, sums in row["kinds"].items()]
    print_table(("kind", "layers", *SUMS), lines)
    if layers:
        lines = [[e.name, e.kind, *(f"{getattr(e, key):,}" for key in SUMS)] for e in costs]
        print_table(("layer", "kind", *SUMS), lines)
        result["layers"] = [asdict(layer) for layer in costs]
    print(json.dumps(result))


def print_all_networks() -> None:
    """Prints a row for each network as soon as it is counted."""
    runtime.start(Run(device="CPU"))
    groups = group_yamls()
    rows = []
    widths = [max(len(heading), 11) for heading in COLUMNS]
    widths[:2] = max(len(paths[0].stem) for paths in groups), 14
    print_line(COLUMNS, COLUMNS, widths)
    for paths in groups:
        start = time.monotonic()
        network = find_network_of_yaml(paths[0])
        cfg = load_config(network.config, paths[0])
        row = summarize(network.get_input_shape(cfg), count_costs(network, cfg))
        print_line([paths[0].stem, *format_row(row)], COLUMNS, widths)
        seconds = round(time.monotonic() - start, 1)
        names = [path.stem for path in paths]
        rows.append({"network": names[0], "yamls": names, "seconds": seconds, **row})
    print(json.dumps({"networks": rows}))


def group_yamls() -> list[list[Path]]:
    """The config files of all networks, those of one model and shape of clip together.

    The first of a group has the number of classes that most config files of its network have.
    """
    groups = defaultdict(list)
    classes = {}
    for path in sorted(ROOT.glob("*/configs/*.yaml")):
        network = find_network_of_yaml(path)
        cfg = use_cpu(load_config(network.config, path))
        arguments = cfg.model_arguments()
        classes[path] = (network.name, arguments["num_classes"])
        arguments = {k: v for k, v in sorted(arguments.items()) if k not in UNCOUNTED}
        clip = network.get_input_shape(cfg)
        groups[repr((network.name, clip, arguments))].append(path)
    class_counts = Counter(classes.values())
    return [sorted(paths, key=lambda p: -class_counts[classes[p]]) for paths in groups.values()]


def use_cpu(cfg: NetworkConfig) -> NetworkConfig:
    """The settings for a CPU, which has an implementation of every operator. Counts are equal."""
    return replace(cfg, run=replace(cfg.run, device="CPU"))


def count_costs(network: Network, cfg: NetworkConfig) -> list[LayerCost]:
    net = network.build_model(**use_cpu(cfg).model_arguments())
    return count_layers(net, network.get_input_shape(cfg))


def summarize(clip: tuple[int, ...], layers: Sequence[LayerCost]) -> dict:
    macs, parameters, _, written = (sum(getattr(e, key) for e in layers) for key in SUMS)
    sizes = dict(zip(SIZES, (int(np.prod(clip)), 4 * written, 4 * parameters)))
    return {
        "clip": list(clip),
        "parameters": parameters,
        "multiply_adds": macs,
        **{f"{name}_bytes": size for name, size in sizes.items()},
        **{f"per_{name}_byte": round(macs / size, 2) for name, size in sizes.items()},
        "kinds": sum_kinds(layers),
    }


def sum_kinds(layers: Sequence[LayerCost]) -> dict[str, dict[str, int]]:
    """{kind: number of layers, and sums over them}; kinds with multiply-adds come first."""
    order = [*COMPUTING, *(layer.kind for layer in layers)]
    kinds = sorted({layer.kind for layer in layers}, key=order.index)
    result = {kind: [layer for layer in layers if layer.kind == kind] for kind in kinds}
    return {
        kind: {"layers": len(own), **{key: sum(getattr(e, key) for e in own) for key in SUMS}}
        for kind, own in result.items()
    }


def format_row(row: dict) -> list[str]:
    """The cells of COLUMNS after the name."""
    fractions = [
        f"{name} {100 * row['kinds'][kind]['macs'] / row['multiply_adds']:.1f}"
        for kind, name in COMPUTING.items()
        if kind in row["kinds"] and row["kinds"][kind]["macs"] >= 5e-4 * row["multiply_adds"]
    ]
    return [
        "x".join(str(size) for size in row["clip"]),
        f"{row['parameters']:,}",
        f"{row['multiply_adds'] / 1e9:,.3f}",
        *(f"{row[f'{name}_bytes'] / 1e6:,.3f}" for name in SIZES),
        *(f"{row[f'per_{name}_byte']:,.1f}" for name in SIZES),
        ", ".join(fractions),
    ]


def print_table(heading: Sequence[str], lines: list[list[str]]) -> None:
    """Prints aligned columns and an empty line."""
    widths = [max(len(text) for text in column) for column in zip(heading, *lines)]
    for line in (heading, *lines):
        print_line(line, heading, widths)
    print()


def print_line(line: Sequence[str], heading: Sequence[str], widths: Sequence[int]) -> None:
    """Aligns texts to the left and numbers to the right."""
    texts = [
        f"{text:{'<' if name in TEXTS else '>'}{width}}"
        for text, name, width in zip(line, heading, widths)
    ]
    print("  ".join(texts).rstrip(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        cli.run_for_network(main, __doc__)
    cli.run_command(print_all_networks, __doc__)
