"""Every `nn` and `ops` name the networks use is documented for Ascend, GPU and CPU.

Primitives of `mindspore.ops.auto_generate` have no such documentation: GENERATED says why each is
used. What a documented name compiles to is for tests/test_dry_run.py.
"""

import ast
import inspect
import re

import pytest
from mindspore import nn, ops

from utils.config import ROOT
from utils.networks import list_networks

# Documented for fewer, or for none; why it is used all the same.
REASONS = {
    "nn.Cell": "a base class, no operator",
    "nn.CellList": "a container",
    "nn.SequentialCell": "a container",
    "nn.Optimizer": "a base class, named in annotations",
    "nn.DistributedGradReducer": "runs on every back end with a collective library",
    "ops.AllReduce": "Ascend and GPU in the text; runs on CPU under msrun, as tests here do",
    "ops.HyperMap": "a composite of the compiler, no operator",
    "ops.partial": "a composite of the compiler, no operator",
}
# Imported from mindspore.ops.auto_generate, and on which devices. Other devices have several
# kernels in their stead.
GENERATED = {
    "BatchNormExt": "Ascend: one kernel forward and one backward, of two each",
    "ConstantPadND": "Ascend: crops and pads in one kernel",
    "GeluExt": "Ascend: one kernel, of six",
    "LayerNormExt": "Ascend: takes float16 with float32 weights",
    "LinalgVectorNorm": "Ascend: one kernel an array, of three",
    "MeanExt": "Ascend: a float32 mean of float16 in one kernel",
    "InplaceMul": "decays a weight in one kernel; elsewhere AdamWeightDecay does",
    "NPUClearFloatStatusV2": "Ascend 910A: its flags of overflow",
    "SplitWithSize": "all: ops.split is a loop, which nests too deeply for hundreds of arrays",
}
FILES = [
    path
    for folder in [*list_networks(), "utils"]
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.parts
]


def used() -> list:
    names = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            owner = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id in ("nn", "ops"):
                names.add(f"{owner.id}.{node.attr}")
    return sorted(names)


def imported_primitives() -> set[str]:
    """What the files import from below mindspore.ops, but for its public names."""
    return {
        alias.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mindspore.ops.")
        for alias in node.names
    }


def documented_devices(name: str) -> set[str]:
    """The devices of "Supported Platforms", also if another function's documentation names them."""
    module, _, attribute = name.partition(".")
    documentation = inspect.getdoc(getattr({"nn": nn, "ops": ops}[module], attribute)) or ""
    result = re.search(r"Supported Platforms:\s*\n(.*)", documentation)
    other = re.search(r"Refer to :func:`mindspore\.((?:nn|ops)\.\w+)`", documentation)
    if other and not result:
        return documented_devices(other[1])
    return set(re.findall(r"``(\w+)``", result[1])) if result else set()


@pytest.mark.parametrize("name", used())
def test_an_operator_is_documented_for_every_device(name):
    assert documented_devices(name) >= {"Ascend", "GPU", "CPU"} or name in REASONS


def test_no_reason_outlives_its_use():
    assert set(REASONS) <= set(used())


def test_every_generated_primitive_has_a_reason():
    assert imported_primitives() == set(GENERATED)
