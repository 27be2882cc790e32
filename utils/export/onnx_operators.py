"""MindSpore's operators in ONNX's words.

A translation gets the builder, the MINDIR's node and its arguments: names of tensors, or numbers,
arrays and tuples of them where they are known. It returns the same: the name of what it computes,
a number, or a list of such.
"""

from typing import Any, Union

import numpy as np

from utils.export.mindir import Free, Node, Repeated

END = np.iinfo(np.int64).max  # of a slice that goes to the end


def apply(build: Any, node: Node, arguments: list) -> Any:
    """Translates one node; ValueError for an operator that is not in the table."""
    if node.kind not in TABLE:
        raise ValueError(f"--format onnx: the operator {node.kind} has no translation to ONNX")
    arrays = (np.ndarray, Repeated)
    arguments = [build.tensor(each) if isinstance(each, arrays) else each for each in arguments]
    return TABLE[node.kind](build, node, *arguments)


def numpy_type(node: Node) -> np.dtype:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(node.first.dtype)


def same(kind: str) -> Any:
    """An operator that both have, without settings; tensors are broadcast the same way."""

    def translated(build, node, *arguments):
        dtype = numpy_type(node)
        names = [
            each if isinstance(each, str) else build.constant(each, dtype) for each in arguments
        ]
        return build.add(kind, *names)

    return translated


def first(build, node, value, *_):
    return value


def nothing(build, node, *_):
    return None


def cast(build, node, x, _):
    return build.add("Cast", x, to=node.first.dtype)


def make_tuple(build, node, *values):
    return list(values)


def item(build, node, values, index):
    return values[index]


def reshape(build, node, x, _):
    """The sizes are those of the result; the one that follows the batch is what others leave."""
    return build.add("Reshape", x, build.constant(node.first.shape))


def convolution(build, node, x, weight):
    """`pad` says before and after, axis by axis; ONNX wants all before, then all after."""
    settings = node.settings
    rank = len(node.first.shape) - 2
    mode = settings["pad_mode"].lower()
    padding = {"auto_pad": "SAME_UPPER"} if mode == "same" else {}
    if mode == "pad":
        pads = last(settings["pad"], 2 * rank)
        padding = {"pads": [*pads[::2], *pads[1::2]]}
    return build.add(
        "Conv",
        x,
        weight,
        strides=last(settings.get("stride", settings.get("strides")), rank),
        dilations=last(settings.get("dilation", settings.get("dilations")), rank),
        group=settings.get("group", settings.get("groups")),
        **padding,
    )


def last(values: Union[int, tuple], count: int) -> list[int]:
    """The last values; MindSpore writes one number for several equal ones."""
    return [values] * count if isinstance(values, int) else list(values[-count:])


def max_pool(build, node, x):
    settings = node.settings
    same_size = settings["pad_mode"].lower() == "same"
    return build.add(
        "MaxPool",
        x,
        kernel_shape=settings["kernel_size"][2:],
        strides=settings["strides"][2:],
        auto_pad="SAME_UPPER" if same_size else "VALID",
    )


def max_pool_3d(build, node, x):
    """Of its two outputs the networks read the first."""
    settings = node.settings
    pads = settings["pads"]
    return [
        build.add(
            "MaxPool",
            x,
            kernel_shape=settings["ksize"],
            strides=settings["strides"],
            dilations=settings["dilation"],
            pads=[*pads, *pads],
            ceil_mode=int(settings["ceil_mode"]),
        )
    ]


def bias_add(build, node, x, bias, _):
    """Into the convolution or product before, where nobody else reads that."""
    maker, alone = build.makers.get(x), build.uses[node.inputs[0]] == 1
    weight = bias not in build.makers  # it is there from the start
    if alone and weight and maker.op_type in ("Conv", "Gemm") and len(maker.input) == 2:
        maker.input.append(bias)
        return x
    rank = len(node.first.shape)
    if rank > 2:
        bias = build.add("Unsqueeze", bias, build.constant(range(1, rank - 1)))
    return build.add("Add", x, bias)


def matmul(build, node, a, b, transpose_a, transpose_b):
    return build.add("Gemm", a, b, transA=int(transpose_a), transB=int(transpose_b))


def batch_matmul(build, node, a, b, transpose_a, transpose_b):
    rank = len(node.first.shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    a = build.add("Transpose", a, perm=order) if transpose_a else a
    b = build.add("Transpose", b, perm=order) if transpose_b else b
    return build.add("MatMul", a, b)


def reduction(kind: str) -> Any:
    def translated(build, node, x, axes, keep, *_):
        return build.add(kind, x, build.constant(axes), keepdims=int(keep))

    return translated


def softmax(build, node, x, axes):
    return build.add("Softmax", x, axis=axes[0] if isinstance(axes, tuple) else axes)


def layer_norm(build, node, x, gamma, beta, axis, _, epsilon):
    """Of its three outputs the networks read the first."""
    return [build.add("LayerNormalization", x, gamma, beta, axis=axis, epsilon=epsilon)]


def transpose(build, node, x, order):
    return build.add("Transpose", x, perm=order)


def concat(build, node, values, axis):
    return build.add("Concat", *values, axis=axis)


def expand_dims(build, node, x, axis):
    return build.add("Unsqueeze", x, build.constant([axis]))


def squeeze(build, node, x, axes):
    return build.add("Squeeze", x, build.constant(axes))


def strided_slice(build, node, x, begin, end, steps, from_start, to_end, *masks):
    """Bit i of a mask is of axis i; of the last three masks the networks use the third."""
    ellipsis, new, shrink = masks
    if ellipsis or new:
        raise ValueError("--format onnx: a slice with an ellipsis or a new axis")
    axes = range(len(begin))
    starts = [0 if from_start >> axis & 1 else begin[axis] for axis in axes]
    ends = [END if to_end >> axis & 1 else end[axis] for axis in axes]
    x = sliced(build, x, starts, ends, steps)
    gone = [axis for axis in axes if shrink >> axis & 1]
    return build.add("Squeeze", x, build.constant(gone)) if gone else x


def narrow(build, node, x, begin, size):
    ends = [s if isinstance(s, Free) else b + s for b, s in zip(begin, size)]
    return sliced(build, x, begin, ends, [1] * len(ends))


def sliced(build, x, starts, ends, steps) -> str:
    """Axes that stay whole are left out; that of a free batch must be one of them."""
    known = build.shapes[x].shape
    cut = [
        axis
        for axis, end in enumerate(ends)
        if (starts[axis], steps[axis]) != (0, 1)
        or not isinstance(end, Free)
        and end != END
        and end < known[axis]
    ]
    if not cut:
        return x
    starts, ends, steps = (build.constant([v[axis] for axis in cut]) for v in (starts, ends, steps))
    return build.add("Slice", x, starts, ends, build.constant(cut), steps)


def broadcast_to(build, node, x, sizes):
    """-1 keeps an axis, which ONNX writes as 1."""
    return build.add("Expand", x, build.sizes([1 if size == -1 else size for size in sizes]))


def relu6(build, node, x):
    dtype = numpy_type(node)
    return build.add("Clip", x, build.constant(0, dtype), build.constant(6, dtype))


def silu(build, node, x):
    return build.add("Mul", x, build.add("Sigmoid", x))


TABLE = {
    "Add": same("Add"),
    "BatchMatMul": batch_matmul,
    "BiasAdd": bias_add,
    "BroadcastTo": broadcast_to,
    "Cast": cast,
    "Concat": concat,
    "Conv2D": convolution,
    "Conv3D": convolution,
    "Depend": first,
    "Divs": same("Div"),
    "Erf": same("Erf"),
    "ExpandDims": expand_dims,
    "LayerNorm": layer_norm,
    "Load": first,
    "MakeTuple": make_tuple,
    "MatMul": matmul,
    "MaxPool": max_pool,
    "MaxPool3DWithArgmax": max_pool_3d,
    "Maximum": same("Max"),
    "Mul": same("Mul"),
    "Muls": same("Mul"),
    "ReLU": same("Relu"),
    "ReLU6": relu6,
    "ReduceMean": reduction("ReduceMean"),
    "ReduceSum": reduction("ReduceSum"),
    "Reshape": reshape,
    "SiLU": silu,
    "Sigmoid": same("Sigmoid"),
    "Slice": narrow,
    "Softmax": softmax,
    "Squeeze": squeeze,
    "StridedSlice": strided_slice,
    "Sub": same("Sub"),
    "Transpose": transpose,
    "TupleGetItem": item,
    "UpdateState": nothing,
}
