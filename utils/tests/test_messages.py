"""Hints of messages: the nearest name, and the commands of an installed package."""

import logging

import pytest

from utils import log, messages
from utils.messages import check_choice, format_line


@pytest.mark.parametrize(
    ("name", "names", "message"),
    [
        ("epcohs", ["lr", "epochs"], "unknown setting train.epcohs; nearest: epochs"),
        ("freeze", [*"abcdefgh", "pretrained"], "unknown setting train.freeze"),
        ("class_weights", [*"abcdefgh", "weight_decay"], "unknown setting train.class_weights"),
        ("speed", ["ring", "tree"], "unknown setting train.speed; there are ring, tree"),
    ],
)
def test_only_a_similar_name_is_suggested(name, names, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check_choice(name, names, "setting train.")
    assert str(error.value) == message


def test_an_installed_package_names_its_commands(monkeypatch):
    """Its user has no file scripts/data/make_lists.py."""
    text = "make one: scripts/data/make_lists.py; python scripts/launch_mpi.py; see /a/scripts/b.py"
    assert format_line(text) == text
    monkeypatch.setattr(messages, "is_installed", lambda: True)
    named = "make one: zoo make-lists; zoo launch-mpi; see /a/scripts/b.py"
    assert format_line(text) == named
    record = logging.LogRecord("zoo", logging.INFO, "", 0, text, None, None)
    assert log.EscapingFormatter("%(message)s").format(record) == named
