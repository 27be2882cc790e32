"""The libraries that decode videos and images: loaded when they are first needed, and quiet."""

import functools
import importlib
import os
from typing import Any

MODULES = {"pyav": "av", "decord": "decord", "opencv": "cv2"}


@functools.cache
def load_library(reader: str) -> Any:
    """The library of a reader, which prints nothing from now on; ImportError if there is none."""
    library = importlib.import_module(MODULES[reader])
    if reader == "pyav":
        library.logging.set_level(library.logging.PANIC)
    elif reader == "decord":
        library.logging.set_level(library.logging.QUIET)
    else:
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # it is read at the first opening
        # OpenCV 4.11 and 4.14 have it at different places.
        logging = library if "setLogLevel" in vars(library) else library.utils.logging
        logging.setLogLevel(0)
        library.setNumThreads(0)  # many workers decode at once, each on one core
    return library
