#!/usr/bin/env python3
"""Multiply-adds, activations and parameters of a network for one clip.

    python scripts/analysis/complexity.py --config_path Y [--section.key=value ...]
        [--network x3d]

Prints a row for the network of a recipe, then one for every kind of operator. The counts are of one
run in evaluation, on the CPU, of a clip as in training. Bytes: of the input as uint8; of
activations, the outputs of all layers, and of gradients, all trainable parameters, as float32. The
columns `per ...` are multiply-adds for each of these bytes. The last line of stdout is one JSON
object with all numbers.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils.entry import prepare_process

prepare_process(__name__)

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from utils import cli, runtime
from utils.complexity import LayerCost, count_layers
from utils.networks import Network
from utils.settings import NetworkConfig, Run

COMPUTING = ("1x1 convolution", "spatial convolution", "temporal convolution", "3-D convolution")
COMPUTING += ("depthwise convolution", "dense", "attention")  # kinds with multiply-adds
SIZES = ("input", "activation", "gradient")
COLUMNS = ("network", "clip", "parameters", "G mult-adds")
COLUMNS += (*(f"{name} MB" for name in SIZES), *(f"per {name} B" for name in SIZES))
SUMS = ("macs", "parameters", "inputs", "outputs")  # of a layer, and over the layers of a kind


def main(network: Network, cfg: NetworkConfig) -> None:
    runtime.start(Run(device="CPU"))
    clip = network.get_input_shape(cfg)
    # A CPU has an implementation of every operator. Counts are equal.
    cfg = replace(cfg, run=replace(cfg.run, device="CPU"))
    costs = count_layers(network.build_model(**cfg.model_arguments()), clip)
    name = cfg.run.out.name
    row = summarize(clip, costs)
    numbers = [row["parameters"], row["multiply_adds"] / 1e9]
    numbers += [row[f"{size}_bytes"] / 1e6 for size in SIZES]
    numbers += [row[f"per_{size}_byte"] for size in SIZES]
    print_table(COLUMNS, [[name, "x".join(map(str, clip)), *numbers]])
    kinds = [[kind, *sums.values()] for kind, sums in row["kinds"].items()]
    print_table(("kind", "layers", *SUMS), kinds)
    print(json.dumps({"network": name, **row}))


def summarize(clip: tuple[int, ...], layers: Sequence[LayerCost]) -> dict:
    order = [*COMPUTING, *(layer.kind for layer in layers)]
    kinds = {}
    for kind in sorted({layer.kind for layer in layers}, key=order.index):
        own = [layer for layer in layers if layer.kind == kind]
        sums = {key: sum(getattr(e, key) for e in own) for key in SUMS}
        kinds[kind] = {"layers": len(own), **sums}
    macs, parameters, _, written = (sum(getattr(e, key) for e in layers) for key in SUMS)
    sizes = dict(zip(SIZES, (int(np.prod(clip)), 4 * written, 4 * parameters)))
    return {
        "clip": list(clip),
        "parameters": parameters,
        "multiply_adds": macs,
        **{f"{name}_bytes": size for name, size in sizes.items()},
        **{f"per_{name}_byte": round(macs / size, 2) for name, size in sizes.items()},
        "kinds": kinds,
    }


def print_table(heading: Sequence[str], rows: list[list]) -> None:
    """Prints aligned columns, texts to the left and numbers to the right, and an empty line."""
    formats = {str: "", int: ",", float: ",.3f"}
    lines = [heading, *([format(value, formats[type(value)]) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    sides = ["<" if isinstance(value, str) else ">" for value in rows[0]]
    for line in lines:
        texts = [f"{text:{side}{width}}" for text, side, width in zip(line, sides, widths)]
        print("  ".join(texts).rstrip())
    print()


if __name__ == "__main__":
    cli.run_for_network(main, __doc__)
