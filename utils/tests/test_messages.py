"""Messages: the nearest name, addresses without their secrets."""

import logging
from pathlib import Path

import pytest

from utils import log
from utils.messages import format_line, hide_secrets

SECRETS = {
    "http://admin:word@127.0.0.1:1/x": "http://127.0.0.1:1/x",
    "http://admin:pa/word@127.0.0.1:1/x": "http://127.0.0.1:1/x",
    "http://admin:12/word@127.0.0.1:1/x": "http://127.0.0.1:1/x",
    "rtsp://admin:p/@/word@cam.local:554/live/1": "rtsp://cam.local:554/live/1",
    "rtsp://admin:#word@cam/live": "rtsp://...",
    "http://admin:pa?word@cam/live": "http://...",
    "http://admin:pa word@cam/live": "http://cam/live",
    "http://127.0.0.1:1/x?user=admin&password=word": "http://127.0.0.1:1/x",
    "http://admin:word@[::1]:1/x?token=word": "http://[::1]:1/x",
    "rtsp://10.0.0.1:554/user=admin_password=word_channel=1.sdp": "rtsp://10.0.0.1:554/",
    "rtsp://10.0.0.1/live;password=word": "rtsp://10.0.0.1/live",
    "http://host/x#token=word": "http://host/x",
    "http://10.0.0.1:1/x?user=a@b.c&password=word": "http://...",
    "admin:word@host/x": "host/x",
    "http://host:80/a/b.mp4": "http://host:80/a/b.mp4",
}


@pytest.mark.parametrize("address", SECRETS)
def test_an_address_is_shown_without_its_secrets(address):
    assert hide_secrets(address) == SECRETS[address]
    if " " not in address and "://" in address:
        text = format_line(f"error: cannot read {address}: '{address}' ({address}), it is gone; no")
        shown = SECRETS[address]
        dots = shown.rstrip(".")  # three dots at the end of an address are punctuation
        assert text.startswith(f"error: cannot read {dots}")
        assert text.endswith("it is gone; no")
        assert "word" not in text
        assert "admin" not in text


def test_a_path_that_was_an_address_is_shown_without_its_secrets():
    path = Path("http://admin:word@host/data") / "train.txt"
    assert format_line(f"{path} does not exist") == "http:/host/data/train.txt does not exist"
    assert format_line("take a@b.c, file://a/b and C:/d@e") == "take a@b.c, file://a/b and C:/d@e"


def test_a_log_line_hides_secrets():
    record = logging.LogRecord("", logging.INFO, "", 0, "http://a:word@host/x: gone", (), None)
    assert log.EscapingFormatter("%(message)s").format(record) == "http://host/x: gone"


@pytest.mark.parametrize("text", ["a" * 500_000, "http://" + "." * 500_000, "a:" * 250_000])
def test_the_search_for_addresses_is_linear(text):
    """A quadratic search takes minutes here."""
    assert len(format_line(text)) == 1000
