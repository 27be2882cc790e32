"""What a training is to do: the loop of utils/train/trainer.py follows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from utils.config import Run
from utils.data.sampler import Order


@dataclass
class Plan:
    """A run: for how long, at what rates, and what to ask on the way."""

    run: Run
    epochs: int
    order: Order
    rates: Sequence[float]  # learning rate per update
    too_many_bad: Callable[[], str]  # a line where too many videos could not be read, else ""
    evaluate: Optional[Callable[[], dict]] = None
    prepare: Optional[Callable[[int], None]] = None  # before saves of an epoch and evaluations
