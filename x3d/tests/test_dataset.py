"""Evaluation rows of encoded videos: correct frames, one decoding, all views."""

import numpy as np
import pytest

from scripts.data.synthetic.motion_videos import write_video
from tests.helpers import load_smoke_config
from tests.numbered_videos import read_number, write_numbered_video
from utils.data.annotation_file import Record
from utils.data.sampler import TrainSampler
from utils.runtime import Runtime
from x3d import dataset, sampling

FRAMES = 90
SIDE = 48


@pytest.fixture
def evaluation(tmp_path) -> dataset.EvalVideos:
    """Ten clips and three crops of a video whose frames show their number."""
    path = tmp_path / "numbers.mp4"
    write_numbered_video(path, frames=FRAMES, width=SIDE * 2, height=SIDE, rate=30)
    cfg = load_smoke_config("x3d", "data.frames=5", f"data.scales=[{SIDE},{SIDE}]", "eval.clips=10")
    return dataset.EvalVideos([Record(str(path), num_frames=None, label=4, line=1)], cfg, Runtime())


def test_thirty_views_need_one_decode(evaluation, monkeypatch):
    opened = []
    requests = []

    def count_calls(record, data):
        video = open_record(record, data)
        decode = video._decode
        monkeypatch.setattr(
            video, "_decode", lambda numbers: requests.append(numbers) or decode(numbers)
        )
        opened.append(record)
        return video

    open_record = Record.open
    monkeypatch.setattr(Record, "open", count_calls)
    clips, label, valid = evaluation[0]
    assert (clips.shape, label, valid) == ((30, 3, 5, SIDE, SIDE), 4, True)
    assert len(opened) == len(requests) == 1
    assert len(set(requests[0])) == len(requests[0]), "no frame is decoded twice"


def test_views_have_the_frames_of_their_clip_from_left_to_right(evaluation):
    clips, _, _ = evaluation[0]
    size = sampling.compute_clip_span(5, stride=6, fps=30.0, target_fps=30.0)
    for k in range(10):
        start = sampling.compute_start(k / 10, FRAMES, size)
        expected = sampling.spread_frame_indices(start, span=size, frames=5, length=FRAMES)
        # Left and right crop together are the whole frame, which is twice as wide as high.
        frame_pair = np.concatenate((clips[3 * k], clips[3 * k + 2]), axis=3)
        assert [read_number(frame) for frame in frame_pair.transpose(1, 2, 3, 0)] == list(expected)
        center = frame_pair[..., SIDE // 2 : SIDE // 2 + SIDE]
        np.testing.assert_array_equal(clips[3 * k + 1], center)


def test_a_validation_in_training_takes_the_middle_clip_and_the_centre_crop(tmp_path):
    path = tmp_path / "numbers.mp4"
    write_numbered_video(path, frames=FRAMES, width=SIDE, height=SIDE, rate=30)
    cfg = load_smoke_config("x3d", "data.frames=5", "eval.clips=10", f"data.scales=[{SIDE},60]")
    record = Record(str(path), num_frames=None, label=4, line=1)
    clips, label, valid = dataset.EvalVideos([record], cfg=cfg, rt=Runtime(), split="val")[0]
    assert (clips.shape, label, valid) == ((1, 3, 5, SIDE, SIDE), 4, True)
    numbers = [read_number(frame) for frame in clips[0].transpose(1, 2, 3, 0)]
    size = sampling.compute_clip_span(5, stride=6, fps=30.0, target_fps=30.0)
    middle = sampling.compute_start(0.5, FRAMES, size)
    expected = sampling.spread_frame_indices(middle, span=size, frames=5, length=FRAMES)
    assert numbers == list(expected)


def test_a_mirrored_clip_changes_a_label_that_names_a_direction(tmp_path):
    """The picture is bright on the right (class 1). Mirrored it is bright on the left (class 0)."""
    path = tmp_path / "ramp.mp4"
    ramp = np.broadcast_to(np.linspace(0, 255, SIDE, dtype=np.uint8)[:, None], (SIDE, SIDE, 3))
    write_video(path, [ramp] * 8, 30)
    settings = ("data.frames=2", "data.stride=1", f"data.scales=[{SIDE},{SIDE}]", "data.batch=1")
    cfg = load_smoke_config("x3d", f"data.crop={SIDE}", "data.swap_labels=[[0,1]]", *settings)
    sampler = TrainSampler(1, batch=1, rank=0, size=1, seed=0)
    videos = [Record(str(path), num_frames=None, label=1, line=1)]
    source = dataset.TrainVideos(videos, cfg=cfg, sampler=sampler, epochs=20, skip=0)
    rows = [source[i] for i in range(20)]
    bright_right = [bool(clip[..., -1].mean() > clip[..., 0].mean()) for clip, _ in rows]
    assert {True, False} == set(bright_right)
    assert [int(label) for _, label in rows] == [int(right) for right in bright_right]
