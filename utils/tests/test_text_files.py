"""Annotation files and class names in unusual encodings: correct values, or a one-line error."""

import os

import pytest

from utils.data.annotation_file import AnnotationFile, read_annotations, read_class_names
from utils.files import read_text

NAMES = ["café", "naïve", "日本"]
TEXT = "".join(f"{name}\n" for name in NAMES)
GOOD = {
    "UTF-8": TEXT.encode(),
    "UTF-8 with a mark": TEXT.encode("utf-8-sig"),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16, big end first": "\ufeff".encode("utf-16-be") + TEXT.encode("utf-16-be"),
    "CRLF": TEXT.replace("\n", "\r\n").encode(),
}
BAD = {  # (contents, words of the message)
    "Latin-1": (b"a\ncaf\xe9\nb\n", "line 2 is not UTF-8"),
    "zero bytes": (b"a\nb\nc\0\n", "line 3 is not UTF-8"),
    "half a letter of UTF-16": (TEXT.encode("utf-16")[:-1], "is not UTF-8"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_text_is_read_in_every_detectable_encoding(kind, tmp_path):
    (tmp_path / "labels.txt").write_bytes(GOOD[kind])
    assert read_class_names(tmp_path / "labels.txt", "labels", 3) == NAMES


@pytest.mark.parametrize("kind", BAD)
def test_unreadable_class_names_are_refused_with_the_line(kind, tmp_path):
    content, words = BAD[kind]
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(ValueError, match=f"^--labels x.*{words}"):
        read_class_names(tmp_path / "labels.txt", "--labels x", 3)


@pytest.mark.parametrize("kind", ["pipe", "folder", "none", "n" * 300, "huge"])
def test_a_path_without_a_text_file_is_refused_at_once(kind, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="^the file (is not|does not exist|is larger)"):
        read_text(tmp_path / kind, "the file")


@pytest.fixture
def read_listing(tmp_path):
    """read_listing(content): the file names of an annotation file; the files NAMES exist."""
    for name in (*NAMES, "caf\udce9"):
        (tmp_path / f"{name}.mp4").touch()

    def call(content: bytes) -> list:
        path = tmp_path / "list.txt"
        path.write_bytes(content)
        file = AnnotationFile("list.txt", path=path, root=tmp_path, source="video", num_classes=10)
        return [record.path.rpartition("/")[2] for record in read_annotations(file)[0]]

    return call


def test_a_latin_1_annotation_file_matches_latin_1_file_names(read_listing):
    assert read_listing(b"caf\xe9.mp4 1\n") == ["caf\udce9.mp4"]
