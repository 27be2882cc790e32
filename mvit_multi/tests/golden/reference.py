"""Writes `variants.json`: other depths, mixes of data sets and plain MViTv2-S, in float64.

From the root of the repository:

    python mvit_multi/tests/golden/reference.py            writes the file
    python mvit_multi/tests/golden/reference.py --check    compares; writes nothing

It needs PyTorch; the tests read only the file. The network is `benchmarks/torch/mvit_multi.py`,
which first reproduces the cases of JunweiLiang/MultiTrain 16723114 and facebookresearch/SlowFast
287ec007. A case is smaller than the published sizes if its depth and its stages are what matters.

torchvision 0.28.0 computed `torchvision_mvit_v2_small.json` and the names of its `mvit_v2_s` in
`names`; they are not recomputed here.
"""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[2])

from benchmarks.torch.mvit_multi import MViT, loss_of
from mvit_multi.tests.golden_case import MViTCase
from tests.golden import torch_results


def build(case: dict) -> MViT:
    return torch_results.fill_weights(MViT(**MViTCase(case).model_arguments()))


def evaluate(net: MViT, clip: torch.Tensor) -> dict:
    """Scores and probabilities of each head; those of a single head without its name."""
    logits: dict = {}
    net.head.register_forward_hook(lambda _, __, scores: logits.update(scores))
    output = dict(zip(net.datasets, net(clip)))
    return {"logits": logits, "output": output}


def compute_losses(case: dict, outputs: dict) -> dict:
    config = case["config"]
    train = case["train"]
    settings = {
        "smoothing": train.get("label_smoothing", 0.0),
        "smoothing_classes": train.get("smoothing_classes", 0),
        "projection_weight": config.get("MODEL.MULTI_PROJ_LOSS_WEIGHT", 1.0),
        "add_to_scores": config.get("MODEL.MULTI_CROSS_PROJ_ADD_TO_PRED", False),
        "informative_weight": "embedding" in outputs and config["MODEL.INF_LOSS_WEIGHT"],
        "std_weight": config.get("MODEL.INF_STD_WEIGHT"),
        "covariance_weight": config.get("MODEL.INF_COVAR_WEIGHT"),
    }
    names = MViTCase(case).model_arguments()["datasets"]
    rows = [(names[0], row) if isinstance(row, int) else row for row in case["labels"]]
    datasets, labels = zip(*((names.index(name), label) for name, label in rows))
    fraction = train.get("mixup_lam", 1.0)
    args = outputs, torch.tensor(labels), fraction, settings, torch.tensor(datasets)
    return {"loss": loss_of(*args)}


def compute_case(case: dict) -> dict:
    precisions = {"": torch.float64, "64": torch.float64}
    computed = torch_results.compute_results(
        case, build=build, compute_losses=compute_losses, evaluate=evaluate, precisions=precisions
    )
    if isinstance(case["eval"]["logits"], list):  # the original's single head has no name
        for key, value in computed["eval"].items():
            computed["eval"][key] = value.get("one", value)
    return computed


if __name__ == "__main__":
    names = ["mvit_multi_small", "mvit_multi_small_abspos", "mvit_v2_small"]
    torch_results.update_cases(__doc__, folder=HERE, compute_case=compute_case, originals=names)
