"""The log: full disks, odd characters."""

from utils.log import FileHandler, log, start_log
from utils.runtime import Runtime


def test_a_log_file_on_a_full_disk_logs_one_line(log_messages, capsys):
    file = FileHandler("/dev/full")
    log.addHandler(file)
    for line in ("first", "second"):
        log.info(line)
    full = "no more lines in /dev/full: [Errno 28] No space left on device"
    assert log_messages == ["first", full, "second"]
    assert file not in log.handlers
    assert capsys.readouterr().err == ""


def test_control_characters_are_escaped_in_the_log(tmp_path, capsys):
    start_log(Runtime(), tmp_path)
    log.info("two lines\nand %s", "\x1b[2J\udce9")
    for handler in log.handlers:
        handler.close()
    log.handlers.clear()
    for text in (capsys.readouterr().err, (tmp_path / "run.log").read_text()):
        upper, lower = text.splitlines()
        assert upper.endswith(" two lines")
        assert lower == r"and \x1b[2J\xe9"
