"""The cache of exported networks, `onnx` in `get_cache_folder()`: names and locks of its files."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Callable

from utils.files import ROOT, compute_sha256, report_write_errors, wait_for_lock
from utils.log import log
from utils.settings import NetworkConfig
from utils.weights.model_checksum import check_checksum

CODE = ("utils/nn", "utils/export")  # and the network's folder: a change of it changes the file
OWN_NAME = re.compile(r"[0-9a-f]{32}-.+\.onnx")  # of a file in the cache
KEPT_FILES = 8  # in the cache, the last used ones
LONGEST_WAIT = 600  # seconds for the export of another process


def find_or_write(file: Path, work: str, write: Callable[[], None]) -> None:
    """Leaves a sound file in the cache, which this process or one that was faster writes.

    `work` says in the log what `write` does.
    """
    if not is_sound(file):
        with report_write_errors(file.parent, "the cache of exported networks"):
            file.parent.mkdir(parents=True, exist_ok=True)
            waiting = functools.partial(log.info, f"waiting for another process, {work} ...")
            with wait_for_lock(file.parent, waiting, LONGEST_WAIT):  # of several ranks, one works
                if not is_sound(file):
                    log.info("%s, once ...", work)
                    write()
                    delete_old_files(file.parent)  # under the lock: no other export is running
    with contextlib.suppress(OSError):  # the cache may be read-only
        os.utime(file)


def compute_key(network: str, cfg: NetworkConfig, weights: str) -> str:
    """A checksum of all that decides the exported network, except the shape of its clips.

    `weights` is the checksum of the checkpoint.
    """
    settings = sorted(cfg.model_arguments().items())
    files = (path for name in (network, *CODE) for path in sorted((ROOT / name).glob("**/*.py")))
    code = [compute_sha256(path) for path in files if "tests" not in path.relative_to(ROOT).parts]
    content = repr((code, network, weights, settings))
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def is_sound(file: Path) -> bool:
    """Whether the file exists with the right checksum."""
    try:
        return check_checksum(file)
    except ValueError:
        return False


def delete_old_files(folder: Path, count: int = KEPT_FILES) -> None:
    """Deletes all but the last used files of the cache, and what a killed export left."""
    for scratch in folder.glob(".*.tmp"):
        shutil.rmtree(scratch, ignore_errors=True)
    exported = [file for file in folder.iterdir() if OWN_NAME.fullmatch(file.name)]
    files = sorted(exported, key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[count:]:
        file.unlink(missing_ok=True)
