"""Damaged JPEG files give a view of ResNet's training, or a VideoError."""

import json
import subprocess
import sys

import pytest

from tests.fuzz.damage import mutate
from tests.fuzz.files import encode_intact_jpeg
from utils.files import ROOT

# The last line of stdout has the shape of each view, or null.
READ_ALL = """
import json, sys
from pathlib import Path
import numpy as np
from resnet50.config import Data
from resnet50.readers import read_images
from resnet50.transforms import make_train_view
from utils.video.reader import VideoError
data = Data(root=Path(sys.argv[1]), train="", crop=32)
shapes = []
for image in read_images(data, "train", 1):
    print(image.path, flush=True)
    try:
        shapes.append(make_train_view(image.read(), data, np.random.RandomState(0)).shape)
    except VideoError:
        shapes.append(None)
print(json.dumps(shapes))
"""


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_damaged_images_do_not_end_the_process(tmp_path, seed, count):
    (tmp_path / "class").mkdir()
    for number in range(seed, seed + count):
        content = mutate(encode_intact_jpeg(number), number)
        (tmp_path / "class" / f"{number:06d}.jpg").write_bytes(content)
    command = [sys.executable, "-c", READ_ALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    shapes = json.loads(done.stdout.splitlines()[-1])
    assert len(shapes) == count
    assert all(shape in (None, [3, 32, 32]) for shape in shapes)
    assert count * 0.2 < shapes.count(None) < count * 0.8
