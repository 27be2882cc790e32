"""Makes checkpoints of published weights: download, check and conversion.

A file of the table (`published.py`) is downloaded to `weights/downloads/`, and NAME is converted to
`weights/NAME.ckpt`, in the checkout or, for an installed package, in the current folder. Until a
file is complete it is NAME.part, beside NAME.part.json, which says of what version of the file it
is a part. Python's urllib takes proxies from the environment (`https_proxy`, `no_proxy`).

pooch was tried instead. It begins a cut download anew, prints the address with its user, password
and query, reads no `file://` mirror, and has no bound on the size.
"""

import base64
import contextlib
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from utils.files import (
    ROOT,
    compute_sha256,
    read_json,
    report_write_errors,
    wait_for_lock,
    write_text,
)
from utils.log import Progress
from utils.messages import (
    format_error,
    hide_all_secrets,
    hide_secrets,
    is_installed,
    print_line,
    shorten,
)
from utils.weights.published import MIRROR, Published, find_published, list_published

# The first digits of the SHA-256 in a file's name; mindcv marks those of newer devices.
HASH = re.compile(r"-([0-9a-f]{8,64})(-910v2)?\.\w+$")
CHUNK = 2**20  # bytes; the bar counts chunks
TIMEOUT = 60  # seconds without a byte
ATTEMPTS = 3  # connections that end too early
LARGEST = 2**32  # bytes of a file whose size nobody has published
SHOWN = 200  # characters of a server's text in a message
INVALID = "it is no valid address, or that of the proxy is none"
ADVICE = "a proxy is set by https_proxy, a mirror by ZOO_WEIGHTS_MIRROR"


class DownloadError(ValueError):
    """The server does not send the file; the message is one line with its address."""


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
        is_old = (folder / entry.file_name).exists()
        file = fetch(entry, folder)
        named = HASH.search(file.name)
        digest = compute_sha256(file) if named else ""
        if named and not digest.startswith(named[1]):
            found = digest[: len(named[1])]
            reason = f"{file}: its SHA-256 begins with {found} instead of {named[1]}: it is damaged"
        else:
            reason = convert(entry, file)
        if str(file) in reason and is_old:
            reason += "; it was there before and stays: move it away and try again"
        elif str(file) in reason:  # one that does not name the file is that of a full disk
            file.unlink()
            reason += "; the file is deleted: the same command downloads it again"
        if reason:
            raise ValueError(reason)
    return entry.checkpoint


def fetch(entry: Published, folder: Path) -> Path:
    """The downloaded file; the one in `folder` if it is there. Continues an earlier download.

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
    part = file.with_name(f"{file.name}.part")
    is_own = bool(read_note(part))  # which is written first
    for path in (part, name_note(part)):
        if os.path.lexists(path) and not (is_own and path.is_file() and not path.is_symlink()):
            raise ValueError(f"{path} exists and is no part of this download: move it away")
    shown = hide_secrets(entry.address)
    print_line(f"{entry.name}: downloads {shown} (licence of {entry.source}: {entry.licence})")
    largest = round(entry.size + 1) * 2**20 if entry.size else LARGEST
    try:
        for attempt in range(1, ATTEMPTS + 1):
            reason = receive(entry.address, part, largest)
            if not reason:
                break
            if attempt == ATTEMPTS:
                raise DownloadError(reason)
            print_line(f"{reason}; connecting again")
    except DownloadError as error:
        raise ValueError(f"{error}; you can also save the file as {file} ({entry.page})") from None
    os.replace(part, file)
    name_note(part).unlink(missing_ok=True)
    return file


def name_note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def read_note(part: Path) -> list:
    """The size of the file, -1 if unknown, and its ETag or date; empty if there is no such note."""
    with contextlib.suppress(ValueError):
        values = read_json(name_note(part), "part", list)
        if list(map(type, values)) == [int, str]:
            return values
    return []


def receive(address: str, part: Path, largest: int) -> str:
    """One connection, which continues `part` if the server still has the same version.

    Returns why the connection ended before the file, else an empty text. Raises DownloadError if
    the server does not send the file, or more than `largest` bytes.
    """
    known, validator = read_note(part) or (-1, "")
    start = part.stat().st_size if validator and part.is_file() else 0
    if start and start == known:
        return ""
    shown = hide_secrets(address)
    headers = {"User-Agent": "mindspore-video-zoo"}
    headers |= {"Range": f"bytes={start}-", "If-Range": validator} if start else {}
    with open_address(address, headers) as response:
        answer = response.headers
        if response.status != http.client.PARTIAL_CONTENT:
            start = 0  # the whole file comes
        elif not answer.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise DownloadError(f"{shown}: the server sends another part than bytes {start}-")
        length = answer.get("Content-Length", "-1").strip()
        if not re.fullmatch(r"-1|[0-9]{1,18}", length):
            raise DownloadError(
                f"{shown}: the server sends a wrong Content-Length: {length[:80]!a}"
            )
        size = start + int(length) if length != "-1" else -1
        tag = answer.get("ETag", "W/")
        validator = answer.get("Last-Modified", "") if tag.startswith("W/") else tag
        bar = Progress(-(-(size - start) // CHUNK), name=part.stem, unit="MiB", hidden=size < 0)
        position = start
        data = b""
        with report_write_errors(part, "weights"), contextlib.closing(bar):
            write_text(name_note(part), json.dumps([size, validator]))
            with open(part, "ab" if start else "wb") as file:
                while True:
                    if max(size, position + len(data)) > largest:
                        what = f"the server sends more than {largest} bytes: another file"
                        raise DownloadError(f"{shown}: {what}")
                    file.write(data)
                    position += len(data)
                    try:
                        data = response.read(CHUNK)
                    except (OSError, http.client.HTTPException) as error:
                        return f"{shown}: {format_error(error)}"
                    if not data:
                        break
                    is_page = answer.get_content_type() in ("text/html", "application/xhtml+xml")
                    if is_page or (not position and data.lstrip()[:1] == b"<"):
                        what = "the server sends an HTML page instead of the file"
                        raise DownloadError(f"{shown}: {what}")
                    bar.update()
    return f"{shown}: ended after {position} of {size} bytes" if position < size else ""


def open_address(address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    """The answer of the server, which is not an error; no message has a user or a password."""
    shown = hide_secrets(address)
    try:
        parts = urllib.parse.urlsplit(address)
        login, at, host = parts.netloc.rpartition("@")
        if at:
            code = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
            headers = {**headers, "Authorization": f"Basic {code}"}
            address = parts._replace(netloc=host).geturl()
        request = urllib.request.Request(address, headers=headers)
        opener = urllib.request.build_opener()  # reads the variables of proxies now
        return opener.open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        answer = shorten(hide_all_secrets(str(error.reason)), SHOWN)
        reason = f"the server answers {error.code} {answer}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        # Other messages have a part of the address.
        text = shorten(format_error(cause), SHOWN) if isinstance(cause, OSError) else INVALID
        reason = f"cannot be reached: {text}; {ADVICE}"
    raise DownloadError(f"{shown}: {reason}")


def convert(entry: Published, file: Path) -> str:
    """Runs the ordinary command, and returns why it fails, else an empty text.

    It is a new process, as MindSpore may not be set up in this one.
    """
    command = [sys.executable, ROOT / "scripts" / "convert_checkpoint.py", *entry.settings]
    command += ["--config_path", ROOT / entry.recipe, "--source", file]
    command += ["--target", entry.checkpoint, *["--new_head"] * entry.start]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    lines = done.stderr.strip().splitlines() or ["the conversion failed"]
    return lines[-1].removeprefix("error: ") if done.returncode else ""


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
