"""Runs an ONNX file by an inference engine in a separate process.

    python -m utils.scoring.onnx_process ENGINE FILE CLIPS OUTPUTS

A defect of an engine can end its process without a Python exception, on some processors only. At
the export of a file it must end this process, not the run. CLIPS and OUTPUTS are .npz files: an
array for each batch, and the first buffers of an online network; and each output for all batches.
"""

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from utils.cores import count_workers
from utils.files import ROOT
from utils.processes import describe_exit, die_with_parent
from utils.scoring.engines import ENGINES, OPEN
from utils.scoring.scorer import Steps

MODULE = "utils.scoring.onnx_process"  # in ROOT, also of a wheel


class EngineError(RuntimeError):
    """An engine cannot run a file."""


def run_in_process(
    engine: str, file: Path, batches: Sequence[np.ndarray], buffers: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """The outputs of an ONNX file, as `Steps.run_all`. Writes scratch files beside it.

    Raises EngineError if the process fails.
    """
    clips, outputs = (file.with_name(f"{name}.npz").absolute() for name in ("clips", "outputs"))
    np.savez(clips, *batches, **{f"buffer_{k}": array for k, array in enumerate(buffers)})
    command = [sys.executable, "-m", MODULE, engine, file.absolute(), clips, outputs]
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace",
    )  # fmt: skip
    if done.returncode:
        reason = describe_exit(done.returncode, done.stderr.splitlines())
        raise EngineError(f"{ENGINES[engine]} cannot run the exported file: its process {reason}")
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def main(engine: str, file: str, clips: str, outputs: str) -> None:
    die_with_parent()
    threads = count_workers("auto")
    open_session = functools.cache(lambda shape: OPEN[engine](Path(file), shape, threads, "f32"))
    with np.load(clips) as arrays:
        batches = [arrays[name] for name in arrays.files if name.startswith("arr_")]
        buffers = [arrays[name] for name in arrays.files if name.startswith("buffer_")]
    steps = Steps(lambda batch, *state: open_session(batch.shape)(batch, *state), buffers)
    np.savez(outputs, *steps.run_all(batches))


if __name__ == "__main__":
    main(*sys.argv[1:])
