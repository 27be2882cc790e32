"""Text files that people write: labels, lists, annotations."""

import codecs
import os
from pathlib import Path

LARGEST = 2**30  # bytes


def read_text(path: Path, name: str, errors: str = "strict") -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16.

    `errors` is what `bytes.decode` does with bytes that are not UTF-8. Raises ValueError, which
    names the file by `name` and the line, if the file cannot be read or is no text.
    """
    try:
        if not os.path.isfile(path):  # a pipe would be waited for
            raise ValueError(f"{name} {'is no file' if os.path.exists(path) else 'does not exist'}")
        if os.path.getsize(path) > LARGEST:
            raise ValueError(f"{name} is larger than {LARGEST} bytes")
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16") if is_utf16 else data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{name} is no text file: line {line} has a zero byte")
    return text
