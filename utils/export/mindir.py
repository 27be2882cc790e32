"""MINDIR files read as protobuf: what they take and give, their operators, weights, constants.

MindSpore writes one node for an operator, named `REF::<primitive>`, one named `Constant` for a
number, tuple or tensor, and gives every node the shape of what it computes, -1 where that is free.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mindspore.train.mind_ir_pb2 import ModelProto

from utils.config import one_line
from utils.files import escape_control

# The numbers of protobuf's types, the same in ONNX.
DTYPES = {1: "float32", 2: "uint8", 6: "int32", 7: "int64", 9: "bool", 10: "float16"}


class Array(NamedTuple):
    """An input, an output or what a node computes; a free axis is -1."""

    name: str
    dtype: int
    shape: tuple[int, ...]


class Node(NamedTuple):
    """An operator: settings by name; `first` is its only output, or the first of several.

    `kind` is the primitive's name; a call of another graph (a branch, a loop) has its own.
    """

    kind: str
    inputs: tuple[str, ...]
    settings: dict[str, Any]
    first: Array


class Graph(NamedTuple):
    """Names in it are unique; `weights` and `constants` have those that the nodes read."""

    inputs: list[Array]
    outputs: list[Array]
    weights: dict[str, np.ndarray]
    constants: dict[str, Any]
    nodes: list[Node]
    info: dict[str, str]


class Free(NamedTuple):
    """A size that is `times` the batch."""

    times: int


class Repeated(NamedTuple):
    """An array that is `part` over and over along an axis, once for every sample."""

    part: np.ndarray
    axis: int


def read(path: Path) -> Graph:
    """Raises ValueError where the file is missing or no MINDIR."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file")
    try:
        return parse(path.read_bytes())
    except Exception as error:  # noqa: BLE001 protobuf's own, and all that a damaged file brings
        raise ValueError(f"{path}: not a readable MINDIR: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """The beginning of what the framework says of a stranger's file, printable."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return escape_control(kind + one_line(error))[:120]


def parse(content: bytes) -> Graph:
    model = ModelProto()
    model.ParseFromString(content)
    graph = model.graph
    ends = [*graph.input, *graph.output]
    if not graph.input or not graph.output or not all(each.tensor[0].dims for each in ends):
        raise ValueError("it has no input or no output")
    primitives = {f"REF::{each.name}": each for each in model.primitives}
    return Graph(
        inputs=[array(each.name, each.tensor[0]) for each in graph.input],
        outputs=[array(each.name, each.tensor[0]) for each in graph.output],
        weights={each.name: numbers(each) for each in graph.parameter},
        constants={
            node.output[0]: value(node.attribute[0])
            for node in graph.node
            if node.op_type == "Constant"
        },
        nodes=[
            operator(node, primitives.get(node.op_type))
            for node in graph.node
            if node.op_type != "Constant"
        ],
        info=notes(model),
    )


def notes(model: ModelProto) -> dict[str, str]:
    entries = model.user_info
    if hasattr(entries, "update"):
        return dict(entries)
    return {each.key: each.value for each in entries}  # MindSpore 2.9's module knows no maps


def note(model: ModelProto, info: dict[str, str]) -> None:
    if hasattr(model.user_info, "update"):
        model.user_info.update(info)
        return
    for key, text in info.items():
        model.user_info.add(key=key, value=text)


def merged(small: Graph, large: Graph) -> Graph:
    """A graph whose batch is free, from the same network's graphs with two batches.

    What differs between them follows the batch: a size, or how often an array repeats itself.
    Raises ValueError where something else differs.
    """
    batches = small.inputs[0].shape[0], large.inputs[0].shape[0]
    pairs = list(zip(small.nodes, large.nodes))
    same = len(small.nodes) == len(large.nodes) and len(small.constants) == len(large.constants)
    if not same or any((a.kind, a.settings) != (b.kind, b.settings) for a, b in pairs):
        raise ValueError("--batch free: the network has another graph with another batch")
    constants = zip(small.constants.items(), large.constants.values())
    return small._replace(
        inputs=[opened(a, b) for a, b in zip(small.inputs, large.inputs)],
        outputs=[opened(a, b) for a, b in zip(small.outputs, large.outputs)],
        constants={name: one(a, b, batches) for (name, a), b in constants},
        nodes=[a._replace(first=opened(a.first, b.first)) for a, b in pairs],
    )


def opened(a: Array, b: Array) -> Array:
    shape = tuple(size if size == other else -1 for size, other in zip(a.shape, b.shape))
    return a._replace(shape=shape)


def one(a: Any, b: Any, batches: tuple[int, int]) -> Any:
    """The constant that is `a` with the first batch and `b` with the second."""
    small, large = batches
    if isinstance(a, tuple) and len(a) == len(b):
        return tuple(one(x, y, batches) for x, y in zip(a, b))
    if isinstance(a, np.ndarray) and a.shape != b.shape:
        axis = [x == y for x, y in zip(a.shape, b.shape)].index(False)
        part = a.take(range(a.shape[axis] // small), axis)
        whole = (np.concatenate([part] * count, axis) for count in batches)
        if all(np.array_equal(x, y) for x, y in zip(whole, (a, b))):
            return Repeated(part, axis)
    elif isinstance(a, np.ndarray):
        if np.array_equal(a, b):
            return a
    elif a == b:
        return a
    elif isinstance(a, int) and a % small == 0 and a * large == b * small:
        return Free(a // small)
    raise ValueError("--batch free: a number in the network changes with the batch")


def short(name: str) -> str:
    """A weight's or an input's name without the graph's in front."""
    return name.rpartition(":")[2]


def array(name: str, tensor: Any) -> Array:
    return Array(name, tensor.data_type, tuple(tensor.dims))


def numbers(tensor: Any) -> np.ndarray:
    result = np.frombuffer(tensor.raw_data, DTYPES[tensor.data_type])
    return result.reshape(tuple(tensor.dims))


def operator(node: Any, primitive: Any) -> Node:
    shapes = {each.name: each for each in node.attribute}.get("shape")
    while shapes is not None and shapes.values:  # of several outputs: the first
        shapes = shapes.values[0]
    tensor = shapes.tensors[0] if shapes is not None and shapes.tensors else None
    name = node.output[0]
    first = Array(name, 0, ()) if tensor is None else array(name, tensor)
    if primitive is None:
        return Node(node.op_type, tuple(node.input), {}, first)
    settings = {each.name: value(each) for each in primitive.attribute}
    return Node(primitive.op_type, tuple(node.input), settings, first)


def value(attribute: Any) -> Any:
    """A number, a text, an array or a tuple of such; None for what only orders side effects."""
    kind = attribute.AttributeType.Name(attribute.type)
    if kind in ("TUPLE", "LIST"):
        return tuple(value(each) for each in attribute.values)
    if kind == "TENSORS":
        return numbers(attribute.tensors[0])
    if kind == "STRING":
        return attribute.strings[0] if attribute.strings else attribute.s.decode()
    if kind == "FLOAT":
        return attribute.floats[0] if attribute.floats else attribute.f
    if kind in ("BOOL", "INT32", "INT64"):
        number = attribute.ints[0] if attribute.ints else attribute.i
        return bool(number) if kind == "BOOL" else number
    return None
