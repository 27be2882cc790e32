"""Rules that map the parameter names of other code bases to a network's names."""

import abc
from collections.abc import Iterable, Mapping
from typing import Any, Optional


class ParameterNames(abc.ABC):
    """The rules of one network. Two names mean the same weight if their canonical name is equal.

    `classifier` is a regular expression for the names here of the classifier's parameters: with the
    setting `train.new_head` they stay newly initialised, and with `train.head_lr_mult` they get a
    separate learning rate.
    """

    classifier: str

    @abc.abstractmethod
    def detect_format(self, names: Iterable[str]) -> str:
        """The code base that wrote the file: a `source_format` of the other methods.

        Raises ValueError if it is unknown.
        """

    @abc.abstractmethod
    def canonical_name(self, name: str, source_format: str = "own") -> Optional[str]:
        """The canonical name; None for a weight that is dropped on purpose."""

    def original_name(self, name: str, settings: Mapping[str, Any]) -> str:
        """The name in the original's own files; `settings` are the arguments of the model."""
        return name

    def fit_shape(self, name: str, shape: tuple, target_shape: tuple) -> Optional[str]:
        """How an array of another shape can be used: a rule of `checkpoint.fit_array`, or None."""
        return None

    def default_value(self, name: str, source_format: str) -> Optional[float]:
        """The value of a weight that the file leaves out; None: the file must contain it."""
        return None

    def is_new(self, name: str, source_format: str) -> bool:
        """Whether networks of this format have no such weight: it stays newly initialised."""
        return False
