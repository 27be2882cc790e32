"""Runs a network's twin in eager PyTorch, a few steps at a time, for `benchmarks/benchmark.py`.

Lines of JSON on stdin, each answered by one on stdout. The first is the job: room, network (the
settings of its model), train (of its training), shape of a batch, share (of mixup, 1 for none),
threads; the answer is {"torch": version}. Each further one, {"work": "train" or "evaluate",
"seconds": s}, runs one step, and more until so many seconds have passed; the answer is {"seconds":
[of each step], "peak_gb": of this process so far}. {"error": text} answers what cannot be.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Callable

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch
from torch import nn

from benchmarks.torch.parts import mixed
from utils.processes import read_peak_memory


class Trial:
    """A twin, and one batch of made-up clips."""

    def __init__(self, job: dict):
        self.twin = importlib.import_module(f"benchmarks.torch.{job['network_name']}")
        self.train, self.fraction, self.count = job["train"], job["share"], 0
        self.net = self.twin.build_network(**job["network"])
        self.clips = torch.randint(0, 255, job["shape"], dtype=torch.uint8)
        self.labels = torch.arange(job["shape"][0]) % 2
        freeze_norms(self.net, self.train.get("batch_norm", "trained"))
        weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.weights, self.optimizer = weights, optimizer(weights, self.train)

    def train_step(self) -> None:
        x = mixed(self.net.normalize(self.clips), self.fraction)
        loss = self.twin.loss_of(self.net(x), self.labels, self.fraction, self.train)
        many = self.train["accumulation_steps"]
        (loss / many).backward()
        self.count += 1
        if self.count % many == 0:
            if self.train["clip_norm"]:
                nn.utils.clip_grad_norm_(self.weights, self.train["clip_norm"])
            self.optimizer.step()
            self.optimizer.zero_grad()

    def evaluate(self) -> None:
        with torch.no_grad():
            self.net(self.clips)

    def run(self, work: str, seconds: float) -> dict:
        training = work == "train"
        if self.net.training != training or not self.count:
            self.net.train(training)
            for norm in norms(self.net):
                norm.train(training and norm.weight.requires_grad)
        times = timed(self.train_step if training else self.evaluate, seconds)
        return {"seconds": times, "peak_gb": read_peak_memory()}


def timed(work: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of each run; at least one, and more until `seconds` have passed."""
    times = []
    while not times or sum(times) < seconds:
        began = time.monotonic()
        work()
        times.append(time.monotonic() - began)
    return times


def norms(net: nn.Module) -> list:
    return [m for m in net.modules() if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm3d))]


def freeze_norms(net: nn.Module, how: str) -> None:
    """`trained`, `frozen`, or `partial`: all 2-D ones but the first."""
    flat = [norm for norm in norms(net) if isinstance(norm, nn.BatchNorm2d)]
    for norm in {"trained": [], "frozen": norms(net), "partial": flat[1:]}[how]:
        norm.requires_grad_(False)


def optimizer(weights: list, train: dict) -> torch.optim.Optimizer:
    """AdamW where the settings have its betas, else SGD with momentum; ValueError for others."""
    if train.get("optimizer", "sgd") != "sgd" or train["ema_decay"]:
        raise ValueError(
            "train.optimizer, train.ema_decay: the twins have SGD and AdamW, no averages"
        )
    rest = {"lr": 1e-4, "weight_decay": train["weight_decay"]}
    if "betas" in train:
        return torch.optim.AdamW(weights, betas=train["betas"], eps=train["eps"], **rest)
    nesterov = train.get("nesterov", False)
    return torch.optim.SGD(weights, momentum=train["momentum"], nesterov=nesterov, **rest)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    try:
        trial = Trial(job)
    except ValueError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(trial.run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
