"""Translates the graph of a MINDIR to ONNX, operator by operator. Needs the package `onnx`.

MindSpore's own exporter gets paddings of 3-D convolutions wrong and lacks Erf, among others. A
MINDIR holds all that is needed.

A graph with a dynamic batch is made of the graphs of one network with two batches: MindSpore writes
every size as a number, also those that follow the batch.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Union

import numpy as np

from utils.inference.mindir import DTYPES, Array, Graph, Node

# Read by ONNX Runtime from 1.14 on
OPSET = 18
IR = 8
SLICE_END = np.iinfo(np.int64).max  # of a slice that goes to the end


class DynamicDim(NamedTuple):
    """A size that is `times` the batch."""

    times: int


class Tiled(NamedTuple):
    """An array that repeats `part` along an axis, once for every sample."""

    part: np.ndarray
    axis: int


class Builder:
    """Collects nodes and constants of an ONNX graph; its methods take and return tensor names.

    `shapes` are the MINDIR's for every tensor, `sources` its nodes; `uses` counts the readers of a
    MINDIR's output. `source` has the axes of the input.
    """

    def __init__(self, source: str, uses: dict[str, int]):
        self.nodes = []
        self.constants = {}
        self.shapes: dict[str, Array] = {}
        self.producers: dict[str, Any] = {}  # the node of an output
        self.sources: dict[str, Node] = {}
        self.source = source
        self.uses = uses
        self.batch = ""  # the name of the batch's size, once it is needed

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator with one output."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, inputs, [name], name=name, **attributes)
        self.nodes.append(node)
        self.producers[name] = node
        return name

    def add_constant(self, values: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        return self.constants.setdefault(key, (f"constant_{len(self.constants)}", array))[0]

    def add_array(self, value: Union[np.ndarray, Tiled]) -> str:
        """Adds an array, or one that is repeated for every sample."""
        if isinstance(value, np.ndarray):
            return self.add_constant(value, value.dtype)
        part, axis = value
        split = (*part.shape[:axis], DynamicDim(1), *part.shape[axis:])
        merged = (*part.shape[:axis], -1, *part.shape[axis + 1 :])
        part = self.add_constant(np.expand_dims(part, axis), part.dtype)
        expanded = self.add("Expand", part, self.add_shape(split))
        return self.add("Reshape", expanded, self.add_constant(merged))

    def add_shape(self, sizes: Sequence) -> str:
        """Adds a shape: numbers, and sizes that follow the batch."""
        if not any(isinstance(size, DynamicDim) for size in sizes):
            return self.add_constant(sizes)
        if not self.batch:
            shape = self.add("Shape", self.source)
            self.batch = self.add("Gather", shape, self.add_constant([0]), axis=0)
        parts = []
        for size in sizes:
            times = size.times if isinstance(size, DynamicDim) else 0
            part = self.batch if times else self.add_constant([size])
            parts.append(self.add("Mul", part, self.add_constant([times])) if times > 1 else part)
        return self.add("Concat", *parts, axis=0)


def translate(
    graph: Graph, inputs: Sequence[str], outputs: Sequence[str], info: dict[str, str]
) -> Any:
    """The ONNX model of a MINDIR.

    `inputs` and `outputs` are names; the first input has the batch. `info` is its metadata. Raises
    ValueError for an operator without a translation.
    """
    from onnx import helper, numpy_helper

    source = graph.inputs[0]
    weights = {name: name.rpartition(":")[2] for name in graph.weights}  # without the scope
    build = Builder(inputs[0], Counter(name for node in graph.nodes for name in node.inputs))
    values = {**graph.constants, **weights}
    values.update({array.name: name for array, name in zip(graph.inputs, inputs)})
    build.shapes.update(zip(inputs, graph.inputs))
    # First the Cast of the pixels, because TensorRT takes the batch's size from no uint8.
    cast = ("Cast", (source.name,))
    for node in sorted(graph.nodes, key=lambda n: (n.kind, n.inputs[:1]) != cast):
        if node.kind not in TRANSLATORS:
            raise ValueError(f"--format onnx: the operator {node.kind} has no translation to ONNX")
        # Operands and results are names of tensors; numbers and tuples, if known at export; or
        # lists of such.
        arguments = [values[name] for name in node.inputs]
        operands = [build.add_array(a) if isinstance(a, ARRAYS) else a for a in arguments]
        value = TRANSLATORS[node.kind](build, node, *operands)
        values[node.output.name] = value
        if isinstance(value, str):
            build.shapes.setdefault(value, node.output)
            build.sources.setdefault(value, node)
    result = values[graph.outputs[0].name]  # a tuple of several
    for value, output in zip(result if isinstance(result, list) else [result], outputs):
        build.add("Identity", value)
        build.nodes[-1].output[0] = output
    arrays = dict(build.constants.values())
    arrays.update({weights[name]: array for name, array in graph.weights.items()})
    nodes = []  # on which the outputs depend
    used = {*outputs}
    for node in reversed(build.nodes):
        if used & set(node.output):
            used.update(node.input)
            nodes.append(node)
    ends = []
    for name, array in zip([*inputs, *outputs], [*graph.inputs, *graph.outputs]):
        sizes = [size if size > 0 else "batch" for size in array.shape]
        ends.append(helper.make_tensor_value_info(name, array.dtype, sizes))
    kept = {name: np.ascontiguousarray(arrays[name]) for name in arrays if name in used}
    stored = [numpy_helper.from_array(array, name) for name, array in kept.items()]
    sources, results = ends[: len(inputs)], ends[len(inputs) :]
    onnx_graph = helper.make_graph(nodes[::-1], "network", sources, results, stored)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(onnx_graph, opset_imports=opset, ir_version=IR)
    helper.set_model_props(model, info)
    return model


ARRAYS = (np.ndarray, Tiled)


def add_elementwise(build, node, *arguments):
    """An operator without settings that broadcasts in ONNX as in MindSpore."""
    dtype = DTYPES[node.output.dtype]
    names = [a if isinstance(a, str) else build.add_constant(a, dtype) for a in arguments]
    return build.add(ELEMENTWISE[node.kind], *names)


def add_reduction(build, node, x, axes, keep, *_):
    return build.add(node.kind, x, build.add_constant(axes), keepdims=int(keep))


def add_convolution(build, node, x, weight):
    """MindSpore lists pads axis by axis, before and after; ONNX all before, then all after."""
    settings = node.settings
    rank = len(node.output.shape) - 2
    mode = settings["pad_mode"].lower()
    padding = {"auto_pad": "SAME_UPPER"} if mode == "same" else {}
    if mode == "pad":
        pads = trailing_values(settings["pad"], 2 * rank)
        padding = {"pads": [*pads[::2], *pads[1::2]]}
    sizes = {
        "kernel_shape": settings["kernel_size"],
        "strides": settings.get("stride", settings.get("strides")),
        "dilations": settings.get("dilation", settings.get("dilations")),
    }
    sizes = {name: trailing_values(values, rank) for name, values in sizes.items()}
    group = settings.get("group", settings.get("groups"))
    return build.add("Conv", x, weight, group=group, **sizes, **padding)


def add_reshape(build, node, x, _):
    """Reshapes to the result's shape, in which -1 is the size that follows the batch.

    A 1x1 convolution of (N, C, T*H, W) between two Reshapes, from and to (N, C, T, H, W), becomes
    one of (N, C, T, H, W): engines would copy the data at both.
    """
    sizes = node.output.shape
    conv = build.sources.get(x)
    settings = conv.settings if conv is not None and conv.kind == "Conv2D" else {"group": 0}
    spans = [settings.get(name, 0) for name in ("kernel_size", "stride")]
    if settings["group"] == 1 and [trailing_values(span, 2) for span in spans] == [[1, 1]] * 2:
        source, weight, *bias = build.producers[x].input
        before = build.producers.get(source)
        is_reshaped = before is not None and before.op_type == "Reshape"
        clip = build.shapes[before.input[0]].shape if is_reshaped else ()
        if len(clip) == 5 and clip[2:] == sizes[2:]:
            reshaped = build.producers.get(weight)
            weight = reshaped.input[0] if reshaped is not None else weight
            shape = build.add_constant([sizes[1], clip[1], 1, 1, 1])
            weight = build.add("Reshape", weight, shape)
            return build.add("Conv", before.input[0], weight, *bias, kernel_shape=[1, 1, 1])
    return build.add("Reshape", x, build.add_constant(sizes))


def trailing_values(values: Union[int, tuple], count: int) -> list[int]:
    """The last values; MindSpore writes one number for several equal ones."""
    return [values] * count if isinstance(values, int) else list(values[-count:])


def add_max_pool(build, node, x):
    settings = node.settings
    padding = "SAME_UPPER" if settings["pad_mode"].lower() == "same" else "VALID"
    kernel, strides = settings["kernel_size"][2:], settings["strides"][2:]
    return build.add("MaxPool", x, kernel_shape=kernel, strides=strides, auto_pad=padding)


def add_max_pool_3d(build, node, x):
    """MindSpore's max pool with padding: a 3-D one between an ExpandDims and a Squeeze.

    Here it is a 2-D one before an Unsqueeze; add_squeeze removes both. A 3-D one costs ten times as
    much in OpenVINO, which reorders its input and output. Of its two outputs the networks read the
    first.
    """
    settings = node.settings
    before = build.producers.get(x)
    if before is None or before.op_type != "Unsqueeze":
        raise ValueError("--format onnx: a max pool over time")
    pads = settings["pads"][1:]
    sizes = {"kernel_shape": settings["ksize"][1:], "strides": settings["strides"][1:]}
    sizes |= {"pads": [*pads, *pads], "ceil_mode": int(settings["ceil_mode"])}
    pooled = build.add("MaxPool", before.input[0], **sizes)
    return [build.add("Unsqueeze", pooled, before.input[1])]


def add_squeeze(build, node, x, axes):
    axes = build.add_constant(axes)
    before = build.producers.get(x)
    if before is not None and before.op_type == "Unsqueeze" and before.input[1] == axes:
        return before.input[0]
    return build.add("Squeeze", x, axes)


def add_bias(build, node, x, bias, _):
    """Adds the bias to the convolution or product before it, if possible."""
    target = None if bias in build.producers else find_without_bias(build, x, node.inputs[0])
    if target is not None:
        target.input.append(bias)
        return x
    rank = len(node.output.shape)
    if rank > 2:
        bias = build.add("Unsqueeze", bias, build.add_constant(range(1, rank - 1)))
    return build.add("Add", x, bias)


def find_without_bias(build, name: str, source: str) -> Any:
    """The convolution or product of the output `name`, or of a term of it if it is a sum.

    None if there is none, if it has a bias, or if its result has another reader. `source` is the
    name in the MINDIR.
    """
    producer = build.producers.get(name)
    if producer is None or build.uses[source] != 1:
        return None
    if producer.op_type in ("Conv", "Gemm"):
        return producer if len(producer.input) == 2 else None
    if producer.op_type == "Add":
        for term, term_source in zip(producer.input, build.sources[name].inputs):
            if build.shapes[term].shape == build.shapes[name].shape:
                target = find_without_bias(build, term, term_source)
                if target is not None:
                    return target
    return None


def add_batch_matmul(build, node, a, b, transpose_a, transpose_b):
    rank = len(node.output.shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    a = build.add("Transpose", a, perm=order) if transpose_a else a
    b = build.add("Transpose", b, perm=order) if transpose_b else b
    return build.add("MatMul", a, b)


def add_strided_slice(build, node, x, begin, end, steps, from_start, to_end, _, __, shrink):
    """Bit i of a mask is for axis i; of the last three masks the networks use the third."""
    axes = range(len(begin))
    starts = [0 if from_start >> axis & 1 else begin[axis] for axis in axes]
    ends = [SLICE_END if to_end >> axis & 1 else end[axis] for axis in axes]
    x = add_slice(build, x=x, starts=starts, ends=ends, steps=steps)
    removed = [axis for axis in axes if shrink >> axis & 1]
    return build.add("Squeeze", x, build.add_constant(removed)) if removed else x


def add_slice_by_size(build, node, x, begin, size):
    ends = [s if isinstance(s, DynamicDim) else b + s for b, s in zip(begin, size)]
    return add_slice(build, x=x, starts=begin, ends=ends, steps=[1] * len(ends))


def add_slice(build, x, starts, ends, steps) -> str:
    """Slices only the axes that change; a dynamic batch axis must stay as it is."""
    sizes = build.shapes[x].shape
    axes = [
        axis
        for axis, end in enumerate(ends)
        if (starts[axis], steps[axis]) != (0, 1)
        or not isinstance(end, DynamicDim)
        and end != SLICE_END
        and (end < 0 or end < sizes[axis])
    ]
    if not axes:
        return x
    ends = [SLICE_END if isinstance(end, DynamicDim) else end for end in ends]
    bounds = (build.add_constant([v[axis] for axis in axes]) for v in (starts, ends, steps))
    starts, ends, steps = bounds
    return build.add("Slice", x, starts, ends, build.add_constant(axes), steps)


def add_cast(build, node, x, _):
    """TensorRT reads uint8 in a Cast only: the batch's size comes from its result."""
    result = build.add("Cast", x, to=node.output.dtype)
    if x == build.source:
        build.source = result
    return result


