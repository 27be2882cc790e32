"""A MINDIR's graph in ONNX, operator by operator. Needs the package `onnx`.

MindSpore's own exporter gets paddings of 3-D convolutions wrong and lacks Erf, among others. A
MINDIR says all that is needed.
"""

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from utils.export import onnx_operators
from utils.export.mindir import Array, Free, Graph, Repeated, short

OPSET, IR = 18, 8  # read by ONNX Runtime from 1.14 on


class Builder:
    """Nodes and constants of an ONNX graph in the making; tensors go by name.

    `shapes` says what the MINDIR does of every tensor, `uses` how often a MINDIR's output is read.
    """

    def __init__(self, source: str, uses: dict[str, int]):
        self.nodes, self.constants = [], {}
        self.shapes: dict[str, Array] = {}
        self.makers: dict[str, Any] = {}
        self.source, self.uses = source, uses
        self.batch = ""  # the name of the batch's size, once it is needed

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Appends an operator of one output; returns the output's name."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self.nodes.append(node)
        self.makers[name] = node
        return name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """The name of a constant array."""
        result = np.asarray(values, dtype)
        key = (result.dtype.str, result.shape, result.tobytes())
        return self.constants.setdefault(key, (f"constant_{len(self.constants)}", result))[0]

    def tensor(self, value: Union[np.ndarray, Repeated]) -> str:
        """The name of an array, or of one that is repeated for every sample."""
        if isinstance(value, np.ndarray):
            return self.constant(value, value.dtype)
        part, axis = value
        split: list[Union[int, Free]] = [*part.shape]
        whole = list(part.shape)
        split.insert(axis, Free(1))
        whole[axis] = -1
        part = self.constant(np.expand_dims(part, axis), part.dtype)
        return self.add(
            "Reshape", self.add("Expand", part, self.sizes(split)), self.constant(whole)
        )

    def sizes(self, values: Sequence) -> str:
        """A shape as a tensor: of numbers, and sizes that follow the batch."""
        if not any(isinstance(each, Free) for each in values):
            return self.constant(values)
        parts = [
            self.many(each.times) if isinstance(each, Free) else self.constant([each])
            for each in values
        ]
        return self.add("Concat", *parts, axis=0)

    def many(self, times: int) -> str:
        """The batch's size, or several times that."""
        if not self.batch:
            whole = self.add("Shape", self.source)
            self.batch = self.add("Gather", whole, self.constant([0]), axis=0)
        return self.batch if times == 1 else self.add("Mul", self.batch, self.constant([times]))


def translate(graph: Graph, names: tuple[str, str], info: dict[str, str]) -> Any:
    """The ONNX model of a MINDIR of one input and one output, `names`; `info` goes with it.

    Raises ValueError for an operator without a translation.
    """
    from onnx import helper

    (taken,), (given,), (input, output) = graph.inputs, graph.outputs, names
    weights = {name: short(name) for name in graph.weights}
    build = Builder(input, uses_of(graph))
    values = {**graph.constants, **weights, taken.name: input}
    build.shapes[input] = taken
    for node in graph.nodes:
        done = onnx_operators.apply(build, node, [values[name] for name in node.inputs])
        values[node.first.name] = done
        if isinstance(done, str):
            build.shapes.setdefault(done, node.first)
    build.add("Identity", values[given.name])
    build.nodes[-1].output[0] = output
    arrays = dict(build.constants.values())
    arrays.update({weights[name]: result for name, result in graph.weights.items()})
    nodes = needed(build.nodes, output)
    read = {name for node in nodes for name in node.input}
    made = helper.make_graph(
        nodes,
        "network",
        [described(input, taken)],
        [described(output, given)],
        [stored(name, result) for name, result in arrays.items() if name in read],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=IR)
    helper.set_model_props(model, info)
    return model


def uses_of(graph: Graph) -> dict[str, int]:
    """How often the nodes read a name."""
    uses: dict[str, int] = {}
    for node in graph.nodes:
        for name in node.inputs:
            uses[name] = uses.get(name, 0) + 1
    return uses


def needed(nodes: list, output: str) -> list:
    """The nodes from which there is a way to the output."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted & set(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]


def described(name: str, array: Array) -> Any:
    """Of an input or output; a free first axis is called `batch`."""
    from onnx import helper

    shape = [size if size > 0 else "batch" for size in array.shape]
    return helper.make_tensor_value_info(name, array.dtype, shape)


def stored(name: str, result: np.ndarray) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(result), name)
