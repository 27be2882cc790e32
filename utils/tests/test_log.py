"""The log: odd characters."""

from utils.log import log, start_log
from utils.runtime import Runtime


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
