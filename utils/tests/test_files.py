"""Names of files are escaped when printed; locks of folders."""

import pytest

from utils.files import lock_folder, wait_for_lock
from utils.messages import escape_control


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name.mp4", "plain name.mp4"),
        ("ein Bär – 熊 😀", "ein Bär – 熊 😀"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("two\nlines\ttab\r", r"two\nlines\ttab\r"),
        ("gpj.\u202egnp\u2028", r"gpj.\u202egnp\u2028"),
        (b"caf\xe9.mp4".decode("utf-8", "surrogateescape"), r"caf\xe9.mp4"),
        ("lone \ud800", r"lone \ud800"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_kept(text, shown):
    assert escape_control(text) == shown
    shown.encode("utf-8")


def test_a_shared_lock_excludes_only_the_other_kind(tmp_path):
    shared = [lock_folder(tmp_path, shared=True) for _ in range(2)]
    assert None not in shared
    assert lock_folder(tmp_path) is None
    for lock in shared:
        lock.close()
    with lock_folder(tmp_path):
        assert lock_folder(tmp_path, shared=True) is None
        assert lock_folder(tmp_path, ".lock.1-of-2") is not None


def test_a_process_waits_for_a_lock_and_says_so_once(tmp_path):
    lines = []
    with lock_folder(tmp_path), pytest.raises(ValueError, match=r"held .*\.lock for 0.3 s"):
        wait_for_lock(tmp_path, lambda: lines.append("waiting"), 0.3)
    assert lines == ["waiting"]
    wait_for_lock(tmp_path, lines.clear, 0.3).close()
    assert lines == ["waiting"]
