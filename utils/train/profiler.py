"""`run.profile`: a trace of a few training steps, by MindSpore's profiler.

The trace, `trace_view.json`, opens in MindStudio Insight, in TensorBoard with its plug-in, and, as
it is in Chrome's format, in any viewer of that.
"""

from pathlib import Path
from typing import Optional

from mindspore.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from utils.files import explained
from utils.log import log
from utils.runtime import Runtime
from utils.train.trace import time_shares

SKIPPED, WARM_UP, RECORDED = 3, 1, 5  # steps


class Profiling:
    """`start`, `step` after every step, `stop`; nothing happens where `folder` is None."""

    def __init__(self, folder: Optional[Path], rt: Runtime):
        self.folder, self.profiler = folder, None
        if folder is None:
            return
        with explained(folder, "run.profile"):
            folder.mkdir(parents=True, exist_ok=True)
        device = {"Ascend": [ProfilerActivity.NPU], "GPU": [ProfilerActivity.GPU]}
        self.profiler = profile(
            activities=[ProfilerActivity.CPU, *device.get(rt.device, [])],
            schedule=schedule(
                wait=0, warmup=WARM_UP, active=RECORDED, repeat=1, skip_first=SKIPPED
            ),
            on_trace_ready=tensorboard_trace_handler(str(folder)),
        )

    def start(self) -> None:
        if self.profiler:
            self.profiler.start()

    def step(self) -> None:
        if self.profiler:
            self.profiler.step()

    def stop(self) -> dict[str, float]:
        """Ends the trace; returns where its time went, where the back end tells."""
        if self.profiler is None:
            return {}
        self.profiler.stop()
        log.info("run.profile: the trace of steps %d to %d is in %s", *self.steps, self.folder)
        return time_shares(self.folder)

    @property
    def steps(self) -> tuple[int, int]:
        first = SKIPPED + WARM_UP + 1
        return first, first + RECORDED - 1