ELEMENTWISE = {"Add": "Add", "Divs": "Div", "Erf": "Erf", "Maximum": "Max", "Mul": "Mul"}
ELEMENTWISE |= {"Muls": "Mul", "ReLU": "Relu", "Sigmoid": "Sigmoid", "Sub": "Sub"}
# A translator gets the builder, the MINDIR's node and its arguments, and returns the result.
TRANSLATORS: dict[str, Callable] = {
    **dict.fromkeys(ELEMENTWISE, add_elementwise),
    "BatchMatMul": add_batch_matmul,
    "BiasAdd": add_bias,
    # -1 keeps an axis, which ONNX writes as 1.
    "BroadcastTo": lambda build, node, x, sizes: build.add(
        "Expand", x, build.add_shape([1 if size == -1 else size for size in sizes])
    ),
    "Cast": add_cast,
    "Concat": lambda build, node, values, axis: build.add("Concat", *values, axis=axis),
    "Conv2D": add_convolution,
    "Conv3D": add_convolution,
    "Depend": lambda build, node, x, *_: x,
    "ExpandDims": lambda build, node, x, axis: build.add(
        "Unsqueeze", x, build.add_constant([axis])
    ),
    # Of its three outputs the networks read the first.
    "LayerNorm": lambda build, node, x, gamma, beta, axis, _, epsilon: [
        build.add("LayerNormalization", x, gamma, beta, axis=axis, epsilon=epsilon)
    ],
    "Load": lambda build, node, x, *_: x,
    "MakeTuple": lambda build, node, *values: list(values),
    "MatMul": lambda build, node, a, b, transpose_a, transpose_b: build.add(
        "Gemm", a, b, transA=int(transpose_a), transB=int(transpose_b)
    ),
    "MaxPool": add_max_pool,
    "MaxPool3DWithArgmax": add_max_pool_3d,
    "ReLU6": lambda build, node, x: build.add(
        "Clip", x, *(build.add_constant(bound, DTYPES[node.output.dtype]) for bound in (0, 6))
    ),
    "ReduceMean": add_reduction,
    "ReduceSum": add_reduction,
    "Reshape": add_reshape,
    "SiLU": lambda build, node, x: build.add("Mul", x, build.add("Sigmoid", x)),
    "Slice": add_slice_by_size,
    "Softmax": lambda build, node, x, axes: build.add(
        "Softmax", x, axis=axes[0] if isinstance(axes, tuple) else axes
    ),
    "Squeeze": add_squeeze,
    "StridedSlice": add_strided_slice,
    "Transpose": lambda build, node, x, order: build.add("Transpose", x, perm=order),
    "TupleGetItem": lambda build, node, values, index: values[index],
    "UpdateState": lambda build, node, *_: None,
}


