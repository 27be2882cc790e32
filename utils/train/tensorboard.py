"""`run.tensorboard`: the values of `log.jsonl` as scalars by step, in files for TensorBoard."""

from pathlib import Path
from typing import Any

from utils.files import report_write_errors

TRAINING = ("loss", "top1", "lr", "loss_scale", "overflows", "clips_per_second", "waiting")
TEST = ("top1", "top5", "mean_class_accuracy", "map", "loss")


def open_writer(folder: Path, start_step: int) -> Any:
    """A tensorboardX.SummaryWriter. TensorBoard hides older values of steps after `start_step`.

    It flushes every second: kill -9 loses the values of the last second.
    """
    from tensorboardX import SummaryWriter

    with report_write_errors(folder, "run.tensorboard"):
        return SummaryWriter(str(folder), purge_step=start_step + 1, flush_secs=1)


def require_package() -> None:
    """Raises ValueError if tensorboardX cannot be imported."""
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"run.tensorboard: tensorboardX cannot be imported ({error}); "
            "pip install tensorboardX, or leave run.tensorboard false"
        ) from None


def select_scalars(values: dict) -> dict[str, float]:
    """{tag: value} of a log line of training or of a validation; empty for any other line."""
    if "videos" not in values:
        line = values if "loss" in values else {}
        return {f"train/{name}": line[name] for name in TRAINING if name in line}
    tables = {"validation": values}
    tables.update((f"validation_{name}", table) for name, table in values.get("sets", {}).items())
    return {
        f"{title}/{name}": table[name]
        for title, table in tables.items()
        for name in TEST
        if table.get(name) is not None  # top5 of few classes
    }
