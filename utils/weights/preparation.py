"""Makes checkpoints of published weights: download, check and conversion.

A file of the table (`published.py`) is downloaded to `weights/downloads/`, and NAME is converted to
`weights/NAME.ckpt`, in the checkout or, for an installed package, in the current folder.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from utils.files import ROOT, compute_sha256, report_write_errors, wait_for_lock, write_text
from utils.messages import hide_secrets, is_installed, print_line
from utils.weights.download import LARGEST, DownloadError, download, forget
from utils.weights.published import MIRROR, Published, find_published, list_published

# The first digits of the SHA-256 in a file's name; mindcv marks those of newer devices.
HASH = re.compile(r"-([0-9a-f]{8,64})(-910v2)?\.\w+$")


def resolve_checkpoint(path: str) -> str:
    """The path itself or, if it is no file but the name of published weights, their checkpoint.

    Downloads and converts them first if that was not done. Raises ValueError if it fails.
    """
    if os.path.isfile(path) or path not in list_published():
        return path
    return str(prepare(path))


def prepare(name: str) -> Path:
    """The checkpoint of published weights, which are downloaded and converted if it is missing.

    Processes that need the same file at the same time wait for the first.
    """
    entry = find_published(name)
    if entry.checkpoint.is_file():
        return entry.checkpoint
    folder = entry.checkpoint.parent / "downloads"
    waiting = f"{entry.file_name}: waiting for another process that downloads it"
    with report_write_errors(folder, "weights"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = wait_for_lock(folder, lambda: print_line(waiting), name=f".{entry.file_name}.lock")
    with lock:
        if not entry.checkpoint.is_file():
            is_downloaded = not (folder / entry.file_name).exists()
            file = fetch(entry, folder)
            try:
                digest = check_hash(file)
                convert(entry, file)
            except UnfitFileError as error:
                if not is_downloaded:
                    advice = "it was there before and stays: move it away and try again"
                    raise ValueError(f"{error}; {advice}") from None
                file.unlink()
                advice = "the file is deleted: the same command downloads it again"
                raise ValueError(f"{error}; {advice}") from None
            if not HASH.search(file.name):
                write_text(name_record(file), f"{digest}  {file.name}\n")
    return entry.checkpoint


def fetch(entry: Published, folder: Path) -> Path:
    """The downloaded file; the one in `folder` if it is there."""
    file = folder / entry.file_name
    if file.is_file():
        return file
    if entry.link and MIRROR not in os.environ:
        raise ValueError(
            f'{entry.name}: open {entry.page}, click "{entry.link}" under "Pretrained Models", '
            f"save the file as {file}, and give the same command again"
        )
    part = file.with_name(f"{file.name}.part")
    print_line(
        f"{entry.name}: downloads {hide_secrets(entry.address)} "
        f"(licence of {entry.source}: {entry.licence})"
    )
    try:
        download(entry.address, part, round(entry.size + 1) * 2**20 if entry.size else LARGEST)
    except DownloadError as error:
        raise ValueError(f"{error}; you can also save the file as {file} ({entry.page})") from None
    os.replace(part, file)
    forget(part)
    return file


class UnfitFileError(ValueError):
    """A file of published weights is damaged, or another one."""


def name_record(file: Path) -> Path:
    """The file with the SHA-256 that `file` had when it was first converted."""
    return file.with_name(f"{file.name}.sha256")


def check_hash(file: Path) -> str:
    """The SHA-256 of a file.

    Raises UnfitFileError if it is not that in the file's name; ValueError if there is none, and it
    is not the recorded one.
    """
    digest = compute_sha256(file)
    record = name_record(file)
    if match := HASH.search(file.name):
        if not digest.startswith(match[1]):
            raise UnfitFileError(
                f"{file}: its SHA-256 begins with {digest[: len(match[1])]} instead of {match[1]}: "
                "it is damaged, or another file"
            )
    elif record.is_file() and not digest.startswith(record.read_text()[:64].strip()):
        raise ValueError(
            f"{file}: its SHA-256 is {digest[:8]}..., and was {record.read_text()[:8]}... when it "
            f"was first downloaded; if its publisher has replaced it, delete {record}"
        )
    return digest


def convert(entry: Published, file: Path) -> None:
    """Runs the ordinary command; a new process, as MindSpore may not be set up in this one."""
    command = [sys.executable, ROOT / "scripts" / "convert_checkpoint.py", *entry.settings]
    command += ["--config_path", ROOT / entry.recipe, "--source", file]
    command += ["--target", entry.checkpoint, *["--new_head"] * entry.start]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["the conversion failed"])[-1]
        reason = reason.removeprefix("error: ")
        # One that names the file is not that of a full disk.
        raise UnfitFileError(reason) if str(file) in reason else ValueError(reason)


def describe_use(entry: Published) -> str:
    """The command that evaluates the checkpoint or, of a start, the one that trains from it."""
    path = entry.checkpoint
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    script = "train" if entry.start else "eval"
    words = ["zoo", script, entry.network] if is_installed() else []
    words = words or ["python", f"{entry.network}/{script}.py"]
    words += ["--config_path", entry.recipe, *entry.settings]
    words += [f"--train.pretrained={path}"] if entry.start else ["--checkpoint_path", str(path)]
    return shlex.join(words)
