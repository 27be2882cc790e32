"""Files of a folder: suffixes of any case, hidden and system files, links."""

import os

import pytest

from utils.video.media_files import VIDEO_SUFFIXES, compute_stamp, describe_left_out, find_files

SYSTEM = (
    "__MACOSX", "@eaDir", "$RECYCLE.BIN", "$Recycle.Bin", "System Volume Information",
    ".Trash-1000", "lost+found", "#recycle", "Thumbs.db", "desktop.ini", "._0.mp4", ".DS_Store",
    ".ipynb_checkpoints", "Network Trash Folder", "Temporary Items", "FOUND.000", "LOST.DIR",
    "~snapshot",
)  # fmt: skip


@pytest.mark.parametrize("name", SYSTEM)
def test_a_system_name_is_left_out_and_counted(name, tmp_path):
    (tmp_path / "up" / name).mkdir(parents=True)
    (tmp_path / "up" / "0.mp4").touch()
    (tmp_path / "up" / name / "1.mp4").touch()
    scan = find_files(tmp_path, VIDEO_SUFFIXES)
    assert (scan.files, scan.others, scan.system) == (["up/0.mp4"], [], [f"up/{name}"])
    assert f"(1): up/{name}" in describe_left_out(scan, "videos")


def test_files_are_in_the_order_of_their_folders(tmp_path):
    for name in ("a b/1.mp4", "a/2.MP4", "a/10.mkv", "a/notes.txt", "a.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scan = find_files(tmp_path, VIDEO_SUFFIXES)
    assert scan.files == ["a/10.mkv", "a/2.MP4", "a b/1.mp4", "a.mp4"]
    assert describe_left_out(scan, "videos") == "left out: no videos (1): a/notes.txt"
    assert describe_left_out(scan._replace(others=[]), "videos") is None


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "up" / "in").mkdir(parents=True)
    (tmp_path / "up" / "in" / "0.mp4").touch()
    (tmp_path / "up" / "in" / "back").symlink_to(tmp_path / "up")
    (tmp_path / "down").symlink_to(tmp_path / "up" / "in")
    (tmp_path / "up" / "gone.mp4").symlink_to(tmp_path / "nothing.mp4")
    scan = find_files(tmp_path, VIDEO_SUFFIXES)
    assert scan.files[:2] == ["down/0.mp4", "up/in/0.mp4"]
    assert "up/gone.mp4 (no file)" in scan.system


def test_a_frame_overwritten_in_place_changes_the_stamp_of_its_folder(tmp_path):
    """By a picture of the same size, which gets the time of the old one."""
    frame = tmp_path / "1.png"
    stamps = []
    for content in (b"first", b"other"):
        frame.write_bytes(content)
        os.utime(frame, ns=(1, 1))
        stamps += [compute_stamp(str(tmp_path)), compute_stamp(str(tmp_path))]
    assert stamps[0] == stamps[1] != stamps[2] == stamps[3]
