"""The C++ program of docs/deploy.md gives the class and the score of ONNX Runtime in Python."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.toys import TOYS, export_toy
from utils.files import ROOT

ONNXRUNTIME = Path(os.environ.get("ONNXRUNTIME_ROOT", "nowhere"))  # with include/ and lib/


@pytest.mark.slow
@pytest.mark.skipif(
    not (ONNXRUNTIME / "include").is_dir() or not shutil.which("g++"),
    reason="needs g++, and the C++ package of ONNX Runtime in the folder ONNXRUNTIME_ROOT",
)
@pytest.mark.parametrize("name", TOYS)
def test_the_program_in_cpp_gives_the_scores_of_python(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    shutil.copy(ROOT / "docs" / "classify.cc", tmp_path)
    include = ["-I", ONNXRUNTIME / "include"]
    library = ["-L", ONNXRUNTIME / "lib", "-lonnxruntime", f"-Wl,-rpath,{ONNXRUNTIME / 'lib'}"]
    command = ["g++", "-std=c++17", "classify.cc", *include, *library, "-o", "classify"]
    subprocess.run(list(map(str, command)), cwd=tmp_path, check=True)
    file = export_toy(TOYS[name], tmp_path / "net", "onnx", batch=0)["file"]
    clip = np.random.RandomState(3).randint(0, 256, (1, *TOYS[name][2])).astype(np.uint8)
    clip.tofile(tmp_path / "clip.bin")
    program = [tmp_path / "classify", file, tmp_path / "clip.bin"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    (scores,) = onnxruntime.InferenceSession(file).run(None, {"input": clip})
    best, score = done.stdout.split()
    assert int(best) == scores.argmax()
    assert float(score) == pytest.approx(float(scores.max()), rel=1e-4)
