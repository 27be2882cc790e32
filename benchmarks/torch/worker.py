"""Runs the PyTorch reference of a network, a few steps at a time, for `benchmarks/benchmark.py`.

It reads lines of JSON and answers each with a line. The first line is the job: network_name,
network (settings of the model), train (settings of the training), shape of a batch, fraction (of
mixup, 1 for none), layout (default or channels_last), compiled (by `torch.compile`; evaluation with
weights that are frozen), threads, device (cpu or cuda), half (float16 autocast), tf32; the answer
is {"torch": version}.
A line {"files": the arguments of `Views`, and workers} evaluates videos; the answer is {"seconds":
of all after the first one, "peak_gb": of this process, without those that read the videos}.
Each further line, {"work": "train" or "evaluate", "seconds": s}, runs steps, at least one, until s
seconds have passed; the answer is {"seconds": [of each step], "peak_gb": of this process so far}.
An error is {"error": text}.
"""

import importlib
import json
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.torch.parts import freeze_norms, mix_batch, put_channels_last, set_training


class Trial:
    """A reference, and one batch of synthetic clips."""

    def __init__(self, job: dict):
        self.reference = importlib.import_module(f"benchmarks.torch.{job['network_name']}")
        self.train = job["train"]
        self.fraction = job["fraction"]
        self.count = 0
        self.device = torch.device(job["device"])
        self.half = job["half"]
        self.net = self.reference.build_network(**job["network"]).to(self.device)
        self.clips = torch.randint(0, 255, job["shape"], dtype=torch.uint8)
        self.labels = torch.arange(job["shape"][0]) % 2
        self.arrange = lambda clips: clips
        if job["layout"] == "channels_last":
            self.arrange = partial(put_channels_last, self.net)
        self.clips = self.arrange(self.clips)
        self.inputs = self.clips.to(self.device)
        self.labels = self.labels.to(self.device)
        freeze_norms(self.net, self.train.get("batch_norm", "trained"))
        self.weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.optimizer = build_optimizer(self.weights, self.train)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.half)
        self.scores = self.net
        if job["compiled"]:
            self.compute_loss = torch.compile(self.compute_loss, dynamic=False)
            self.scores = torch.compile(self.net, dynamic=False, options={"freezing": True})

    def compute_loss(self) -> torch.Tensor:
        x = mix_batch(self.net.normalize(self.inputs), self.fraction)
        with torch.autocast(self.device.type, torch.float16, enabled=self.half):
            scores = self.net(x)
        return self.reference.loss_of(scores, self.labels, self.fraction, self.train)

    def train_step(self) -> None:
        accumulation_steps = self.train["accumulation_steps"]
        self.scaler.scale(self.compute_loss() / accumulation_steps).backward()
        self.count += 1
        if self.count % accumulation_steps == 0:
            if self.train["clip_norm"]:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.weights, self.train["clip_norm"])
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        if self.device.type == "cuda":  # which computes while Python goes on
            torch.cuda.synchronize()

    def evaluate(self, clips: torch.Tensor) -> None:
        with torch.no_grad(), torch.autocast(self.device.type, torch.float16, enabled=self.half):
            scores = self.scores(clips.to(self.device))
        for output in scores if isinstance(scores, (list, tuple)) else [scores]:
            output.cpu()

    def evaluate_files(self, workers: int, **files: Any) -> dict:
        set_training(self.net, False)
        began = 0.0
        options = {"num_workers": workers, "multiprocessing_context": "spawn"}
        for views in DataLoader(Views(**files), batch_size=None, **options):
            self.evaluate(self.arrange(views))
            began = began or time.monotonic()
        seconds = time.monotonic() - began
        return {"seconds": seconds, "peak_gb": read_peak_memory(self.device)}

    def run(self, work: str, seconds: float) -> dict:
        training = work == "train"
        if self.net.training != training or not self.count:
            set_training(self.net, training)
        step = self.train_step if training else partial(self.evaluate, self.clips)
        times = []
        while not times or sum(times) < seconds:
            began = time.monotonic()
            step()
            times.append(time.monotonic() - began)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # for the others that take turns
        return {"seconds": times, "peak_gb": read_peak_memory(self.device)}


class Views(Dataset):
    """The views of videos as users of PyTorch read them: uint8 (V, ...), by decord and OpenCV.

    `videos` are pairs of a path and frame indices (clips, T). The short side is resized to `side`.
    One crop is in the centre; three are along the long side.
    """

    def __init__(
        self, videos: Sequence[tuple], side: int, crop: int, crops: int, channels_first: bool
    ):
        self.videos = videos
        self.side = side
        self.crop = crop
        self.places = (0.0, 0.5, 1.0) if crops == 3 else (0.5,)
        self.channels_first = channels_first

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, index: int) -> torch.Tensor:
        import cv2  # here: a training needs neither
        import decord

        cv2.setNumThreads(0)  # a process of the DataLoader has one core
        path, clips = self.videos[index]
        numbers, order = np.unique(clips, return_inverse=True)
        frames = decord.VideoReader(path, num_threads=1).get_batch(numbers).asnumpy()
        scale = self.side / min(frames.shape[1:3])
        height, width = (round(scale * edge) for edge in frames.shape[1:3])
        frames = np.stack([cv2.resize(frame, (width, height)) for frame in frames])
        crops = []
        for place in self.places:
            y, x = (
                round((edge - self.crop) * (place if edge == max(height, width) else 0.5))
                for edge in (height, width)
            )
            crops.append(frames[:, y : y + self.crop, x : x + self.crop])
        views = np.stack(crops)[:, order.reshape(np.shape(clips))]  # (crops, clips, T, H, W, C)
        axes = (0, 1, 5, 2, 3, 4) if self.channels_first else (0, 1, 2, 5, 3, 4)
        views = np.ascontiguousarray(views.transpose(axes))
        return torch.from_numpy(views.reshape(-1, *views.shape[2:]))


def read_peak_memory(device: torch.device) -> float:
    """The largest memory that this process has held so far, in GB; on a GPU, of its memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e9


def build_optimizer(weights: list, train: dict) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum, which is the default; ValueError for other optimizers."""
    name = train.get("optimizer", "sgd")
    if name not in ("adamw", "sgd") or train["ema_decay"]:
        settings = "train.optimizer, train.ema_decay"
        raise ValueError(f"{settings}: the PyTorch references have SGD and AdamW, no averages")
    if train["freeze"] or train["class_weights"] or train.get("layer_decay", 1) < 1:
        settings = "train.freeze, train.class_weights, train.layer_decay"
        raise ValueError(f"{settings}: the PyTorch references train all weights alike")
    options = {"lr": 1e-4, "weight_decay": train["weight_decay"], "fused": True}
    if name == "adamw":
        return torch.optim.AdamW(weights, **options)
    nesterov = train.get("nesterov", False)
    return torch.optim.SGD(weights, momentum=train["momentum"], nesterov=nesterov, **options)


def main() -> None:
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    torch.backends.cudnn.benchmark = True  # shapes are fixed
    torch.backends.cudnn.allow_tf32 = job["tf32"]
    torch.backends.cuda.matmul.allow_tf32 = job["tf32"]
    try:
        trial = Trial(job)
    except ValueError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        answer = trial.evaluate_files(**work["files"]) if "files" in work else trial.run(**work)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
