"""Every `nn` and `ops` name that the networks use is documented for Ascend, GPU and CPU.

tests/test_dry_run.py checks the compiled kernels.
"""

import ast
import inspect
import re

import pytest
from mindspore import nn, ops

from utils.files import ROOT
from utils.networks import list_networks

# Names documented for fewer devices or none, with the reason to use them.
REASONS = {
    "nn.Cell": "a base class, no operator",
    "nn.CellList": "a container",
    "nn.SequentialCell": "a container",
    "nn.Optimizer": "a base class, named in annotations",
    "ops.AllReduce": "documented for Ascend and GPU; tests run it on CPU under msrun",
    "ops.HyperMap": "a composite of the compiler, no operator",
    "ops.partial": "a composite of the compiler, no operator",
}
TREES = [
    ast.parse(path.read_text())
    for folder in [*list_networks(), "utils"]
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.parts
]
NODES = [node for tree in TREES for node in ast.walk(tree)]
USED = {
    f"{node.value.id}.{node.attr}"
    for node in NODES
    if isinstance(node, ast.Attribute)
    and isinstance(node.value, ast.Name)
    and node.value.id in ("nn", "ops")
}


def read_documented_devices(name: str) -> set[str]:
    """The devices of "Supported Platforms", also of a function that the documentation refers to."""
    module, _, attribute = name.partition(".")
    documentation = inspect.getdoc(getattr({"nn": nn, "ops": ops}[module], attribute)) or ""
    result = re.search(r"Supported Platforms:\s*\n(.*)", documentation)
    other = re.search(r"Refer to :func:`mindspore\.((?:nn|ops)\.\w+)`", documentation)
    if other and not result:
        return read_documented_devices(other[1])
    return set(re.findall(r"``(\w+)``", result[1])) if result else set()


@pytest.mark.parametrize("name", sorted(USED))
def test_an_operator_is_documented_for_every_device(name):
    assert read_documented_devices(name) >= {"Ascend", "GPU", "CPU"} or name in REASONS
