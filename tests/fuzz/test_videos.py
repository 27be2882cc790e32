"""Damaged videos and images give frames or a VideoError, in little time and memory."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from resnet50.readers import read_records
from resnet50.transforms import make_train_view
from scripts.data.prepare.integrity import KINDS
from tests.fuzz.damage import mutate
from tests.fuzz.files import encode_intact_jpeg, write_mutated_videos
from tests.helpers import load_smoke_config
from utils.files import ROOT
from utils.video.images import FrameFolder
from utils.video.reader import MODULES, VideoError

MEMORY = 500  # MB
SLOW_COUNT = 300
FEW = 32
# decord cannot read the start of a transport stream; the scan of the ends does not use decord.
INTACT = {("read", "good", "good"), ("refused", "broken", "good")}
# Reads and scans every video of a folder; the last line of stdout has the results.
READ = """
import json, re, sys
from pathlib import Path
from scripts.data.prepare.integrity import VideoJob, examine
from utils.video.decoders import open_video
from utils.video.reader import VideoError
outcomes = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path, flush=True)
    try:
        with open_video(path, sys.argv[2]) as video:
            video.frames([0, len(video) // 2, len(video) - 1])
            video.frames([0, *range(0, len(video), 3)])
        outcome = "read"
    except VideoError as error:
        assert str(path) in str(error)
        outcome = "refused"
    kinds = [examine(VideoJob(str(path), sys.argv[2], depth)).kind for depth in ("all", "ends")]
    outcomes[path.name] = outcome, *kinds
memory = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([int(memory) // 1024, outcomes]))
"""


def read_all(folder: Path, reader: str, seconds: float) -> dict:
    """Reads in another process; {file: (read or refused, kind by full scan, kind by the ends)}."""
    command = [sys.executable, "-c", READ, str(folder), reader]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds)
    *files, last = done.stdout.splitlines()
    assert done.returncode == 0, f"{last or files[-1:]} {done.stderr[-2000:]}"
    memory, result = json.loads(last)
    print(f"{reader}: {memory} MB, {Counter(map(str, result.values()))}")
    assert memory < MEMORY
    return result


def assert_outcomes(result: dict, count: int) -> None:
    """Asserts that intact videos are read and good, and that some damaged ones are refused."""
    intact = {name: outcome for name, outcome in result.items() if name.startswith("intact")}
    assert {tuple(outcome) for outcome in intact.values()} <= INTACT
    assert sum(outcome[0] == "read" for outcome in intact.values()) >= len(intact) - 1
    assert len(result) == count + len(intact)
    kinds = Counter(kind for _, kind, _ in result.values())
    assert set(kinds) <= {"good", *KINDS}
    assert kinds["good"] < len(result) * 0.8
    assert Counter(outcome[0] for outcome in result.values())["refused"] > count * 0.1


@pytest.mark.parametrize(
    ("reader", "count", "seconds"),
    [
        ("pyav", FEW, 900),
        *(pytest.param(r, SLOW_COUNT, 3600, marks=pytest.mark.slow) for r in ("pyav", "decord")),
    ],
)
def test_damaged_videos_are_read_or_refused(tmp_path, seed, reader, count, seconds):
    pytest.importorskip(MODULES[reader])
    write_mutated_videos(tmp_path, range(seed, seed + count))
    assert_outcomes(read_all(tmp_path, reader, seconds), count)


@pytest.mark.parametrize("count", [100, pytest.param(SLOW_COUNT, marks=pytest.mark.slow)])
def test_damaged_jpeg_frames_are_read_or_refused(tmp_path, seed, count):
    """As a frame of a video, and as an image of ResNet's training."""
    settings = [
        f"data.root={tmp_path}",
        "data.source=folder",
        "data.train=.",
        "model.num_classes=1",
    ]
    cfg = load_smoke_config("resnet50", *settings, "data.augment=crop")
    path = tmp_path / "class" / "00001.jpg"
    path.parent.mkdir()
    outcomes = Counter()
    for number in range(seed, seed + count):
        path.write_bytes(mutate(encode_intact_jpeg(number), number))
        (image,) = read_records(cfg, "train")
        try:
            view = make_train_view(image.read(), cfg.data, np.random.RandomState(0))
            frames = FrameFolder(path.parent, 1, "{:05d}.jpg").frames([0])
            outcomes[view.shape[0], frames.shape[3]] += 1
        except VideoError as error:
            outcomes[error.args[0]] += 1
    assert outcomes.keys() == {(3, 3), str(path)}
    assert min(outcomes.values()) > count * 0.05
