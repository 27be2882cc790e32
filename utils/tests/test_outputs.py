"""Outputs replace no input and no file of somebody else; small JSON files."""

import os

import pytest

from utils import files


def make_symlink(source, target):
    target.symlink_to(source)


@pytest.mark.parametrize("link", [os.link, make_symlink, None])
def test_an_input_is_not_replaced(link, tmp_path):
    """Neither under its own name, which may be spelt in another way, nor by a link."""
    source = tmp_path / "a.csv"
    source.write_text("mine")
    target = tmp_path / "sub" / ".." / "a.csv"
    if link:
        target = tmp_path / "b.csv"
        link(source, target)
    (tmp_path / "sub").mkdir()
    with pytest.raises(ValueError, match=f"--out: the command reads {target}"):
        files.check_outputs([tmp_path / "c.csv", target], inputs=["http://a/b", "0", str(source)])
    assert not (tmp_path / files.OUTPUTS).exists()


def test_an_input_that_does_not_exist_yet_is_recognised(tmp_path):
    with pytest.raises(ValueError, match="which would be replaced"):
        files.check_outputs([tmp_path / "a"], inputs=[tmp_path / "b" / ".." / "a"])


def test_a_command_replaces_what_it_wrote_before_and_nothing_else(tmp_path):
    file = tmp_path / "new" / "train.txt"
    for text in ("a", "b"):
        files.write_text(file, text, "--out")
    assert file.read_text() == "b"
    for change in (lambda: file.write_text("c"), file.with_name("test.txt").touch):
        change()
        with pytest.raises(ValueError, match="txt exists and is not as the zoo wrote it: move it"):
            files.check_outputs([file, file.with_name("test.txt")])
        file.write_text("b")
    assert file.read_text() == "b"


def test_a_file_that_a_killed_command_wrote_is_replaced(tmp_path):
    file = tmp_path / "a.csv"
    guard = files.guard_outputs([file])
    guard.__enter__()
    file.write_text("whole")  # and the kill comes before the file is noted
    files.write_text(file, "again", "--out")
    with open(tmp_path / files.OUTPUTS, "a") as notes:
        notes.write('["a.csv", "cut')
    files.write_text(file, "third", "--out")
    assert file.read_text() == "third"


def test_a_file_that_came_after_a_failed_command_is_not_replaced(tmp_path):
    file = tmp_path / "a.csv"
    with pytest.raises(KeyError), files.guard_outputs([file]):
        raise KeyError
    file.write_text("mine")
    with pytest.raises(ValueError, match="not as the zoo wrote it"):
        files.write_text(file, "text", "--out")


def test_only_own_files_and_folders_are_deleted(tmp_path):
    own = tmp_path / "own.png"
    files.write_text(own, "text", "--out")
    (tmp_path / "mine.png").touch()
    for name in ("own.png", "mine.png", "none.png"):
        files.delete_output(tmp_path / name)
    assert [path.name for path in tmp_path.glob("*.png")] == ["mine.png"]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine").touch()
    with pytest.raises(ValueError, match="logs exists and is not of the zoo: move it away"):
        files.make_own_folder(tmp_path / "logs")
    for _ in range(2):
        files.make_own_folder(tmp_path / "work")
        (tmp_path / "work" / "file").touch()


def test_a_copy_is_an_output(tmp_path):
    (tmp_path / "labels.txt").write_text("a\n")
    with pytest.raises(ValueError, match="which would be replaced"):
        files.copy_output(tmp_path / "labels.txt", tmp_path / "labels.txt")
    files.copy_output(tmp_path / "labels.txt", tmp_path / "out" / "labels.txt")
    assert (tmp_path / "out" / "labels.txt").read_text() == "a\n"


def test_odd_names_of_outputs_are_noted(tmp_path):
    for name in ("a\nb", "é\udce9", '"'):
        files.note_output(tmp_path / name, files.PENDING)
        (tmp_path / name).touch()
        files.check_outputs([tmp_path / name])


@pytest.mark.parametrize("text", ["null", "5", "[]", "[" * 100_000, "{", "\0", "1" * 5000])
def test_a_damaged_json_file_is_one_line(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"^a.json ") as caught:
        files.read_json(tmp_path / "a.json", "a.json")
    assert "\n" not in str(caught.value)
