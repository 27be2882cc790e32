"""Predicts published scaling results with the planner's model, and prints both side by side.

    python benchmarks/scaling/predict_scaling.py [--out FOLDER]

Summit's TSM (arXiv:1910.00932) and ResNet-50 on V100 (Paddle's performance repository). Two numbers
are fitted: how much the devices' steps differ (from the two 8-GPU runs in float32) and the time to
load a frame on Summit (from TSM's rate on one node). Everything else is predicted; docs/scaling.md
discusses it. With --out, predicted.png. The last line of stdout is one JSON object.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

sys.path[0] = str(Path(__file__).resolve().parents[2])

from utils import cli  # isort: split

import numpy as np

from resnet50.model import build_network
from tsm.model import TSM
from utils import runtime
from utils.config import Run
from utils.distributed import plan_plots
from utils.distributed.cost_model import GIGA, Cluster, expected_maximum
from utils.distributed.fusion_planner import layer_ends, predict, segments_of
from utils.distributed.gradient_timing import Backward, count_backward
from utils.files import report_write_errors
from utils.nn.complexity import LayerCost, count_layers

MEGA = 1e6
SECONDS_ON_ONE_NODE = 49 * 3600 + 55 * 60  # TSM, 100 epochs of 240,000 clips
SECONDS_ON_SUMMIT = 14 * 60 + 13  # the same on 1,536 GPUs
# If the slow run was on one node of 6, which the article does not state.
PUBLISHED_EFFICIENCY = SECONDS_ON_ONE_NODE / SECONDS_ON_SUMMIT / 256
CLIPS, CLIPS_PER_GPU, EPOCHS = 240_000, 8, 100
# 8 V100 a node, NVLink inside, one 100 Gb/s InfiniBand port.
PADDLE = Cluster(devices_per_node=8, bandwidth=12.5, latency=5, local_bandwidth=100)
# 6 V100 a node, two NVLink bricks of 25 GB/s, two EDR ports of 12.5 GB/s; one flat ring.
SUMMIT = Cluster(devices_per_node=6, bandwidth=25, latency=5, local_bandwidth=50, algorithm="ring")
BUCKET = 25 * MEGA  # PyTorch's default
HOROVOD_BUCKET = 64 * MEGA  # Horovod's


@dataclass(frozen=True)
class Series:
    """Images per second on 1, 8 and 32 GPUs."""

    name: str
    batch: int
    rates: tuple[float, float, float]

    def efficiency(self, devices: int) -> float:
        return self.rates[(1, 8, 32).index(devices)] / self.rates[0] / devices

    @property
    def step(self) -> float:
        """Seconds of a step on one GPU."""
        return self.batch / self.rates[0]


FLOAT32 = (
    Series("PyTorch, FP32", 128, (369.63, 2795.87, 10393.2)),
    Series("Paddle, FP32", 96, (377.21, 2906.89, 11366.6)),
)
MIXED = (
    Series("PyTorch, AMP", 128, (807.56, 5790.00, 17940.7)),
    Series("Paddle, AMP", 128, (1342.56, 8690.84, 29715.2)),
)


@dataclass(frozen=True, eq=False)
class Network:
    """What a prediction needs of a network: layers, gradients, and the frames of a clip."""

    name: str
    layers: Sequence[LayerCost]
    names: Sequence[str]
    sizes: Sequence[int]
    frames: int

    @property
    def macs(self) -> int:
        return sum(layer.macs for layer in self.layers)

    def backward(self, step: float) -> Backward:
        """The backward pass, for a step of `step` seconds on one device."""
        return count_backward(self.names, self.sizes, self.layers, 1, Cluster(step_seconds=step))


def count_network(name: str, net, clip: tuple, frames: int) -> Network:
    weights = net.trainable_params()
    names, sizes = [p.name for p in weights], [4 * p.size for p in weights]
    return Network(name, count_layers(net, clip), names, sizes, frames)


def inflate_resnet(
    name: str, frames: int, strides: tuple[int, int, int], kernel: str, blocks
) -> Network:
    """ResNet-50 with kernels over time, for 400 classes, frames of 224 x 224.

    `strides` in time are those of conv1, pool1 and pool2. `kernel` chooses the convolution of a
    block that is 3 frames long: "3x1x1" the first, "3x3x3" the second. `blocks` are 1 for the
    blocks of each stage that have it.
    """
    layers, time, cin, size = [], frames // strides[0], 64, 56
    layers.append(convolution_cost("conv1", time, 112, 3, 64, 5 * 49))
    time //= strides[1]
    for stage, (depth, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512))):
        size = 56 >> stage
        for block in range(depth):
            length = 3 if blocks[stage][block % len(blocks[stage])] else 1
            first, second = (length, 9) if kernel == "3x1x1" else (1, 9 * length)
            before = 2 * size if stage and block == 0 else size  # the second convolution strides
            convolutions = (
                ("conv1", before, cin, width, first),
                ("conv2", size, width, width, second),
                ("conv3", size, width, 4 * width, 1),
                ("shortcut", size, cin, 4 * width, 1),
            )
            for part, *shape in convolutions[: 4 if block == 0 else 3]:
                layers.append(convolution_cost(f"layer{stage + 1}.{block}.{part}", time, *shape))
            cin = 4 * width
        time //= strides[2] if stage == 0 else 1
    layers.append(LayerCost("fc", "dense", 2048 * 400, 2048, 400, 2049 * 400))
    names = [f"{layer.name}.weight" for layer in layers]
    return Network(name, layers, names, [4 * layer.parameters for layer in layers], frames)


def convolution_cost(
    name: str, time: int, size: int, cin: int, cout: int, kernel: int
) -> LayerCost:
    """The cost of a convolution, with the parameters of its batch norm."""
    outputs = time * size * size * cout
    parameters = cin * cout * kernel + 2 * cout
    return LayerCost(name, "convolution", outputs * cin * kernel, 0, outputs, parameters)


def main(*, out: Optional[Path] = None) -> None:
    runtime.start(Run(device="CPU"))
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    net = build_network("resnet50", num_classes=1000, **plain)
    resnet = count_network("ResNet-50", net, (3, 224, 224), 1)
    jitter = fit_jitter()
    print(f"fitted: steps differ by {jitter:.1%} (standard deviation), from 8 GPUs in float32\n")
    rows = [row for series in FLOAT32 + MIXED for row in predict_paddle(series, resnet, jitter)]
    summit, ratios, facts = predict_all_on_summit(resnet, jitter)
    rows.append(summit)
    for line in format_rows(rows):
        print(line)
    for name, (predicted, published) in ratios.items():
        print(f"throughput of TSM over {name}: predicted {predicted:.2f}, published {published}")
    if out:
        draw_efficiency(out, resnet, jitter)
    result = {"jitter": round(jitter, 4), "efficiency": rows, "ratios": ratios}
    print(json.dumps({**result, **facts}))


def fit_jitter() -> float:
    """The jitter that best explains the loss on one node of 8 GPUs, which hides the AllReduce."""
    losses = [1 / series.efficiency(8) - 1 for series in FLOAT32]
    return float(np.mean(losses) / expected_maximum(8))


def predict_paddle(series: Series, resnet: Network, jitter: float) -> list[dict]:
    cluster, backward = replace(PADDLE, jitter=jitter), resnet.backward(series.step)
    ends, name = bucket_ends(backward, BUCKET), f"ResNet-50, {series.name}"
    return [
        build_row(name, n, predict(backward, cluster, n, ends).efficiency, series.efficiency(n))
        for n in (8, 32)
    ]


def build_row(name: str, devices: int, predicted: float, published: float) -> dict:
    numbers = {"foretold": round(predicted, 4), "published": round(published, 4)}
    return {"run": name, "devices": devices, **numbers}


def bucket_ends(backward: Backward, size: float) -> list[int]:
    """Segments of about `size` bytes, filled from the last layer on."""
    ends, filled = [], 0.0
    for first, end in reversed(segments_of(layer_ends(backward.names))):
        if not ends or filled >= size:
            ends.append(end)
            filled = 0.0
        filled += backward.sizes[first : end + 1].sum()
    return sorted(ends)


def predict_all_on_summit(resnet: Network, jitter: float) -> tuple[dict, dict, dict]:
    """The row of TSM, its throughput over the two I3D networks, and numbers of the networks."""
    networks, cluster = summit_networks(), replace(SUMMIT, jitter=jitter)
    tsm, published = networks[0], dict(zip(networks, (1.0, 1.6, 2.9)))
    seconds, sizes = {}, {}
    for network in networks:
        step = summit_step(network, tsm, resnet, cluster)
        seconds[network] = predict_summit(network, step, cluster, 1536).step
        sizes[network.name] = round(network.macs / GIGA, 1)
        print(f"{network.name}: {sizes[network.name]} G multiply-adds, {network.frames} frames")
    frame = loading_seconds(tsm, computing_seconds(tsm, resnet), cluster)
    print(f"fitted: a frame takes {1e3 * frame:.2f} ms to load, from TSM on one node of Summit")
    total = seconds[tsm] * CLIPS / CLIPS_PER_GPU / 1536 * EPOCHS
    print(f"TSM on 1,536 GPUs: {total:.0f} s predicted, {SECONDS_ON_SUMMIT} s published\n")
    node = predict_summit(tsm, summit_step(tsm, tsm, resnet, cluster), cluster, 6).step
    name = "TSM 8f on Summit, of one node"
    return (
        build_row(name, 1536, node / seconds[tsm], PUBLISHED_EFFICIENCY),
        {n.name: (round(seconds[n] / seconds[tsm], 3), published[n]) for n in networks[1:]},
        {"networks": sizes, "frame_ms": round(1e3 * frame, 3)},
    )


def summit_networks() -> tuple[Network, Network, Network]:
    """TSM 8f; I3D of 16 frames, all 3x3 kernels inflated; I3D of 32 frames, every other 1x1.

    The article gives neither layout nor counts of its I3D networks but for 33 G operations; these
    are the usual ones of ResNet-50.
    """
    clip = (8, 3, 224, 224)
    tsm = count_network("TSM 8f", TSM(num_classes=400, segments=8), clip, 8)
    everywhere, other = ((1,),) * 4, ((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0))
    pooled = inflate_resnet("I3D 3x3x3", 16, (2, 1, 2), "3x3x3", everywhere)
    plain = inflate_resnet("I3D 3x1x1", 32, (2, 2, 2), "3x1x1", other)
    return tsm, pooled, plain


def summit_step(network: Network, tsm: Network, resnet: Network, cluster: Cluster) -> float:
    """Seconds on one GPU: computing at ResNet-50's measured rate, then loading the frames.

    The time to load a frame follows from TSM's published time, taken to be that of one node.
    """
    frame = loading_seconds(tsm, computing_seconds(tsm, resnet), cluster)
    return computing_seconds(network, resnet) + CLIPS_PER_GPU * network.frames * frame


def computing_seconds(network: Network, resnet: Network) -> float:
    """A step's multiply-adds at the rate of ResNet-50 on one GPU."""
    return CLIPS_PER_GPU * network.macs / (FLOAT32[0].rates[0] * resnet.macs)


