"""Damaged JPEG files in the training pipeline of ResNet give an image or a blank image."""

import json
import subprocess
import sys

import pytest

from tests.fuzz.damage import mutate
from tests.fuzz.files import encode_intact_jpeg
from utils.config import ROOT

# Reads every subfolder with a new pipeline; the last line of stdout has the results.
PIPELINE = """
import json, sys
from pathlib import Path
from resnet50.config import Data
from resnet50.dataset import list_train_transforms
from resnet50.images import find_blank_images
from resnet50.readers import open_reader
results = {}
for folder in sorted(Path(sys.argv[1]).iterdir()):
    data = Data(root=folder, train="", crop=32)
    print(folder, flush=True)
    rows = open_reader(data, "train", [0], 1).map(list_train_transforms(data, 0), ["image"])
    ((image, _),) = rows.create_tuple_iterator(num_epochs=1, output_numpy=True)
    results[folder.name] = len(find_blank_images(image[None])) > 0 or list(image.shape)
print(json.dumps(results))
"""


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_damaged_images_do_not_end_the_process(tmp_path, seed, count):
    for number in range(seed, seed + count):
        folder = tmp_path / f"{number:06d}" / "class"
        folder.mkdir(parents=True)
        (folder / "image.jpg").write_bytes(mutate(encode_intact_jpeg(number), number))
    command = [sys.executable, "-c", PIPELINE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30 + count)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    outcomes = list(json.loads(done.stdout.splitlines()[-1]).values())
    assert len(outcomes) == count
    assert all(outcome in (True, [3, 32, 32]) for outcome in outcomes)
    assert count * 0.2 < outcomes.count(True) < count * 0.8
