"""Every `nn` and `ops` name the networks use is documented for Ascend, GPU and CPU."""

import ast
import inspect
import re

import pytest
from mindspore import nn, ops

from utils.command import rooms
from utils.config import ROOT

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
FILES = [
    *[path for room in rooms() for path in (ROOT / room).glob("*.py")],
    *[ROOT / "utils" / name for name in ("layers.py", "train_step.py", "amp.py", "metrics.py")],
    ROOT / "utils" / "optim.py",
]


def used() -> list:
    names = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            owner = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id in ("nn", "ops"):
                names.add(f"{owner.id}.{node.attr}")
    return sorted(names)


@pytest.mark.parametrize("name", used())
def test_an_operator_is_documented_for_every_device(name):
    module, _, attribute = name.partition(".")
    documentation = inspect.getdoc(getattr({"nn": nn, "ops": ops}[module], attribute)) or ""
    found = re.search(r"Supported Platforms:\s*\n(.*)", documentation)
    devices = set(re.findall(r"``(\w+)``", found.group(1))) if found else set()
    assert devices >= {"Ascend", "GPU", "CPU"} or name in REASONS, (name, devices)


def test_no_reason_outlives_its_use():
    assert set(REASONS) <= set(used())
