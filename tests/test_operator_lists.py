"""The check of a file against the operators of TensorRT and ATC finds what they would refuse.

tests/test_export.py applies it to every file that it exports.
"""

import numpy as np
import pytest

from tests.operator_lists import LISTS, list_problems
from utils.scoring.onnx_limits import OPERATORS

onnx = pytest.importorskip("onnx")
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
MAP = (2, 3, 8, 8)


@pytest.mark.parametrize("runtime", LISTS)
def test_every_operator_that_the_export_writes_is_in_the_list(runtime):
    assert LISTS[runtime].keys() >= OPERATORS
    assert all(entry.first <= 18 <= entry.last for entry in LISTS[runtime].values())


def save_node(path, kind, shape=MAP, second=None, dtype="FLOAT", opset=18, **settings):
    """Writes a file of one node; `second` is its second input, `""` for one that is computed."""
    helper = onnx.helper
    number = onnx.TensorProto.DataType.Value(dtype)
    source = helper.make_tensor_value_info("input", number, shape)
    arrays = []
    nodes = []
    inputs = ["input"]
    if second is not None:
        inputs.append("second")
    if isinstance(second, np.ndarray):
        arrays.append(onnx.numpy_helper.from_array(second, "second"))
    elif second is not None:
        nodes.append(helper.make_node("Shape", ["input"], ["second"]))
    nodes.append(helper.make_node(kind, inputs, ["scores"], **settings))
    result = helper.make_tensor_value_info("scores", number, None)
    graph = helper.make_graph(nodes, "network", [source], [result], arrays)
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports), path)
    return path


def make_weight(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("node", "problems"),
    [
        ({"kind": "Relu"}, []),
        ({"kind": "Celu"}, ["TensorRT: Celu of opset 18", "ATC: Celu of opset 18"]),
        ({"kind": "Relu", "opset": 21}, ["TensorRT: Relu of opset 21", "ATC: Relu of opset 21"]),
        ({"kind": "Shape", "dtype": "UINT8"}, ["TensorRT: Shape of UINT8"]),
        ({"kind": "Cast", "dtype": "UINT8", "to": 1}, []),
        (
            {"kind": "Transpose", "dtype": "UINT8"},
            [f"{name}: Transpose of UINT8" for name in LISTS],
        ),
        ({"kind": "Conv", "second": make_weight(4, 3, 1, 1), "kernel_shape": [1, 1]}, []),
        (
            {"kind": "Conv", "second": make_weight(4, 3, 1, 1)},
            ["ATC: kernel_shape is missing: Conv"],
        ),
        (
            {
                "kind": "Conv",
                "shape": (2, 3, 4, 8, 8),
                "second": make_weight(4, 3, 1, 3, 3),
                "kernel_shape": [1, 3, 3],
                "auto_pad": "SAME_UPPER",
            },
            ["ATC: auto_pad of a 3-D convolution: Conv"],
        ),
        ({"kind": "MaxPool", **POOL, "auto_pad": "SAME_UPPER"}, []),
        (
            {"kind": "MaxPool", **POOL, "dilations": [1, 1]},
            ["ATC, MindSpore Lite: a max pool with dilations: MaxPool"],
        ),
        ({"kind": "ReduceMean", "second": np.array([3])}, []),
        (
            {"kind": "ReduceMean", "second": "computed"},
            ["TensorRT: the axes must be a constant: ReduceMean"],
        ),
    ],
)
def test_what_the_runtimes_refuse_is_found(node, problems, tmp_path):
    assert list_problems(save_node(tmp_path / "net.onnx", **node)) == problems
