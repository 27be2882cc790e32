"""`run.tensorboard`: the values of `log.jsonl` as scalars by step, in files that TensorBoard reads.

tensorboardX's SummaryWriter writes from a thread, which a full disk ends, and then waits for it for
ever. So its records are written here, one after the other, and what the disk says is heard.
"""

import logging
import time
from pathlib import Path
from typing import Any, Optional

log = logging.getLogger("zoo")

TRAINING = ("loss", "top1", "lr", "loss_scale", "overflows", "clips_per_second", "waiting")
TEST = ("top1", "top5", "mean_class_accuracy")


class EventFiles:
    """Scalars of one run in a folder; nothing happens where it is None."""

    def __init__(self, folder: Optional[Path], done: int):
        """`done`: the steps that the run goes on from; what is known of later ones is hidden."""
        self.folder, self.done = folder, done
        self.writer: Any = None

    def write(self, step: int, values: dict) -> None:
        """A line of the log; an error of the disk is told, and ends the writing, not the run."""
        result = scalars(values)
        if self.folder is None or not result:
            return
        try:
            self.writer = self.writer or open_file(self.folder, self.done)
            self.writer.write_event(event(step, result))
            self.writer.flush()
        except OSError as error:
            log.warning("run.tensorboard: no more events in %s: %s", self.folder, error)
            self.folder = self.writer = None


def require_package() -> None:
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"run.tensorboard: tensorboardX cannot be imported ({error}); "
            "pip install tensorboardX, or leave run.tensorboard false"
        ) from None


def scalars(values: dict) -> dict[str, float]:
    """{tag: value} of a line of the log, of training or of a test; empty for any other."""
    if "loss" in values:
        return {f"train/{name}": values[name] for name in TRAINING if name in values}
    if "videos" not in values:
        return {}
    parts = {"validation": values}
    parts.update((f"validation_{name}", each) for name, each in values.get("sets", {}).items())
    return {
        f"{part}/{name}": each[name]
        for part, each in parts.items()
        for name in TEST
        if name in each
    }


def open_file(folder: Path, done: int):
    """A new file, which begins with the step from which on it replaces older ones."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(parents=True, exist_ok=True)
    writer = EventsWriter(str(folder / "events"))
    start = SessionLog(status=SessionLog.START)
    writer.write_event(Event(wall_time=time.time(), step=done + 1, session_log=start))
    return writer


def event(step: int, values: dict[str, float]):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    result = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=result))
