"""scripts/data/show_clips.py: the clips of the first steps, those of a list, the learning rate."""

import numpy as np
import pytest
from PIL import Image

from scripts.prediction.plots import FRAME_WIDTH, MARGIN, TEXT_HEIGHT
from tests.helpers import find_smoke_yaml, load_smoke_config, read_result
from tests.toy_recipes import draw_samples, list_toy_settings
from utils.networks import find_network
from utils.runtime import Runtime


@pytest.fixture
def show_clips(run_here, tmp_path):
    """A function that runs the command; returns its result, and the settings."""

    def show(network: str, *settings: str, options=()) -> tuple:
        settings = [*list_toy_settings(network), f"data.root={tmp_path / 'data'}", *settings]
        words = [*options, f"--out={tmp_path / 'out'}", *(f"--{setting}" for setting in settings)]
        script = "scripts/data/show_clips.py"
        done = run_here(script, "--config_path", find_smoke_yaml(network), *words)
        return read_result(done), load_smoke_config(network, *settings)

    return show


def paste_box(clips: np.ndarray, targets: np.ndarray) -> np.ndarray:
    top, bottom, left, right = targets[0, 3:].astype(int)
    mixed = clips[0].copy()
    mixed[..., top:bottom, left:right] = clips[int(targets[0, 2])][..., top:bottom, left:right]
    return mixed


def mix_two(clips: np.ndarray, partner: int, lam: float) -> np.ndarray:
    return lam * clips[0] + (1 - lam) * clips[partner]


# network, settings, what they make of the first clip of a batch, and the column of its label
TRAININGS = [
    ("tsm", ["data.cutmix=1"], paste_box, 0),
    ("resnet50", ["data.mixup=8"], lambda x, t: mix_two(x, int(t[0, 2]), t[0, 1]), 0),
    ("mvit_multi", ["data.mixup=8"], lambda x, t: mix_two(x, -1, t[0, 2]), 1),
    ("x3d", [], lambda x, t: x[0], 0),
]


@pytest.mark.parametrize(("name", "settings", "mix", "label"), TRAININGS)
def test_the_sheet_begins_with_what_the_first_step_trains(
    name, settings, mix, label, show_clips, tmp_path
):
    draw_samples(name, tmp_path / "data")
    result, cfg = show_clips(name, "run.seed=3", *settings, options=["--count=3"])
    network = find_network(name)
    records = network.read_records(cfg, "train")
    sampler = network.build_train_sampler(cfg, records, Runtime(seed=3))
    rows = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    clips, targets = (np.stack(column) for column in zip(rows[0], rows[1]))
    clips = clips.reshape(-1, *network.get_input_shape(cfg)).astype(np.float32)
    targets = targets.reshape(len(clips), -1)
    space = network.list_label_spaces(cfg)[0]
    space.clips = space.crops = 1
    frame = space.preview_frames(mix(clips, targets)[None])[0, 0]
    side = cfg.data.crop
    factor = FRAME_WIDTH // side
    picture = np.asarray(Image.open(result["sheet"]).convert("RGB"), np.float32)
    drawn = picture[2 * TEXT_HEIGHT :, MARGIN:][: factor * side : factor, : factor * side : factor]
    np.testing.assert_allclose(drawn, frame, atol=1)
    assert np.any(abs(frame - space.preview_frames(clips[:1])[0, 0]) > 5) == cfg.data.mixes
    assert result["clips"][0]["classes"][0]["label"] == targets[0, label]
    assert len(result["clips"]) == 3
    assert result["updates"] == cfg.train.epochs * sampler.steps_per_epoch
    assert (tmp_path / "out" / "lr.png").is_file()


def test_a_clip_has_the_name_of_the_file_that_was_read(show_clips, tmp_path):
    """A training reads another video in place of a broken one."""
    draw_samples("tsm", tmp_path / "data")
    (tmp_path / "data" / "videos" / "train" / "up_000.mp4").write_text("no video")
    settings = ["data.flip=false", "data.swap_labels=[]", "data.max_unreadable=0.5"]
    clips = show_clips("tsm", *settings)[0]["clips"]
    assert len(clips) == 16
    for clip in clips:
        (entry,) = clip["classes"]
        assert clip["file"] == f"videos/train/{entry['name']}_000.mp4"
        assert entry["name"] != "up"
        assert 0 <= clip["start"] < clip["end"] < 3
