"""The operators that a training uses: on a CPU in float32, the kernels that the zoo compiles."""

import functools
from typing import Any, Callable, TypeVar

from utils.files import get_cache_folder
from utils.log import log
from utils.messages import SETTINGS_LINE, shorten
from utils.nn import kernels
from utils.nn.kernels.cpu import library
from utils.nn.kernels.cpu.operators import Cpu
from utils.runtime import Runtime
from utils.settings import Run

Result = TypeVar("Result")


def with_training_kernels(build: Callable[..., Result]) -> Callable[..., Result]:
    """Decorates `build(cfg, rt, sampler)` of a train.py: all that it builds has these operators."""

    @functools.wraps(build)
    def build_with_kernels(cfg: Any, rt: Runtime, sampler: Any) -> Result:
        with kernels.use(choose_kernels(cfg.run, rt.device)):
            return build(cfg, rt, sampler)

    return build_with_kernels


def choose_kernels(run: Run, device: str) -> kernels.Plain:
    """The operators for a device; on a CPU in float32, those of the zoo, compiled once.

    Logs one line if that is not possible; then they are MindSpore's. In eager mode, arrays may be
    views of others, which compiled kernels cannot read.
    """
    if device == "CPU" and run.amp_level == "O0" and run.mode == "graph":
        try:
            return Cpu(library.load(get_cache_folder() / "cpu_kernels", log.info))
        except (OSError, ValueError) as error:
            reason = "the training uses MindSpore's CPU kernels, not those of the zoo: %s"
            log.info(reason, shorten(str(error), SETTINGS_LINE))
    return kernels.select(device)
