"""Makes checkpoints of published weights: download, check and conversion.

A file of the table (`published.py`) is downloaded to `weights/downloads/`, and NAME is converted to
`weights/NAME.ckpt`, in the checkout or, for an installed package, in the current folder. A
connection that ends early is continued. Python's urllib takes proxies from the environment
(`https_proxy`, `no_proxy`).

pooch was tried instead. It begins a cut download anew, prints the address with its user, password
and query, reads no `file://` mirror, and has no bound on the size.
"""

import contextlib
import http.client
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from utils.files import (
    ROOT,
    compute_sha256,
    is_installed,
    report_write_errors,
    wait_for_lock,
    write_beside,
)
from utils.log import Progress
from utils.messages import format_error, hide_all_secrets, hide_secrets, print_line, shorten
from utils.weights.published import MIRROR, Published, find_published, list_published

# The first digits of the SHA-256 in a file's name; mindcv marks those of newer devices.
HASH = re.compile(r"-([0-9a-f]{8,64})(-910v2)?\.\w+$")
CHUNK = 2**20  # bytes; the bar counts chunks
TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 10  # connections that end too early
PAUSE = 10  # seconds before a connection that was refused is tried again
LARGEST = 2**32  # bytes of a file whose size nobody has published
SHOWN = 200  # characters of a server's text in a message
ADVICE = "a proxy is set by https_proxy, a mirror by ZOO_WEIGHTS_MIRROR"


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
        if entry.checkpoint.is_file():
            return entry.checkpoint
        file = fetch(entry, folder)
        named = HASH.search(file.name)
        if named and not compute_sha256(file).startswith(named[1]):
            raise ValueError(f"{file}: is damaged: its SHA-256 is not {named[1]}...; delete it")
        convert(entry, file)
    return entry.checkpoint


def fetch(entry: Published, folder: Path) -> Path:
    """The downloaded file; the one in `folder` if it is there.

    Raises ValueError if the server does not send it all, or it cannot be written.
    """
    file = folder / entry.file_name
    if file.is_file():
        return file
    if entry.link and MIRROR not in os.environ:
        raise ValueError(
            f'{entry.name}: open {entry.page}, click "{entry.link}" under "Pretrained Models", '
            f"save the file as {file}, and give the same command again"
        )
    shown = hide_secrets(entry.address)
    print_line(f"{entry.name}: downloads {shown} (licence of {entry.source}: {entry.licence})")
    largest = round(entry.size + 1) * 2**20 if entry.size else LARGEST
    validator = ""
    try:
        with report_write_errors(file, "weights"), write_beside(file) as part:
            for _ in range(ATTEMPTS):
                reason, validator = receive(entry.address, part, validator, largest)
                if not reason:
                    os.replace(part, file)
                    return file
                print_line(reason)
        raise ValueError(reason)
    except ValueError as error:
        raise ValueError(f"{error}; you can also save the file as {file} ({entry.page})") from None


def receive(address: str, part: Path, validator: str, largest: int) -> tuple[str, str]:
    """One connection, which continues `part` if the server still has the version `validator`.

    Returns why the connection ended before the file, else an empty text; and the ETag or date of
    the version. Raises ValueError if the server does not send the file, or more than `largest`
    bytes.
    """
    start = part.stat().st_size if validator and part.is_file() else 0
    shown = hide_secrets(address)
    headers = {"User-Agent": "mindspore-video-zoo"}
    headers |= {"Range": f"bytes={start}-", "If-Range": validator} if start else {}
    try:
        response = open_address(address, headers)
    except ValueError as error:
        if not start:
            raise
        time.sleep(PAUSE)
        return str(error), validator
    with response:
        answer = response.headers
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0  # the whole file comes
        elif not answer.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise ValueError(f"{shown}: the server sends another part than bytes {start}-")
        length = answer.get("Content-Length", "")
        size = start + int(length) if re.fullmatch("[0-9]{1,18}", length) else -1
        tag = answer.get("ETag", "W/")
        validator = answer.get("Last-Modified", "") if tag.startswith("W/") else tag
        bar = Progress(None, part.name, -(-(size - start) // CHUNK), "MiB", hidden=size < 0)
        position = start
        data = b""
        with contextlib.closing(bar), open(part, "ab" if start else "wb") as file:
            while True:
                if max(size, position + len(data)) > largest:
                    raise ValueError(f"{shown}: the server sends more than {largest} bytes")
                file.write(data)
                position += len(data)
                try:
                    data = response.read(CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    return f"{shown}: {format_error(error)}", validator
                if not data:
                    break
                if not position and data.lstrip()[:1] == b"<":
                    raise ValueError(f"{shown}: the server sends an HTML page")
                bar.update()
    ended = f"{shown}: ended after {position} of {size} bytes"
    return ended if position < size else "", validator


def open_address(address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The answer of the server, which is not an error; no message has a user or a password."""
    shown = hide_secrets(address)
    try:
        request = urllib.request.Request(address, headers=headers)
        opener = urllib.request.build_opener()  # reads the variables of proxies now
        return opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        answer = shorten(hide_all_secrets(str(error.reason)), SHOWN)
        reason = f"the server answers {error.code} {answer}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        # Other messages have a part of the address.
        text = shorten(format_error(cause), SHOWN) if isinstance(cause, OSError) else "no address"
        reason = f"cannot be reached: {text}; {ADVICE}"
    raise ValueError(f"{shown}: {reason}")


def convert(entry: Published, file: Path) -> None:
    """Runs the ordinary command. Raises ValueError if it fails.

    It is a new process, as MindSpore may not be set up in this one.
    """
    command = [sys.executable, ROOT / "scripts" / "convert_checkpoint.py", *entry.settings]
    command += ["--config_path", ROOT / entry.recipe, "--source", file]
    command += ["--target", entry.checkpoint, *["--new_head"] * entry.start]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{file}: the conversion failed"]
        raise ValueError(lines[-1].removeprefix("error: "))


def describe_use(entry: Published) -> str:
    """The command that evaluates the checkpoint or, of a start, the one that trains from it."""
    path = entry.checkpoint
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    script = "train" if entry.start else "eval"
    network = entry.network
    words = ["zoo", script, network] if is_installed() else ["python", f"{network}/{script}.py"]
    words += ["--config_path", entry.recipe, *entry.settings]
    words += [f"--train.pretrained={path}"] if entry.start else ["--checkpoint_path", str(path)]
    return shlex.join(words)
