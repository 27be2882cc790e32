"""Writes `cam.json`: Grad-CAM of golden cases, computed by PyTorch in float64.

From the root of the repository:

    python tests/golden/cam_reference.py            writes the file
    python tests/golden/cam_reference.py --check    compares; writes nothing

It needs PyTorch; the tests read only the file. Networks and weights are those of
`<network>/tests/golden/reference.py`. `maps` are the heat maps (T, H, W) of the first clip, with
the size of the layer, for the class `label` of a head. `scaled` describes them after an
interpolation to the frames of the input and a division by the maximum: sum, and first frame's
diagonal.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[1])

from tests.golden.torch_results import list_differences, to_digits
from tests.golden_cases import generate_input, load_case

# {case: (shape of the clip, layer, layer of logits)}. X3D reads more frames and larger crops
# than in training, so that its head has several positions.
CASES = {
    "resnet50/tests/golden/resnet50_small.json": ((3, 96, 128), "layer4", "fc"),
    "tsm/tests/golden/tsm_r50_8f_small.json": ((8, 3, 64, 64), "base_model.layer4", "new_fc"),
    "x3d/tests/golden/x3d_s_small.json": ((3, 4, 72, 104), "head.conv_5_relu", "head.projection"),
    "mvit_multi/tests/golden/mvit_multi_small.json": (
        (3, 8, 32, 32),
        "blocks.{last}.norm1",
        "head.heads.mit.fc2",
    ),
    "mvit_multi/tests/golden/mvit_v2_small.json": (
        (3, 8, 52, 52),
        "blocks.{last}.norm1",
        "head.projection",
    ),
}
HEADS = {"mvit_multi/tests/golden/mvit_multi_small.json": 1}  # the others have one


def compute_gradient(net: nn.Module, clip: Tensor, layer: str, scores: str) -> tuple:
    """(output of `layer`, its gradient, class): of the highest logit, averaged over places."""
    modules = dict(net.named_modules())
    outputs = {}
    for name in (layer, scores):
        modules[name].register_forward_hook(
            lambda _, __, output, name=name: outputs.update({name: output})
        )
    net(clip[None])
    mean = outputs[scores].flatten(0, -2).mean(0)
    label = int(mean.argmax())
    (gradient,) = torch.autograd.grad(mean[label], outputs[layer])
    return outputs[layer].detach(), gradient, label


def arrange(network: str, x: Tensor, frames: int) -> Tensor:
    """The output of a layer for one clip as maps (C, T, H, W)."""
    if network == "x3d":
        return x[0]
    if network == "mvit_multi":  # a square grid of two frames a token, maybe with a class token
        side = int((x.shape[1] / (frames // 2)) ** 0.5)
        tokens = x[:, x.shape[1] - frames // 2 * side * side :]
        return tokens[0].T.unflatten(1, (frames // 2, side, side))
    return x.transpose(0, 1)


def compute_case(path: str) -> dict:
    shape, layer, scores = CASES[path]
    network = path.split("/")[0]
    reference = importlib.import_module(f"{network}.tests.golden.reference")
    case = load_case(HERE.parents[1] / path)
    net = reference.build(case).double().eval()
    if network == "mvit_multi":
        layer = layer.format(last=len(net.blocks) - 1)
    clip = torch.from_numpy(generate_input(case["input_seed"], shape)).double()
    maps, gradient, label = compute_gradient(net, clip=clip, layer=layer, scores=scores)
    frames = 1 if network == "resnet50" else shape[0 if network == "tsm" else 1]
    maps = arrange(network, maps, frames)
    weights = arrange(network, gradient, frames).mean((2, 3), keepdim=True)
    heat = torch.relu((weights * maps).sum(0))
    size = (frames, *shape[-2:])
    scaled = F.interpolate(heat[None, None], size=size, mode="trilinear", align_corners=False)[0, 0]
    scaled = scaled / scaled.max()
    return {
        "case": path,
        "input_seed": case["input_seed"],
        "input_shape": shape,
        "head": HEADS.get(path, 0),
        "label": label,
        "maps": to_digits(heat, 9),
        "scaled": to_digits({"sum": scaled.sum(), "diagonal": scaled[0].diagonal()}, 9),
    }


def main() -> None:
    torch.set_num_threads(1)
    results = [json.loads(json.dumps(compute_case(path))) for path in CASES]
    file = HERE / "cam.json"
    if "--check" not in sys.argv[1:]:
        file.write_text(json.dumps(results, separators=(",", ":")) + "\n")
        return
    for recorded, computed in zip(json.loads(file.read_text()), results):
        for key, difference in list_differences(recorded, computed):
            if difference > 1e-6:
                raise ValueError(f"{recorded['case']}{key}: differs by {difference:.2g}")


if __name__ == "__main__":
    main()