def with_dynamic_batch(small: Graph, large: Graph) -> Graph:
    """A graph with a dynamic batch, from the same network's graphs with two batches.

    Only sizes and the repetitions of arrays may differ between the two: they follow the batch.
    Raises ValueError for any other difference.
    """
    batches = small.inputs[0].shape[0], large.inputs[0].shape[0]
    pairs = list(zip(small.nodes, large.nodes))
    same = len(small.nodes) == len(large.nodes) and len(small.constants) == len(large.constants)
    if not same or any((a.kind, a.settings) != (b.kind, b.settings) for a, b in pairs):
        raise ValueError("--batch free: the network has another graph with another batch")
    constants = zip(small.constants.items(), large.constants.values())
    return small._replace(
        inputs=[free_axes(a, b) for a, b in zip(small.inputs, large.inputs)],
        outputs=[free_axes(a, b) for a, b in zip(small.outputs, large.outputs)],
        constants={name: generalize_constant(a, b, batches) for (name, a), b in constants},
        nodes=[a._replace(output=free_axes(a.output, b.output)) for a, b in pairs],
    )


def free_axes(a: Array, b: Array) -> Array:
    """`a` with -1 for the sizes that differ in `b`."""
    return a._replace(shape=tuple(x if x == y else -1 for x, y in zip(a.shape, b.shape)))


def generalize_constant(a: Any, b: Any, batches: tuple[int, int]) -> Any:
    """The constant for any batch that is `a` with the first of `batches` and `b` with the second.

    A number becomes a DynamicDim and an array a Tiled if they follow the batch.
    """
    small, large = batches
    if isinstance(a, tuple) and len(a) == len(b):
        return tuple(generalize_constant(x, y, batches) for x, y in zip(a, b))
    if np.array_equal(a, b):
        return a
    if isinstance(a, np.ndarray) and a.shape != b.shape:
        axis = [x == y for x, y in zip(a.shape, b.shape)].index(False)
        part = a.take(range(a.shape[axis] // small), axis)
        tiled = (np.concatenate([part] * count, axis) for count in batches)
        if all(np.array_equal(x, y) for x, y in zip(tiled, (a, b))):
            return Tiled(part, axis)
    elif isinstance(a, int) and a % small == 0 and a * large == b * small:
        return DynamicDim(a // small)
    raise ValueError("--batch free: a number in the network changes with the batch")
