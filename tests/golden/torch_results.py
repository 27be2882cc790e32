"""Computes the results of golden cases with PyTorch, for `<network>/tests/golden/reference.py`.

A golden case holds settings, the seed and the shape of an input, and results: scores, activations
(`taps`), the loss, and L2 norms of gradients and buffers; a key that ends in 64 is in float64. It
holds no weights: each array is made from its name and shape by
`tests.golden_cases.generate_weight`.

A case lists the results that it keeps. To add one to `variants.json`, write it with null for each
result, and with {point: null} and {parameter: null} in `taps`, `grad_norm` and `buffers`.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.torch.parts import set_training
from tests.golden_cases import generate_input, generate_weight

PRECISIONS = MappingProxyType({"": torch.float32, "64": torch.float64})
# Largest relative differences of results, by suffix. In float32 rounding switches units that lie
# near zero before a ReLU; gradients behind them change by percents. Rounding differs between
# processors: with AVX2 instead of AVX-512 a gradient of the large X3D differs by 15 %.
TOLERANCES = MappingProxyType({"": 0.2, "64": 1e-6})


def fill_weights(
    net: nn.Module, rename=str, scale: Mapping[str, float] = MappingProxyType({})
) -> nn.Module:
    """The network with the weights of a golden case.

    `rename` gives the name of a parameter in a published file. `scale` is {part of a name: factor}
    for arrays that are multiplied.
    """
    state = {}
    for name, value in net.state_dict().items():
        factor = prod(factor for part, factor in scale.items() if part in name)
        weight = generate_weight(rename(name), tuple(value.shape))
        state[name] = factor * torch.from_numpy(weight)
    net.load_state_dict(state)
    return net


def read_input(case: dict, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(generate_input(case["input_seed"], case["input_shape"])).to(dtype)


def compute_results(
    case: dict,
    build: Callable[[dict], nn.Module],
    compute_losses: Callable[[dict, Any], dict],
    evaluate: Callable[[nn.Module, Tensor], dict] = lambda net, clip: {"logits": net(clip)},
    precisions: Mapping[str, torch.dtype] = PRECISIONS,
) -> dict:
    """The results `eval` and `train` of a case.

    `build` makes the network of a case with its weights. `compute_losses` takes a case and the
    outputs in training; the gradients are those of its `loss`. `evaluate` gives scores by key.
    `precisions` gives the type for each suffix of the results.
    """
    results: dict = {"eval": {}, "train": {}}
    for suffix, dtype in precisions.items():
        net = build(case).to(dtype).eval()
        clip = read_input(case, dtype)
        taps = record_activations(net, case["eval"].get("taps", ()))
        with torch.no_grad():
            results["eval"].update(add_suffix(evaluate(net, clip), suffix))
        results["eval"].setdefault("taps", {name: summarize(x) for name, x in taps.items()})
        if "train" in case:
            net = build(case).to(dtype)
            trained = train_once(net, clip=clip, case=case, compute_losses=compute_losses)
            results["train"].update(add_suffix(trained, suffix))
    gradients = results["train"].get("grad_norm64", {})
    results["train"]["trainable_tensors"] = len(gradients)
    limit = 1e-9 * max(gradients.values(), default=0.0)
    results["train"]["zero_grad"] = [name for name, norm in gradients.items() if norm < limit]
    return results


def train_once(net: nn.Module, clip: Tensor, case: dict, compute_losses: Callable) -> dict:
    """Losses, and norms of gradients and buffers, of one forward and backward pass.

    Batch norms use the statistics of the batch; there is no dropout.
    """
    set_training(net, True)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    before = {name: value.clone() for name, value in net.named_buffers()}
    losses = compute_losses(case, net(clip))
    losses["loss"].backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    buffers = {name: value for name, value in net.named_buffers() if name in net.state_dict()}
    return {
        **losses,
        "grad_norm": {name: value.double().norm() for name, value in gradients.items()},
        "buffers": {name: value.double().norm() for name, value in buffers.items()},
        "changed_buffers": [n for n, value in buffers.items() if not value.equal(before[n])],
    }


def record_activations(net: nn.Module, points: Iterable[str]) -> dict[str, Tensor]:
    """A dict that a forward pass fills: copies of the outputs of modules by name.

    A point `NAME (input after ...)` is the input of the module that NAME wraps as `net`.
    """
    taps: dict[str, Tensor] = {}
    modules = dict(net.named_modules())
    for point in points:
        name, _, is_input = point.partition(" (input")
        if is_input:
            modules[f"{name}.net"].register_forward_pre_hook(
                lambda _, inputs, point=point: taps.update({point: inputs[0].clone()})
            )
        elif (
            name in modules
        ):  # else the original recorded a module that the PyTorch reference has not
            modules[name].register_forward_hook(
                lambda _, __, output, point=point: taps.update(
                    # Blocks of MViT return tokens and their grid.
                    {point: (output[0] if isinstance(output, tuple) else output).clone()}
                )
            )
    return taps


def summarize(x: Tensor) -> dict:
    """What a case keeps of an activation; the deviation is that of the population."""
    x = x.double()
    numbers = {"mean": x.mean(), "std": x.std(correction=0), "first": x.flatten()[:8]}
    return {"shape": list(x.shape), **{key: to_digits(v, 9) for key, v in numbers.items()}}


def add_suffix(results: dict, suffix: str) -> dict:
    """Results for a file: keys with the suffix, numbers with the digits of their precision."""
    return {key + suffix: to_digits(v, 13 if suffix else 9) for key, v in results.items()}


def to_digits(values, count: int):
    """Nested lists and dicts of floats of `count` digits; other values unchanged."""
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, dict):
        return {key: to_digits(value, count) for key, value in values.items()}
    if isinstance(values, list):
        return [to_digits(value, count) for value in values]
    return float(f"{values:.{count}g}") if isinstance(values, float) else values


def update_case(recorded, computed):
    """`recorded` with the results of `computed` for the keys that both have."""
    if not isinstance(recorded, dict) or not isinstance(computed, dict):
        return computed
    return {k: update_case(v, computed[k]) if k in computed else v for k, v in recorded.items()}


def list_differences(recorded, computed, key: str = "", floor: float = 0.0):
    """(key, relative difference) of all results that differ; infinite for text and shapes.

    A number below `floor` counts as `floor`: norms that are zero in exact arithmetic are noise.
    """
    if isinstance(recorded, dict):
        floor = max((1e-4 * v for v in recorded.values() if isinstance(v, float)), default=0.0)
        for name, value in recorded.items():
            yield from list_differences(
                value, computed=computed[name], key=f"{key}/{name}", floor=floor
            )
    elif isinstance(recorded, list) and recorded and isinstance(recorded[0], str):
        if sorted(recorded) != sorted(computed):  # names, in any order
            yield key, np.inf
    elif recorded != computed:
        expected = np.array(recorded)
        result = np.array(computed)
        if expected.dtype.kind == "f" and expected.shape == result.shape:
            size = max(np.abs(expected).max(), floor)
            yield key, float(np.abs(result - expected).max() / size)
        else:
            yield key, np.inf


def check_case(name: str, case: dict, computed: dict) -> None:
    """Prints the largest differences; ValueError if one is beyond its tolerance."""
    for suffix, tolerance in TOLERANCES.items():
        differences = list(list_differences(case, computed))
        differences = [(d, key) for key, d in differences if ("64" in key) == bool(suffix)]
        worst, key = max(differences, default=(0.0, ""))
        print(f"{name}: {'float64' if suffix else 'float32'} {worst:.2g} {key}", flush=True)
        if not worst <= tolerance:
            raise ValueError(f"{name}{key}: differs by {worst:.2g}, more than {tolerance:g}")


def update_cases(
    doc: str, folder: Path, compute_case: Callable[[dict], dict], originals: Sequence[str]
) -> bool:
    """Recomputes `variants.json`; whether the other files are to be written too.

    First the files `originals`, which the code of the authors wrote, are reproduced. With the
    option --check `variants.json` is compared too, and nothing is written.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare; write nothing")
    is_check = parser.parse_args().check
    torch.set_num_threads(1)
    for name in originals:
        case = json.loads((folder / f"{name}.json").read_text())
        check_case(name, case, update_case(case, compute_case(case)))
    path = folder / "variants.json"
    cases = json.loads(path.read_text())
    for key, case in enumerate(cases) if isinstance(cases, list) else cases.items():
        computed = update_case(case, compute_case(case))
        if is_check:
            check_case(case.get("name", key), case, computed)
        cases[key] = computed
    if not is_check:
        path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    return not is_check
