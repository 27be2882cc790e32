"""MINDIR files: their graph read as protobuf, and the network in a file run like a checkpoint's.

MindSpore writes one node per operator, named `REF::<primitive>`, and one node named `Constant` per
number, tuple or tensor. Every node has the shape of its result, with -1 for a free axis.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.train.mind_ir_pb2 import ModelProto

from utils.inference.engines import Exported, shorten_error
from utils.messages import escape_control

# The numbers of protobuf's types, the same in ONNX.
DTYPES = {1: "float32", 2: "uint8", 6: "int32", 7: "int64", 9: "bool", 10: "float16"}


class Array(NamedTuple):
    """An input, an output or the result of a node; a free axis is -1."""

    name: str
    dtype: int
    shape: tuple[int, ...]


class Node(NamedTuple):
    """An operator: settings by name; `output` is its only output, or the first of several.

    `kind` is the primitive's name; a call of another graph (a branch, a loop) has a kind of its
    own.
    """

    kind: str
    inputs: tuple[str, ...]
    settings: dict[str, Any]
    output: Array


class Graph(NamedTuple):
    """Names in it are unique, except that several outputs share the name of their tuple.

    `weights` and `constants` are the arrays and values by name.
    """

    inputs: list[Array]
    outputs: list[Array]
    weights: dict[str, np.ndarray]
    constants: dict[str, Any]
    nodes: list[Node]
    info: dict[str, str]


def run_graph(net: nn.Cell, *inputs: np.ndarray) -> list[np.ndarray]:
    """The outputs of a Cell that returns one or several."""
    outputs = net(*map(Tensor, inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output.asnumpy() for output in outputs]


def open_mindir(path: Path) -> tuple[Callable, str]:
    """(function from the shape of clips to what computes the outputs, device)."""
    try:
        net = nn.GraphCell(ms.load(str(path)))
    except Exception as error:  # noqa: BLE001 MindSpore raises several kinds
        raise ValueError(f"{path}: not a readable MINDIR: {shorten_error(error)}") from None
    return lambda shape: partial(run_graph, net), ms.get_context("device_target")


def read_mindir(path: Path) -> Exported:
    """Raises ValueError for a damaged file, and for numbers that are not finite."""
    graph = read_graph(path)
    for name, value in graph.weights.items():  # some operators would hide it
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"{path}: its {escape_control(name)[:80]} has NaN or infinity")
    source, *others = graph.inputs
    buffers = [array.shape for array in others] if "online" in graph.info else None
    classes = graph.outputs[0].shape[-1]
    return Exported(source.shape, DTYPES.get(source.dtype, ""), classes, buffers, graph.info)


def read_graph(path: Path) -> Graph:
    """Raises ValueError if the file is missing or no MINDIR."""
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file")
    try:
        model = ModelProto.FromString(path.read_bytes())
        graph = model.graph
        inputs = [parse_array(item.name, item.tensor[0]) for item in graph.input]
        outputs = []
        for item in graph.output:  # the arrays of a tuple have one name
            tensors = [value.tensors[0] for value in item.attr_info.values] or [item.tensor[0]]
            outputs += [parse_array(item.name, tensor) for tensor in tensors]
        if not inputs or not outputs or not all(array.shape for array in (*inputs, *outputs)):
            raise ValueError("it has no input or no output")
        primitives = {f"REF::{primitive.name}": primitive for primitive in model.primitives}
        constants = [node for node in graph.node if node.op_type == "Constant"]
        operators = [node for node in graph.node if node.op_type != "Constant"]
        return Graph(
            inputs=inputs,
            outputs=outputs,
            weights={tensor.name: parse_tensor(tensor) for tensor in graph.parameter},
            constants={node.output[0]: parse_value(node.attribute[0]) for node in constants},
            nodes=[parse_node(node, primitives.get(node.op_type)) for node in operators],
            info=dict(model.user_info),
        )
    except Exception as error:  # noqa: BLE001 protobuf's own, and a damaged file's
        raise ValueError(f"{path}: not a readable MINDIR: {shorten_error(error)}") from None


def parse_array(name: str, tensor: Any) -> Array:
    return Array(name, tensor.data_type, tuple(tensor.dims))


def parse_tensor(tensor: Any) -> np.ndarray:
    values = np.frombuffer(tensor.raw_data, DTYPES[tensor.data_type])
    return values.reshape(tuple(tensor.dims))


def parse_node(node: Any, primitive: Any) -> Node:
    shapes = {attribute.name: attribute for attribute in node.attribute}.get("shape")
    while shapes is not None and shapes.values:  # of several outputs, the first
        shapes = shapes.values[0]
    tensor = shapes.tensors[0] if shapes is not None and shapes.tensors else None
    name = node.output[0]
    output = Array(name, 0, ()) if tensor is None else parse_array(name, tensor)
    attributes = primitive.attribute if primitive is not None else ()
    settings = {attribute.name: parse_value(attribute) for attribute in attributes}
    kind = (node if primitive is None else primitive).op_type
    return Node(kind, inputs=tuple(node.input), settings=settings, output=output)


def parse_value(attribute: Any) -> Any:
    """A number, a string, an array or a tuple of such; None for an attribute that only orders."""
    kind = attribute.AttributeType.Name(attribute.type)
    if kind in ("TUPLE", "LIST"):
        return tuple(parse_value(item) for item in attribute.values)
    if kind == "TENSORS":
        return parse_tensor(attribute.tensors[0])
    if kind == "STRING":
        return attribute.strings[0] if attribute.strings else attribute.s.decode()
    if kind == "FLOAT":
        return attribute.floats[0] if attribute.floats else attribute.f
    if kind in ("BOOL", "INT32", "INT64"):
        number = attribute.ints[0] if attribute.ints else attribute.i
        return bool(number) if kind == "BOOL" else number
    return None
