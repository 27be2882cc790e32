"""Folders of frames or flow: extraction, and the same clips for every network."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from scripts.data.prepare.encoder import count_copies
from scripts.data.synthetic.motion_videos import write_video
from tests.conftest import TINY
from tests.helpers import find_smoke_yaml, load_smoke_config, read_result
from tests.numbered_videos import read_number, write_numbered_video
from utils.networks import find_network
from utils.runtime import Runtime
from utils.video.images import ArrayFrames, FrameFolder

SCRIPT = "scripts/data/extract_frames.py"
FLOW = "scripts/data/extract_flow.py"
RATE = 20  # of the videos; recipes ask for clips at 30
LISTS = {"tsm": ("train.txt", "test.txt"), "x3d": ("train.txt", "test.txt")}
LISTS["mvit_multi"] = ("lists/train.csv", "lists/test.csv")
LISTED = ["data.train_list=train.txt", "data.test_list=test.txt"]
SET = "{name: one, num_classes: 8, videos: ., lists: lists, clips: 2, crops: 3, short_side: 48}"
SETTINGS = {
    "tsm": LISTED,
    "x3d": [*LISTED, f"data.folder_fps={RATE}"],
    "mvit_multi": [f"data.sets=[{SET}]", f"data.folder_fps={RATE}"],
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    (root / "lists").mkdir()
    (root / "clips").mkdir()
    for k, frames in enumerate((70, 90)):
        write_numbered_video(root / f"clips/{k}.mp4", frames=frames, width=96, height=64, rate=RATE)
    lines = [f"clips/{k}.mp4 {k}\n" for k in range(2)]
    (root / "broken.mp4").write_bytes((root / "clips/0.mp4").read_bytes()[:2000])
    (root / "labels.txt").write_text("".join(f"class {k}\n" for k in range(8)))
    for name in {name for names in LISTS.values() for name in names}:
        (root / name).write_text("".join([*lines, "broken.mp4 3\n"]))
    return root


def extract(run_here, network: str, videos: Path, out: Path, *more) -> dict:
    settings = [f"--{setting}" for setting in (f"data.root={videos}", *SETTINGS[network])]
    yaml = find_smoke_yaml(network)
    return read_result(run_here(SCRIPT, "--config_path", yaml, "--out", out, *settings, *more))


def build_rows(network: str, *settings: str) -> tuple:
    """The training rows and the evaluation rows."""
    net = find_network(network)
    cfg = load_smoke_config(network, *SETTINGS[network], "data.batch=1", *settings)
    records = net.read_records(cfg, "train")
    sampler = net.build_train_sampler(cfg, records, Runtime())
    training = net.train_rows(records, cfg=cfg, sampler=sampler, epochs=2, skip=0)
    return training, net.build_eval_rows(cfg, Runtime())[0]


def read_clips(network: str, *settings: str) -> list[np.ndarray]:
    """The clips of four training rows, then of two evaluation rows."""
    training, evaluation = build_rows(network, *settings)
    rows = [training[k] for k in range(4)] + [evaluation[k] for k in range(2)]
    assert not training.unreadable.count
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("network", "suffix"), [*((network, "png") for network in LISTS), ("tsm", "jpg")]
)
def test_clips_of_frames_equal_clips_of_the_video(network, suffix, videos, run_here, tmp_path):
    """All pixels of lossless images are equal; those of a JPEG file differ by a few levels."""
    template = f"data.image_tmpl=img_{{:05d}}.{suffix}"
    options = ["--short_side", "0", "--quality", "95", f"--{template}"]
    result = extract(run_here, network, videos, tmp_path, *options)
    assert (result["videos"], result["bad"], result["frames"]) == (2, 1, 160)
    for name in LISTS[network]:
        lines = (tmp_path / name).read_text().splitlines()
        assert lines == ["clips/0.mp4 70 0", "clips/1.mp4 90 1"]
    good = (videos / LISTS[network][0]).read_text().splitlines()[:2]
    plain = tmp_path / "plain"
    for name in LISTS[network]:
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text("\n".join(good) + "\n")
    (plain / "clips").symlink_to(videos / "clips")
    expected = read_clips(network, f"data.root={plain}")
    clips = read_clips(network, f"data.root={tmp_path}", "data.source=frames", template)
    for clip, other in zip(clips, expected):
        difference = np.abs(clip.astype(int) - other)
        assert difference.max() <= (0 if suffix == "png" else 40)
        assert difference.mean() <= 2


@pytest.mark.parametrize("network", ["tsm", "x3d"])
def test_a_scan_and_a_prediction_read_folders_of_frames(network, videos, run_here, tmp_path):
    extract(run_here, network=network, videos=videos, out=tmp_path / "frames")
    settings = [*SETTINGS[network], f"data.root={tmp_path / 'frames'}", "data.source=frames"]
    folder = tmp_path / "frames/clips/1.mp4"
    cfg = load_smoke_config(network, *settings)
    with find_network(network).open_frames(cfg, str(folder)) as source:
        assert read_number(source.frames([89])[0]) == 89
        assert source.fps == (0 if network == "tsm" else RATE)
    (folder / "img_00046.jpg").unlink()
    arguments = ["--config_path", find_smoke_yaml(network), "--out", tmp_path / "good"]
    scan = "scripts/data/check_videos.py"
    result = read_result(run_here(scan, *arguments, *(f"--{setting}" for setting in settings)))
    assert (result["good"], result["kinds"]) == (2, {"truncated": 2})


def test_an_extraction_continues_and_writes_one_frame_rate(videos, run_here, tmp_path):
    """At 30 frames per second every second frame of 20 is written twice."""
    result = extract(run_here, "tsm", videos, tmp_path, "--fps", "30", "--short_side", "32")
    assert result["frames"] == 105 + 135
    assert (tmp_path / "labels.txt").read_text() == (videos / "labels.txt").read_text()
    frames = FrameFolder(tmp_path / "clips/0.mp4", 105, "img_{:05d}.jpg").frames(range(105))
    assert frames.shape == (105, 32, 48, 3)
    assert [read_number(frame) for frame in frames] == [k * 2 // 3 for k in range(105)]
    path = tmp_path / "clips/0.mp4/img_00001.jpg"
    before = path.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "clips/1.mp4")
    again = extract(run_here, "tsm", videos, tmp_path, "--fps", "30", "--short_side", "32")
    assert again["frames"] == result["frames"]
    assert path.stat().st_mtime_ns == before


def test_frames_are_repeated_or_dropped_for_another_rate():
    def count(length, video_fps, fps, times=None):
        video = ArrayFrames(np.zeros((length, 2, 2, 3), np.uint8), video_fps, max_pixels=2**20)
        video.times = times
        return count_copies(video, fps).tolist()

    assert count(6, 20, 0) == count(6, 0, 30) == [1] * 6
    assert count(6, 20, 30) == [2, 1, 2, 1, 2, 1]
    assert count(6, 30, 10) == [1, 0, 0, 1, 0, 0]
    assert count(2, 30, 10) == [1, 0]
    assert count(4, 4, 10, np.array([0, 0.1, 0.5, 0.55, 1])) == [1, 4, 1, 4], "a variable rate"


def draw_texture(size: int, seed: int) -> np.ndarray:
    noise = np.random.RandomState(seed).randint(0, 256, (size, size, 3)).astype(np.uint8)
    return cv2.GaussianBlur(noise, (7, 7), 0)


def draw_square(dx: int, dy: int, frames: int = 6):
    """A textured square of 80 pixels from (30, 30), which moves by (dx, dy) in every frame."""
    for k in range(frames):
        picture = draw_texture(140, seed=0)
        picture[30 + dy * k :, 30 + dx * k :][:80, :80] = draw_texture(80, seed=1)
        yield picture


def test_a_moving_square_has_its_flow_and_tsm_trains_on_it(run_here, tmp_path):
    """A video of one frame has no flow, and is left out."""
    motions = [(3, -2), (-4, 1)]
    root = tmp_path / "videos"
    root.mkdir()
    for k, (dx, dy) in enumerate(motions):
        write_video(root / f"{k}.mp4", draw_square(dx, dy), RATE, crf="4")
    write_video(root / "one.mp4", draw_square(0, 0, frames=1), RATE)
    for name in LISTS["tsm"]:
        (root / name).write_text("0.mp4 0\n1.mp4 1\none.mp4 1\n")
    lists = [f"--{setting}" for setting in LISTED]
    out = tmp_path / "flow"
    arguments = ["--config_path", find_smoke_yaml("tsm"), *lists]
    done = run_here(FLOW, *arguments, f"--data.root={root}", "--out", out)
    result = read_result(done)
    assert (result["videos"], result["bad"], result["frames"]) == (2, 1, 10)
    assert "one.mp4: broken, it has one frame" in done.stderr
    assert (out / "train.txt").read_text() == "0.mp4 5 0\n1.mp4 5 1\n"
    template = "flow_{}_{:05d}.jpg"
    for k, (dx, dy) in enumerate(motions):
        images = FrameFolder(out / f"{k}.mp4", None, template, flow=True).frames(range(5))
        for frame, image in enumerate(images):
            moved = image[30 + dy * frame :, 30 + dx * frame :][10:70, 10:70] / 255 * 40 - 20
            assert np.abs(moved - (dx, dy)).max() < 0.5
    flow = ["--data.source=frames", "--data.modality=flow", f"--data.image_tmpl={template}"]
    flow += [f"--data.root={out}", "--data.frames_per_segment=2", "--data.batch=2"]
    train = [*arguments, *TINY, *flow, f"--run.out={tmp_path / 'run'}"]
    assert 0 < read_result(run_here("tsm/train.py", *train))["loss"] < 10
