"""What the log says at the start of a run: batch and rate, for several numbers of devices."""

from types import SimpleNamespace

import pytest

from utils.data.sampler import TrainSampler
from utils.train.trainer import describe_device_counts, log_start


def make_settings(lr: float, base_batch: int, accumulation_steps: int = 1) -> SimpleNamespace:
    return SimpleNamespace(lr=lr, base_batch=base_batch, accumulation_steps=accumulation_steps)


def make_sampler(samples: int, batch: int, size: int) -> TrainSampler:
    return TrainSampler(samples, batch=batch, rank=0, size=size, seed=0)


@pytest.mark.parametrize(
    ("recipe", "sampler", "entries"),
    [
        (
            make_settings(0.00125, 8),
            make_sampler(240_000, 8, 48),
            {1: "8, lr 0.00125", 8: "64, lr 0.01", 48: "384, lr 0.06", 1536: "12288, lr 1.92"},
        ),
        # An uncommon number of devices. 100 samples cannot feed 32 devices with 4 each.
        (
            make_settings(0.1, 16, accumulation_steps=4),
            make_sampler(100, 4, 2),
            {1: "16, lr 0.1", 2: "32, lr 0.2", 8: "128, lr 0.8"},
        ),
        # Without a base batch the rate stays.
        (
            make_settings(0.1, 0, accumulation_steps=4),
            make_sampler(100, 4, 2),
            {1: "16, lr 0.1", 2: "32, lr 0.1", 8: "128, lr 0.1"},
        ),
    ],
)
def test_the_table_scales_batch_and_rate_and_marks_the_number_in_use(recipe, sampler, entries):
    _, *parts = describe_device_counts(recipe, sampler).split(" | ")
    table = dict(part.removeprefix("here ").split(": ") for part in parts)
    assert {devices: table[str(devices)] for devices in entries} == entries
    here = [part for part in parts if part.startswith("here")]
    assert here == [f"here {sampler.size}: {entries[sampler.size]}"]
    assert max(map(int, table)) == max(entries)


@pytest.mark.parametrize(
    ("base_batch", "words"), [(128, "lr 0.02 for 128 samples -> 0.04 for 256"), (0, "lr 0.02 for")]
)
def test_a_run_logs_its_batch_and_rate(log_messages, base_batch, words):
    recipe = make_settings(0.02, base_batch)
    sampler = make_sampler(10_000, 16, 16)
    log_start(recipe, sampler=sampler, segments=[(9, 10, 4_000_000)], start_step=0)
    text = "\n".join(log_messages)
    assert "16 a device x 16 devices x 1 accumulated = 256 an update" in text
    assert words in text
    assert "here 16: 256, lr " in text
