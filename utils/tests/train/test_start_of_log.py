"""What the log says at the start of a run: batch and rate, for several numbers of devices."""

from types import SimpleNamespace

import pytest

from utils.data.sampler import TrainSampler
from utils.train.trainer import describe_device_counts, log_start


def make_recipe(lr: float, base_batch: int, accumulation_steps: int = 1) -> SimpleNamespace:
    return SimpleNamespace(lr=lr, base_batch=base_batch, accumulation_steps=accumulation_steps)


def make_sampler(samples: int, batch: int, size: int) -> TrainSampler:
    return TrainSampler(samples, batch=batch, rank=0, size=size, seed=0)


def test_the_table_scales_batch_and_rate_and_marks_the_number_in_use():
    line = describe_device_counts(make_recipe(0.00125, 8), make_sampler(240_000, 8, 48))
    assert line == (
        "devices: samples an update, peak lr | 1: 8, lr 0.00125 | 8: 64, lr 0.01 | "
        "32: 256, lr 0.04 | here 48: 384, lr 0.06 | 96: 768, lr 0.12 | 128: 1024, lr 0.16 | "
        "192: 1536, lr 0.24 | 384: 3072, lr 0.48 | 768: 6144, lr 0.96 | 1536: 12288, lr 1.92"
    )


@pytest.mark.parametrize(("base_batch", "peak"), [(0, 0.1), (16, 0.2)])
def test_the_table_includes_accumulation_an_uncommon_number_and_small_data(base_batch, peak):
    """100 samples cannot feed 32 devices with 4 each; without a base batch the rate stays."""
    line = describe_device_counts(
        make_recipe(0.1, base_batch, accumulation_steps=4), make_sampler(100, 4, 2)
    )
    one, two, eight = (f"{0.1 if not base_batch else peak * n / 2:g}" for n in (1, 2, 8))
    assert line.split(" | ")[1:] == [
        f"1: 16, lr {one}",
        f"here 2: 32, lr {two}",
        f"8: 128, lr {eight}",
    ]


@pytest.mark.parametrize(
    ("base_batch", "words"),
    [(128, "lr 0.02 for 128 samples -> 0.04 for 256"), (0, "lr 0.02 for any batch")],
)
def test_a_run_logs_its_batch_and_rate(log_messages, base_batch, words):
    log_start(
        make_recipe(0.02, base_batch),
        sampler=make_sampler(10_000, 16, 16),
        segments=[(9, 10, 4_000_000)],
        start_step=0,
    )
    text = "\n".join(log_messages)
    assert "16 a device x 16 devices x 1 accumulated = 256 an update" in text
    assert words in text
    assert "here 16: 256, lr " in text
