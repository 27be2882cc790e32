"""The ONNX operators that TensorRT and ATC document, and a check of a file against both.

TensorRT: operators.md of onnx-tensorrt for TensorRT 10 (opsets 9 to 20; TensorRT 11 reads 9 to 25
and refers to the same list). ATC: the pages "Supported ONNX Operators" of CANN 8.5 and 9.0, which
give opsets 8 to 18 for most operators, and the sources of its parser in ops-nn and ops-math.
"""

from pathlib import Path
from typing import NamedTuple

FLOATS = {"FLOAT", "FLOAT16"}
NUMBERS = FLOATS | {"INT64"}


class Entry(NamedTuple):
    """The data types of the first input, and the opsets from `first` to `last`."""

    types: set[str]
    first: int
    last: int


# TensorRT reads uint8 only as the network's input, and there only in a Cast.
OF_FLOATS = ("Clip", "Conv", "Erf", "Gemm", "LayerNormalization", "MatMul", "MaxPool")
OF_FLOATS += ("Sigmoid", "Softmax")
OF_NUMBERS = ("Add", "Concat", "Div", "Expand", "Gather", "Identity", "Max", "Mul", "ReduceMean")
OF_NUMBERS += ("ReduceSum", "Relu", "Reshape", "Shape", "Slice", "Squeeze", "Sub", "Transpose")
OF_NUMBERS += ("Unsqueeze",)
TENSORRT = dict.fromkeys(OF_FLOATS, Entry(FLOATS, 9, 20))
TENSORRT |= dict.fromkeys(OF_NUMBERS, Entry(NUMBERS, 9, 20))
TENSORRT["Cast"] = Entry(NUMBERS | {"UINT8"}, 9, 20)
# ATC computes a float32 file in float16, unless --precision_mode_v2 says otherwise.
ATC = {name: entry._replace(first=8, last=18) for name, entry in TENSORRT.items()}
ATC["Conv"] = Entry(FLOATS, 9, 18)
ATC["LayerNormalization"] = Entry(FLOATS, 17, 18)
ATC["Shape"] = Entry(NUMBERS | {"UINT8"}, 8, 18)
LISTS = {"TensorRT": TENSORRT, "ATC": ATC}


def list_problems(path: Path) -> list[str]:
    """What TensorRT or ATC would refuse in an ONNX file, by their documents."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    (opset,) = (entry.version for entry in model.opset_import)
    graph = model.graph
    types = {array.name: array.data_type for array in graph.initializer}
    ranks = {array.name: len(array.dims) for array in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
        ranks[value.name] = len(value.type.tensor_type.shape.dim)
    constants = {array.name for array in graph.initializer}
    problems = []
    for node in graph.node:
        name = onnx.TensorProto.DataType.Name(types[node.input[0]])
        for runtime, entries in LISTS.items():
            entry = entries.get(node.op_type)
            if entry is None or not entry.first <= opset <= entry.last:
                problems.append(f"{runtime}: {node.op_type} of opset {opset}")
            elif name not in entry.types:
                problems.append(f"{runtime}: {node.op_type} of {name}")
        settings = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        problems += list_restrictions(node, settings, constants, ranks[node.input[0]])
    return problems


def list_restrictions(node, settings: dict, constants: set[str], rank: int) -> list[str]:
    """What the lists say of a node's attributes and further inputs."""
    kind = node.op_type
    axes = {"ReduceMean": 1, "ReduceSum": 1, "Squeeze": 1, "Unsqueeze": 1, "Slice": 3}.get(kind)
    automatic = settings.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    broken = {
        "TensorRT: the axes must be a constant": axes is not None
        and len(node.input) > axes
        and node.input[axes] not in constants,
        "TensorRT: only the first output": len(node.output) > 1,
        "TensorRT, ATC: 2-D and 3-D only": kind in ("Conv", "MaxPool") and rank not in (4, 5),
        "ATC: kernel_shape is missing": kind in ("Conv", "MaxPool")
        and "kernel_shape" not in settings,
        "ATC: auto_pad of a 3-D convolution": kind == "Conv" and rank == 5 and automatic,
        "ATC, MindSpore Lite: a max pool with dilations": kind == "MaxPool"
        and "dilations" in settings,
        "ATC: pads and auto_pad": kind == "MaxPool" and automatic and "pads" in settings,
        "ATC: ceil_mode with VALID": settings.get("auto_pad") == b"VALID"
        and settings.get("ceil_mode", 0) != 0,
        "ATC: a stride above 63": kind in ("Conv", "MaxPool")
        and max(settings.get("strides", [1])) > 63,
    }
    return [f"{text}: {kind}" for text, is_broken in broken.items() if is_broken]
