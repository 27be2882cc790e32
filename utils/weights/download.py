"""Downloads a file by HTTP(S): resumes, shows a bar, and leaves no half-written file.

Until the file is complete it is NAME.part, beside NAME.part.json, which says of what version of the
file it is a part. Python's urllib takes proxies from the environment (`https_proxy`, `no_proxy`).

pooch was tried instead. It begins a cut download anew, prints the address with its user, password
and query, reads no `file://` mirror, and has no bound on the size.
"""

import base64
import contextlib
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

from utils.files import read_json, report_write_errors, write_text
from utils.log import Progress
from utils.messages import format_error, hide_all_secrets, hide_secrets, print_line, shorten
from utils.processes import call_within

CHUNK = 2**20  # bytes; the bar counts chunks
TIMEOUT = 60  # seconds without a byte
LONGEST = 600  # seconds for an answer, and for a chunk: a byte now and then would never end
ATTEMPTS = 3  # connections that end too early
PARTIAL_CONTENT = 206
RANGE_NOT_SATISFIABLE = 416
INVALID = "it is no valid address, or that of the proxy is none"
LARGEST = 2**32  # bytes of a file whose size nobody has published
SHOWN = 200  # characters of a server's text in a message
ADVICE = "a proxy is set by https_proxy, a mirror by ZOO_WEIGHTS_MIRROR"


class DownloadError(ValueError):
    """The server does not send the file; the message is one line with its address."""


class ConnectionCutError(DownloadError):
    """The connection ended before the file."""


class Version(NamedTuple):
    """What a server says about a file: bytes, -1 if unknown; ETag or date, empty if unknown."""

    size: int
    validator: str


NO_VERSION = Version(-1, "")


def download(address: str, part: Path, largest: int = LARGEST) -> None:
    """Writes the whole file to `part`, whose name ends in .part; continues an earlier call's.

    Raises DownloadError if the server does not send it all, or more than `largest` bytes, and
    ValueError if it cannot be written.
    """
    is_own = read_version(part) is not None  # which is written first
    for path in (part, name_version_file(part)):
        if os.path.lexists(path) and not (is_own and path.is_file() and not path.is_symlink()):
            raise ValueError(f"{path} exists and is no part of this download: move it away")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            receive(address, part, largest)
        except DownloadError as error:
            line = format_error(error).replace(address, hide_secrets(address))
            if attempt == ATTEMPTS or not isinstance(error, ConnectionCutError):
                raise type(error)(line) from None
            print_line(f"{line}; connecting again")
        else:
            return


def receive(address: str, part: Path, largest: int) -> None:
    """One connection, which continues `part` if the server still has the same version."""
    earlier = read_version(part) or NO_VERSION
    start = part.stat().st_size if earlier != NO_VERSION and part.is_file() else 0
    if start and start == earlier.size:
        return
    headers = {"User-Agent": "mindspore-video-zoo"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if earlier.validator:
            headers["If-Range"] = earlier.validator
    shown = hide_secrets(address)
    with open_address(address, headers, part) as response:
        start = start if response.status == PARTIAL_CONTENT else 0  # else the whole file comes
        length = read_length(response, shown)
        check_size(start + length, largest=largest, address=shown)
        version = Version(start + length if length >= 0 else -1, read_validator(response))
        position = response.headers.get("Content-Range", "").partition("-")[0]
        if start and (version != earlier or position != f"bytes {start}"):
            forget(part)
            raise ConnectionCutError(f"{shown}: the file has changed since its first bytes")
        data = read_chunk(response, shown)
        check_kind(shown, response, data if not start else b"")
        if start:
            print_line(f"{part.stem}: continues after {start} of {version.size} bytes")
        chunks = -(-(version.size - start) // CHUNK)
        bar = Progress(chunks, name=part.stem, unit="MiB", leave=True, hidden=version.size < 0)
        with report_write_errors(part, "weights"), contextlib.closing(bar):
            write_text(name_version_file(part), json.dumps(version))
            with open(part, "ab" if start else "wb") as file:
                while data:
                    file.write(data)
                    bar.update()
                    check_size(file.tell(), largest=largest, address=shown)
                    data = read_chunk(response, shown)
                size = file.tell()
    if size < version.size:
        raise ConnectionCutError(f"{shown}: ended after {size} of {version.size} bytes")


def read_length(response: http.client.HTTPResponse, address: str) -> int:
    """The bytes that the server says it sends; -1 if it does not say it."""
    text = response.headers.get("Content-Length", "-1")
    if not re.fullmatch(r"-1|[0-9]{1,18}", text.strip()):
        raise DownloadError(f"{address}: the server sends a wrong Content-Length: {text[:80]!a}")
    return int(text)


def check_size(size: int, largest: int, address: str) -> None:
    if size > largest:
        raise DownloadError(f"{address}: the server sends more than {largest} bytes: another file")


def read_chunk(response: http.client.HTTPResponse, address: str) -> bytes:
    """The next bytes, empty at the end."""
    try:
        return call_within(LONGEST, partial(response.read, CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionCutError(f"{address}: {format_error(error)}") from None


def open_address(address: str, headers: dict[str, str], part: Path) -> http.client.HTTPResponse:
    """The answer of the server, which is not an error."""
    shown = hide_secrets(address)
    try:
        address, login = split_login(address)
        request = urllib.request.Request(address, headers={**headers, **login})
        opener = urllib.request.build_opener()  # reads the variables of proxies now
        return call_within(LONGEST, partial(opener.open, request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        if error.code == RANGE_NOT_SATISFIABLE:
            forget(part)
            raise ConnectionCutError(f"{shown}: the file is shorter than its first part") from None
        answer = shorten(hide_all_secrets(str(error.reason)), SHOWN)
        reason = f"the server answers {error.code} {answer}"
    except urllib.error.URLError as error:
        known = isinstance(error.reason, OSError)  # else its message has a part of the address
        reason = f"cannot be reached: {error.reason if known else INVALID}; {ADVICE}"
    except (http.client.InvalidURL, ValueError):  # whose messages have a part of the address
        reason = f"cannot be reached: {INVALID}; {ADVICE}"
    except (OSError, http.client.HTTPException) as error:
        reason = f"cannot be reached: {shorten(format_error(error), SHOWN)}; {ADVICE}"
    raise DownloadError(f"{shown}: {reason}")


def split_login(address: str) -> tuple[str, dict[str, str]]:
    """An address without its user and password, and the header that carries them."""
    parts = urllib.parse.urlsplit(address)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return address, {}
    code = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {code}"}


def check_kind(address: str, response: http.client.HTTPResponse, data: bytes) -> None:
    """Raises DownloadError for a page: of a login, of a proxy, or that the file has moved."""
    is_html = response.headers.get_content_type() in ("text/html", "application/xhtml+xml")
    if is_html or data.lstrip()[:1] == b"<":
        raise DownloadError(f"{address}: the server sends an HTML page instead of the file")


def read_validator(response: http.client.HTTPResponse) -> str:
    """What identifies the version of the file: a strong ETag, or else the date."""
    tag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified", "") if tag.startswith("W/") else tag


def name_version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def read_version(part: Path) -> Optional[Version]:
    """What the version file says; None if it is none of this module."""
    with contextlib.suppress(ValueError):
        values = read_json(name_version_file(part), "part", list)
        if list(map(type, values)) == [int, str]:
            return Version(*values)
    return None


def forget(part: Path) -> None:
    """Deletes an incomplete file."""
    part.unlink(missing_ok=True)
    name_version_file(part).unlink(missing_ok=True)
