"""The report of a verification: findings with verdicts, written as Markdown and as JSON.

A report is meant to be attached to a public issue, so it holds no absolute paths, user names or
host names: `redact` removes them from everything that is written.
"""

import getpass
import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils.files import write_text

OK = "OK"
SLOW = "SLOW"
FAILED = "FAILED"
SKIPPED = "SKIPPED"
SEVERITY = (SKIPPED, OK, SLOW, FAILED)  # ascending
MARKDOWN = "report.md"
JSON = "report.json"
PATH = re.compile(r"(?<![\w./:~])(?:~|/)(?:[\w.+@=-]*/)+([\w.+@=-]*)")
SHORTEST_NAME = 3  # letters; shorter user and host names would match parts of words


@dataclass(frozen=True)
class Finding:
    """One checked property: verdict, measured values, and what to do if it is not OK."""

    verdict: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class PartResult:
    """The findings of one part of the verification; `values` are the raw measurements."""

    name: str
    findings: Sequence[Finding]
    values: Any = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The most severe verdict of the findings; FAILED without a finding."""
        verdicts = [finding.verdict for finding in self.findings]
        return max(verdicts, key=SEVERITY.index, default=FAILED)


@dataclass(frozen=True)
class Report:
    """The finished parts of a verification, and its machine."""

    machine: dict[str, Any]
    mode: str  # one sentence: the devices, and what the report cannot prove
    parts: Sequence[PartResult] = ()
    missing: Sequence[str] = ()  # parts that were not reached

    @property
    def failed(self) -> bool:
        return any(part.verdict == FAILED for part in self.parts)


def write_report(report: Report, folder: Path) -> None:
    """Writes report.md and report.json, each whole or not at all. Raises OSError."""
    content = {
        "mode": report.mode,
        "complete": not report.missing,
        "failed": report.failed,
        "machine": report.machine,
        "parts": [{**asdict(part), "verdict": part.verdict} for part in report.parts],
        "missing": list(report.missing),
    }
    write_text(folder / JSON, json.dumps(redact(content), indent=1) + "\n", "--out")
    write_text(folder / MARKDOWN, redact(format_markdown(report)), "--out")


def format_markdown(report: Report) -> str:
    lines = ["# Device verification", "", f"**{report.mode}**", ""]
    for name, value in report.machine.items():
        text = (", ".join(value) or "none") if isinstance(value, list) else value
        lines.append(f"* {name}: {text}")
    lines += ["", "| part | verdict | seconds | what to do |", "| --- | --- | --- | --- |"]
    for part in report.parts:
        advice = "; ".join(dict.fromkeys(f.advice for f in part.findings if f.advice))
        row = (part.name, part.verdict, f"{part.seconds:.0f}", advice.replace("|", "\\|"))
        lines.append(f"| {' | '.join(row)} |")
    lines += [f"| {name} | not run | | interrupted before it |" for name in report.missing]
    for part in report.parts:
        lines += ["", f"## {part.name}: {part.verdict}", ""]
        for finding in part.findings:
            lines.append(f"* {finding.verdict}: {finding.text}")
            if finding.advice:
                lines.append(f"  What to do: {finding.advice}")
    return "\n".join(lines) + "\n"


def redact(value: Any) -> Any:
    """The same value without absolute paths, user names and host names in any of its texts."""
    if isinstance(value, dict):
        return {redact(key): redact(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = PATH.sub(lambda result: f".../{result[1]}", value)
    for name, substitute in list_private_names().items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", substitute, text)
    return text


def list_private_names() -> dict[str, str]:
    """Names of this user and host -> their replacements in a report."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry in the password file
        user = ""
    names = {user: "USER", os.path.basename(os.path.expanduser("~")): "USER"}
    host = socket.gethostname()
    names.update({host: "HOST", host.partition(".")[0]: "HOST"})
    anonymous_words = ("root", "user", "localhost")  # words that identify nobody
    return {
        n: new for n, new in names.items() if len(n) >= SHORTEST_NAME and n not in anonymous_words
    }
