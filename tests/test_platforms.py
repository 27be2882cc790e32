"""Every `nn` and `ops` name that the networks use is documented for Ascend, GPU and CPU.

tests/test_dry_run.py checks the compiled kernels.
"""

import ast
import inspect
import re
from pathlib import Path

from mindspore import nn, ops

from utils.files import ROOT
from utils.networks import list_networks

# Names documented for fewer devices or none, with the reason to use them.
REASONS = {
    "nn.Cell": "a base class, no operator",
    "nn.CellList": "a container",
    "nn.SequentialCell": "a container",
    "nn.Optimizer": "a base class, named in annotations",
    "ops.AllGather": "documented for Ascend and GPU; tests run it on CPU under msrun",
    "ops.AllReduce": "as AllGather",
    "ops.HyperMap": "a composite of the compiler, no operator",
    "ops.partial": "a composite of the compiler, no operator",
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


def list_operators(path: Path) -> set[str]:
    """The names of `nn` and `ops` in a file."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if type(node) is ast.Attribute]
    return {ast.unparse(node) for node in nodes if ast.unparse(node.value) in ("nn", "ops")}


def test_operators_are_documented_for_every_device():
    folders = [ROOT / name for name in (*list_networks(), "utils")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    names = set().union(*(list_operators(path) for path in files if "tests" not in path.parts))
    assert len(names) > 50
    devices = {name: read_documented_devices(name) for name in names - set(REASONS)}
    assert not {name for name in devices if not devices[name] >= {"Ascend", "GPU", "CPU"}}
