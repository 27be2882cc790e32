"""Training, evaluation and scan of annotation files that contain hostile videos."""

import os
import re
import shutil

import av
import numpy as np
import pytest

from mvit_multi.dataset import Sample
from scripts.data.synthetic.motion_videos import write_video
from tests.helpers import load_smoke_config, read_result, run_script
from utils.data.annotation_file import Record
from utils.data.sampler import TrainSampler
from utils.networks import find_network
from utils.tests.video.test_decoders import draw, picture
from utils.tests.video.test_hostile_files import damage_video
from utils.tests.video.test_odd_videos import pictures, write

REFUSED = ["codec.mp4", "large.avi", "list.mp4", "live.m3u8", r"\x1b[2J.mp4"]


def write_videos(folder) -> list[bytes]:
    """Writes videos; returns the names of the refused ones (REFUSED), then of the readable ones."""
    data = draw(folder / "good.mp4", count=12).read_bytes()
    (folder / "codec.mp4").write_bytes(data.replace(b"avc1", b"zzz1"))
    write_video(folder / "large.avi", [np.zeros((4160, 4160, 3), np.uint8)], 25, codec="mpeg4")
    (folder / "list.mp4").write_text("ffconcat version 1.0\nfile good.mp4\n")
    (folder / "live.m3u8").write_text(
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:9,\nnone.ts\n"
    )
    (folder / "\x1b[2J.mp4").write_bytes(data[:500])
    with av.open(str(folder / "title.mp4"), "w") as container:
        container.metadata["title"] = "cafeZ"
        stream = container.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        for k in range(12):
            frame = av.VideoFrame.from_ndarray(picture(k, 64, 64), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    whole = (folder / "title.mp4").read_bytes()
    (folder / "title.mp4").write_bytes(whole.replace(b"cafeZ", b"caf\xe9\xff"))
    read = [b"title.mp4", b"caf\xe9.mp4", b"n" * 251 + b".mp4"]
    for name in read[1:]:
        (folder / os.fsdecode(name)).write_bytes(data)
    return [*(name.replace(r"\x1b", "\x1b").encode() for name in REFUSED), *read]


@pytest.fixture(scope="module")
def hostile(data_root, tmp_path_factory):
    """A copy of the synthetic videos; each list also has five bad and three unusual videos."""
    root = tmp_path_factory.mktemp("hostile") / "root"
    shutil.copytree(data_root, root)
    lines = b"".join(name + b" 0\n" for name in write_videos(root))
    for name in ("train.txt", "test.txt"):
        (root / name).write_bytes((root / name).read_bytes() + lines)
    return root


def test_training_and_evaluation_skip_unreadable_videos(tiny_args, hostile, run_here, tmp_path):
    arguments = [*tiny_args, f"--data.root={hostile}"]
    allow = "--eval.allow_unreadable=true"
    more = [f"--run.out={tmp_path / 'run'}", "--data.max_unreadable=0.5", allow]
    done = run_script("tsm/train.py", *arguments, *more)
    checkpoint = read_result(done)["checkpoint"]
    assert done.stderr.count("unreadable video: ") >= len(REFUSED)
    for text in (done.stderr, (tmp_path / "run" / "run.log").read_text()):
        assert "\x1b[2J" not in text
        assert all(f"{name} with pyav: " in text for name in REFUSED)
        assert "title.mp4" not in text
        assert "caf" not in text
    report = tmp_path / "report"
    more = ["--checkpoint_path", checkpoint, allow, f"--report={report}"]
    result = read_result(run_here("tsm/eval.py", *arguments, *more))
    assert result["unreadable"] == len(REFUSED)
    assert b"caf\xe9.mp4" in (report / "scores.csv").read_bytes()


def test_a_scan_counts_every_kind_of_bad_video(tiny_args, hostile, run_here, tmp_path):
    arguments = [*tiny_args, f"--data.root={hostile}", f"--out={tmp_path}"]
    done = run_here("scripts/data/check_videos.py", *arguments)
    kinds = {"broken": 2, "wrong extension": 2, "truncated": 1}
    assert read_result(done)["kinds"] == {kind: 2 * count for kind, count in kinds.items()}
    lines = (tmp_path / "train.txt").read_bytes().splitlines()
    assert lines[-3:-1] == [b"title.mp4 0", b"caf\xe9.mp4 0"]
    assert "\x1b[2J" not in done.stderr


@pytest.mark.parametrize("name", ["tsm", "x3d", "mvit_multi"])
def test_training_counts_frames_that_are_marked_as_damaged(name, log_messages, tmp_path):
    path = str(damage_video(write(tmp_path / "damaged.mp4", pictures(40, 160, 128), g="10")))
    network = find_network(name)
    settings = ["data.stride=1"] if name == "x3d" else []  # else every clip has the same frames
    cfg = load_smoke_config(name, "data.reader=pyav", "data.batch=1", *settings)
    record = Sample(path, 0, 0) if name == "mvit_multi" else Record(path, None, 0, 1)
    source = network.build_train_rows(cfg, [record], TrainSampler(1, 1, 0, 1, 0), 30, 0)
    for index in range(30):
        source[index]
    total, logged = source.damaged.counts
    assert total >= logged > 0
    pattern = rf"(\d+) damaged frames read so far, the newest in {path}: "
    numbers = [int(match[1]) for line in log_messages if (match := re.match(pattern, line))]
    assert len(numbers) > 1
    assert numbers[-1] == logged
    assert all(later >= 2 * earlier for earlier, later in zip(numbers, numbers[1:]))
