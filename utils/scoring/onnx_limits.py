"""Limits on an ONNX file, which somebody else may have written.

A file may only use what the zoo's own exporter writes: one graph of a few operators, with all
numbers inside, and all finite. So it reads no other file and runs no loop, and its sizes follow
from its input. Some engines make 0 of NaN: the scores would not show it.
"""

import math
from typing import Any

import numpy as np

from utils.messages import escape_control

# Those that utils/export/onnx_graph.py writes.
OPERATORS = {
    "Add", "Cast", "Clip", "Concat", "Conv", "Div", "Erf", "Expand", "Gather", "Gemm", "Identity",
    "LayerNormalization", "MatMul", "Max", "MaxPool", "Mul", "ReduceMean", "ReduceSum", "Relu",
    "Reshape", "Shape", "Sigmoid", "Slice", "Softmax", "Squeeze", "Sub", "Transpose", "Unsqueeze",
}  # fmt: skip
NESTED = {"g", "graphs", "sparse_tensor", "sparse_tensors"}  # fields of an attribute
INTEGERS = range(2, 10)  # types of onnx.TensorProto: of integers, strings and bool
MAX_NODES = 10_000  # MViTv2-B has 2,100
# Elements for each clip. One of MViTv2-B, 32 frames, has 7e7 in the largest array, 3e9 in all.
MAX_ELEMENTS = 2**28
MAX_TOTAL = 2**34


def check_model(model: Any, batch: int) -> None:
    """Raises ValueError if a model is beyond the limits, or onnx.checker's error if it is invalid.

    `batch` is the number of clips for which sizes are computed if that in the file is free.
    """
    import onnx

    check_contents(model)
    if any(opset.domain not in ("", "ai.onnx") for opset in model.opset_import):
        raise ValueError("it has operators that are not ONNX's own")
    nodes = model.graph.node
    if len(nodes) > MAX_NODES:
        raise ValueError(f"it has {len(nodes)} operators, more than {MAX_NODES}")
    others = {node.op_type for node in nodes if node.domain or node.op_type not in OPERATORS}
    if others:
        raise ValueError(f"it has operators that export.py does not write: {min(others)}")
    onnx.checker.check_model(model)
    check_sizes(model, batch)


def check_contents(model: Any) -> None:
    """Raises ValueError for further graphs, sparse arrays, data in other files, NaN, infinity."""
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer:
        raise ValueError("it has functions, a training or sparse arrays: export.py writes none")
    tensors = [*graph.initializer]
    for attribute in (part for node in graph.node for part in node.attribute):
        if {field.name for field, _ in attribute.ListFields()} & NESTED:
            raise ValueError(f"its attribute {attribute.name} is a graph or a sparse array")
        if not np.isfinite([attribute.f, *attribute.floats]).all():
            raise ValueError(f"its attribute {attribute.name} is NaN or infinite")
        tensors += [attribute.t, *attribute.tensors]
    for tensor in tensors:
        if tensor.external_data or tensor.data_location:
            raise ValueError("its weights are in other files")
        check_finite(tensor)


def check_finite(tensor: Any) -> None:
    """Raises ValueError if an array has numbers that are NaN or infinite."""
    import onnx

    if tensor.data_type and tensor.data_type not in INTEGERS:
        values = onnx.numpy_helper.to_array(tensor)
        if not np.isfinite(values.astype(np.float64) if values.dtype.kind == "V" else values).all():
            raise ValueError(f"its {escape_control(tensor.name)[:100]} has NaN or infinite numbers")


def check_sizes(model: Any, batch: int) -> None:
    """Raises ValueError if the sizes of results are not known, or too large."""
    import onnx

    graph = model.graph
    sized = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    sized.graph.name = graph.name
    sized.graph.node.extend(graph.node)
    sized.graph.input.extend(graph.input)
    for source in sized.graph.input:
        for size in source.type.tensor_type.shape.dim[:1]:
            size.dim_value = max(size.dim_value or batch, 1)
    clips = sized.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    for result in graph.output:
        kind = result.type.tensor_type.elem_type
        sized.graph.output.append(onnx.helper.make_tensor_value_info(result.name, kind, None))
    for array in graph.initializer:  # integers decide about sizes; a copy of weights takes seconds
        if array.data_type == onnx.TensorProto.INT64:
            sized.graph.initializer.append(array)
        else:
            weight = onnx.helper.make_tensor_value_info(array.name, array.data_type, array.dims)
            sized.graph.input.append(weight)
    sized = onnx.shape_inference.infer_shapes(sized, strict_mode=True, data_prop=True)
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*sized.graph.value_info, *sized.graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    total = 0
    for name in (name for node in graph.node for name in node.output if name):
        if name not in shapes or 0 in shapes[name]:
            raise ValueError(f"the size of its {name} does not follow from its input")
        elements = math.prod(shapes[name])
        total += elements
        if elements > MAX_ELEMENTS * clips or total > MAX_TOTAL * clips:
            raise ValueError(f"its {name} has the sizes {shapes[name]}: too many numbers")