def loading_seconds(tsm: Network, computing: float, cluster: Cluster) -> float:
    """Seconds a frame that the 6 GPUs of a node need beyond computing, waiting and AllReduces."""
    step = SECONDS_ON_ONE_NODE / EPOCHS / (CLIPS / CLIPS_PER_GPU / 6)
    exposed = predict_summit(tsm, step, cluster, 6).exposed
    return ((step - exposed) / cluster.slowdown(6) - computing) / (CLIPS_PER_GPU * tsm.frames)


def predict_summit(network: Network, step: float, cluster: Cluster, devices: int):
    backward = network.backward(step)
    return predict(backward, cluster, devices, bucket_ends(backward, HOROVOD_BUCKET))


def format_rows(rows: list[dict]) -> list[str]:
    lines = [f"{'run':32} {'devices':>7} {'predicted':>9} {'published':>10} {'error':>7}"]
    for row in rows:
        predicted, published = row["foretold"], row["published"]
        lines.append(
            f"{row['run']:32} {row['devices']:7} {predicted:9.1%} {published:10.1%} "
            f"{100 * (predicted - published):+7.1f}"
        )
    return [*lines, ""]


def draw_efficiency(folder: Path, resnet: Network, jitter: float) -> None:
    """predicted.png: efficiency over devices; predictions are curves, published values crosses."""
    tsm = summit_networks()[0]
    cluster = replace(SUMMIT, jitter=jitter)
    step = summit_step(tsm, tsm, resnet, cluster)
    summit = [predict_summit(tsm, step, cluster, n) for n in (6, 48, 192, 384, 768, 1536)]
    # Published is the efficiency of one node's rate, not of one device's.
    name, fraction = "TSM 8f on Summit", PUBLISHED_EFFICIENCY * summit[0].efficiency
    curves, published = {name: summit}, {name: [(1536, fraction)]}
    paddle = replace(PADDLE, jitter=jitter)
    for series in FLOAT32:
        backward = resnet.backward(series.step)
        ends, name = bucket_ends(backward, BUCKET), f"ResNet-50, {series.name}"
        curves[name] = [predict(backward, paddle, n, ends) for n in (8, 32, 128)]
        published[name] = [(n, series.efficiency(n)) for n in (8, 32)]
    with report_write_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
    plan_plots.draw_scaling(folder / "predicted.png", curves, published)


if __name__ == "__main__":
    cli.run_command(main, __doc__)
