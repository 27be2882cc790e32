"""The commands of the documents: every one names real scripts, yaml files and settings.

tests/test_documents.py runs them.
"""

import re
import shlex

import pytest

from utils.config import ROOT, list_settings, load_config
from utils.networks import find_network, list_networks

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS += [ROOT / network / "README.md" for network in list_networks()]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
FILE = re.compile(r"```yaml file=(\S+)\n(.*?)```", re.DOTALL)


def commands() -> list:
    """The lines of all bash blocks."""
    lines = []
    for document in DOCUMENTS:
        for block in re.findall(r"```bash\n(.*?)```", document.read_text(), re.DOTALL):
            block = block.replace("\\\n", " ")
            lines += [line.strip() for line in block.splitlines() if line.strip()]
    return lines


@pytest.fixture(scope="module")
def yamls(tmp_path_factory) -> dict:
    """Those that a document asks its reader to write: {name: file}."""
    folder, result = tmp_path_factory.mktemp("yamls"), {}
    for document in DOCUMENTS:
        for name, text in FILE.findall(document.read_text()):
            result[name] = folder / name
            result[name].parent.mkdir(parents=True, exist_ok=True)
            result[name].write_text(text)
    return result


@pytest.mark.parametrize("line", commands())
def test_a_documented_command_is_real(line, yamls):
    words = [w for w in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=\S+", w)]
    if words[0] in ("source", "pip"):
        return
    assert words[0] in ("bash", "python"), line
    assert (ROOT / words[1]).is_file(), line
    overrides = [w[2:] for w in words if re.match(r"--\w+\.\w+=", w)]
    for name in [w for w in words if w.endswith(".yaml")]:
        config = find_network(name.split("/")[0]).config
        load_config(config, yamls.get(name, ROOT / name), overrides)


def test_every_network_has_the_six_headings():
    for network in list_networks():
        text = (ROOT / network / "README.md").read_text()
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["What", "Run", "Data", "Results", "Departures", "Notes"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_names_is_there(document):
    """Settings, in a network's own README those of that network, and files that are linked."""
    text = document.read_text()
    networks = list_networks()
    own = [name for name in networks if document.parent == ROOT / name] or networks
    known = {setting for network in own for setting in list_settings(find_network(network).config)}
    named = re.findall(r"(?<![\w/.])(?:run|data|model|train|eval)\.\w+", text)
    files = re.compile(r"\.(py|csv|txt|log|json|bin|mindrecord\d?)$")
    assert not {name for name in named if not files.search(name)} - known
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []
