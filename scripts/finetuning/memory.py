"""Memory of a training step on a CPU, estimated before the step is compiled.

A step needs memory for the compiler, for the gradients, and for the maps that the forward pass
keeps for the backward pass. The maps are counted layer by layer, in an evaluation of one clip: a
convolutional network keeps the output of each layer once, a transformer also its transposed copies
and products. The constants fit measured peaks of the four networks, docs/measured/benchmarks.md.
"""

from mindspore import nn

from utils.complexity import count_layers

BYTES = 4  # of a number in float32
BUFFERS = 0.15e9  # of the compiler and of the kernels' threads
COPIES_OF_GRADIENTS = 2  # their own arrays, and the packed one
RECOMPUTE = "output_recompute"  # the flag that Cell.recompute sets
TRANSFORMER = ("layer norm", "dense", "attention")  # kinds of layers
COPIES_OF_MAPS = 3.6  # of such a layer
COPIES_IF_RECOMPUTED = 2.9
# Layers whose forward and backward pass are a few kernels of this zoo; all others are many.
SIMPLE = ("spatial convolution", "1x1 convolution", "batch norm", "activation", "pooling")


def estimate_step(net: nn.Cell, clip_shape: tuple[int, ...]) -> tuple[float, float]:
    """Additional bytes of a training step in float32: of any batch, and for each clip.

    The backward pass ends at the first layer with a trained weight: earlier maps are not held.
    """
    layers = count_layers(net, clip_shape)
    weights = sum(layer.parameters for layer in layers)
    cells = net.cells_and_names()
    recomputed = tuple(f"{name}." for name, cell in cells if RECOMPUTE in cell.get_flags())
    first = next(k for k, layer in enumerate(layers) if layer.parameters)
    trained = layers[max(first - 1, 0) :]  # from the one whose output is read there
    maps = 0.0
    for layer in trained:  # how often a step holds the output
        copies = COPIES_IF_RECOMPUTED if layer.name.startswith(recomputed) else COPIES_OF_MAPS
        maps += layer.outputs * (copies if layer.kind in TRANSFORMER else 1.0)
    maps = max(maps, *(layer.inputs + layer.outputs for layer in layers))
    simple = sum(layer.kind in SIMPLE for layer in layers)
    compiler = 1.2e6 * simple + 4e6 * (len(layers) - simple)
    return BUFFERS + compiler + BYTES * COPIES_OF_GRADIENTS * weights, BYTES * maps
