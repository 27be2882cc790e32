"""Self-contained HTML pages: one file with its data, style and script, which loads nothing.

`pages.html` is the frame and the style, `pages.js` what all scripts share. Scripts write texts as
text nodes. A policy in the page permits its own script only, by its hash, and no connection.
"""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from utils.files import report_write_errors, write_text

FRAME = Path(__file__).with_name("pages.html")
SHARED = Path(__file__).with_name("pages.js")


def write_page(path: Path, script: Path, data: dict[str, Any], option: str) -> None:
    """Writes a page that `script` builds from `data`, whose `title` is the page's; NaN is null.

    Raises ValueError, with the option, if the file cannot be written.
    """
    code = SHARED.read_text(encoding="utf-8") + script.read_text(encoding="utf-8")
    finite = json.loads(json.dumps(data), parse_constant=lambda _: None)
    values = {
        "TITLE": html.escape(data["title"]),
        "HASH": base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        # No `<`, which could end the element
        "DATA": json.dumps(finite, separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPT": code,
    }
    text = re.sub(
        "@(TITLE|HASH|DATA|SCRIPT)@",
        lambda match: values[match[1]],
        FRAME.read_text(encoding="utf-8"),
    )
    with report_write_errors(path, option):
        write_text(path, text, option)
