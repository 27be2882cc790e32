"""Outputs replace no input and no file of somebody else; unfinished files have random names."""

import os
import stat

import pytest

from utils import files


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_not_replaced(link, overwrite, tmp_path):
    """Neither under its own name, which may be spelt in another way, nor by a link."""
    source = tmp_path / "a.csv"
    source.write_text("mine")
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / ".." / "a.csv"
    if link:
        target = tmp_path / "b.csv"
        link(source, target)
    inputs = ["http://a/b", "0", "", str(source)]
    with pytest.raises(ValueError, match=f"--save: the command reads {target}"):
        files.check_target(target, inputs, "--save", overwrite)


def test_an_input_that_does_not_exist_yet_is_recognised(tmp_path):
    with pytest.raises(ValueError, match="which would be replaced"):
        files.check_inputs([tmp_path / "a"], [tmp_path / "b" / ".." / "a"])


def test_an_existing_file_is_replaced_only_if_the_user_says_so(tmp_path):
    target = tmp_path / "a.csv"
    files.check_target(target)
    target.symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"--target: {target} exists; --overwrite"):
        files.check_target(target)
    files.check_target(target, overwrite=True)
    with pytest.raises(ValueError, match=f"{tmp_path} is a folder"):
        files.check_target(tmp_path, overwrite=True)


def test_a_folder_with_files_must_be_of_the_command(tmp_path):
    """By the names and contents of its main files: one is there, and none is another one."""
    own = {"report.json": r"\{", "part-*": "$"}
    files.check_folder(tmp_path / "new", own)
    (tmp_path / "empty" / ".cache").mkdir(parents=True)
    for hidden in (tmp_path / ".DS_Store", tmp_path / "empty" / ".cache" / "a"):
        hidden.touch()
    files.check_folder(tmp_path, own)
    (tmp_path / "empty" / "mine").touch()
    for name, text in (("report.jso", "{}"), ("part-1", "mine")):
        (tmp_path / name).write_text(text)
        (tmp_path / "report.json").symlink_to("report.jso")
        with pytest.raises(ValueError, match=f"--report: {tmp_path} has files"):
            files.check_folder(tmp_path, own, "--report")
        (tmp_path / "report.json").unlink()
        (tmp_path / name).unlink()
    (tmp_path / "part-1").touch()
    files.check_folder(tmp_path, own)


def test_an_unfinished_file_has_a_name_that_nobody_else_has(tmp_path):
    """A file or link of the user with a likely name stays; the new file can be read by others."""
    target = tmp_path / "a.txt"
    for name in ("a.txt.tmp", ".a.txt.tmp", "mine"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "a.txt.part").symlink_to("mine")
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    with files.open_replacement(target) as first, files.open_replacement(target) as second:
        first.write("first")
        second.write("second")
    assert target.read_text() == "first"
    assert {path: path.read_text() for path in tmp_path.iterdir() if path != target} == before
    mode = stat.S_IMODE(target.stat().st_mode)
    (tmp_path / "plain").touch()
    assert mode == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")
    with pytest.raises(KeyError), files.open_replacement(target):
        raise KeyError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
