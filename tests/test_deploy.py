"""The programs of docs/deploy.md give the class and the score of `predict.py`."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import load_smoke_config, read_result, save_random_weights
from tests.test_predict import TINY
from tests.toys import TOYS, export_toy
from utils.evaluate.label_space import softmax
from utils.files import ROOT
from utils.inference.model import load
from utils.tests.parity import mark_slow_except

TSM = "data.segments=4 data.crop=32 data.resize=40 model.first_width=8"
SET = '{"name":"own","num_classes":5,"short_side":40,"sampling":"time"}'
MVIT = f"{TINY['mvit_multi']} data.sets=[{SET}]"
RECIPES = {  # a network of every kind of input, with toy settings
    "tsm": TSM,
    "tsm differences": f"{TSM} data.modality=rgb_diff data.frames_per_segment=3",
    "x3d": TINY["x3d"],
    "mvit_multi": MVIT,
    "resnet50": TINY["resnet50"],
}
MORE = {
    "tsm dense": f"{TSM} data.sampling=dense model.labels=multi",
    "mvit_multi segments": MVIT.replace("time", "segments"),
}
ONE_VIEW = ["eval.clips=1", "eval.crops=1"]
ONNXRUNTIME = Path(os.environ.get("ONNXRUNTIME_ROOT", "nowhere"))  # with include/ and lib/


def read_programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/deploy.md").read_text(), re.S)


def test_the_loop_over_frames_gives_the_scores_of_a_stream(videos, run_here, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    cfg = load_smoke_config("tsm", *TSM.split(), "model.online=true", "run.device=CPU")
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", "tsm")
    target = tmp_path / "net.onnx"
    options = ["--format", "onnx", "--online", "--target", target, "--checkpoint_path", weights]
    read_result(run_here("tsm/export.py", *options))
    text, loop = read_programs()
    start = text[: text.index("chosen = ")]
    start = start.replace("juggling.mp4", str(videos[0])).replace("out/tsm.onnx", str(target))
    capsys.readouterr()
    values: dict = {}
    exec(start + loop, values)
    *_, last = results = [*load(target).stream(videos[0])]
    assert len(capsys.readouterr().out.splitlines()) == len(results)
    np.testing.assert_allclose(softmax(values["mean"]), last.probabilities[0], atol=1e-4)


@pytest.mark.parametrize("name", mark_slow_except([*RECIPES, *MORE], *RECIPES))
def test_the_program_in_python_serves_every_recipe(
    name, videos, pictures, run_here, tmp_path, capsys
):
    pytest.importorskip("onnxruntime")
    network = name.split()[0]
    one_view = [] if network in ("resnet50", "mvit_multi") else ONE_VIEW
    settings = [*{**RECIPES, **MORE}[name].split(), *one_view, "run.device=CPU"]
    path = next(pictures.rglob("*.jpg")) if network == "resnet50" else videos[0]
    cfg = load_smoke_config(network, *settings)
    weights = save_random_weights(cfg, tmp_path / "net.ckpt", network)
    target = tmp_path / "net.onnx"
    options = ["--format", "onnx", "--target", target, "--checkpoint_path", weights]
    read_result(run_here(f"{network}/export.py", *options))
    text, _ = read_programs()
    text = text.replace("juggling.mp4", str(path)).replace("out/tsm.onnx", str(target))
    capsys.readouterr()
    exec(text, {})
    *_, best, score = capsys.readouterr().out.split()
    model = load(target, device="CPU")
    values = model.predict(path, window=0).mean[0]
    assert int(best) == np.argmax(values)
    assert float(score) == pytest.approx(np.max(values), abs=1e-4)


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
