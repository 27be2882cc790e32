"""The operators that a training uses: on a CPU in float32, the kernels that the zoo compiles."""

from utils.files import get_cache_folder
from utils.log import log
from utils.messages import SETTINGS_LINE, shorten
from utils.nn import kernels
from utils.nn.kernels.cpu import Cpu, library
from utils.settings import Run


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
