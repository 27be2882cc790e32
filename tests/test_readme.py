"""Commands and links of the documents name existing scripts, config files, settings and files.

tests/test_documents.py runs the commands.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.documents import CHINESE, DOCUMENTS, FILE, make_anchor, read_lines
from utils.files import ROOT
from utils.load_config import list_settings, load_config
from utils.networks import find_network, list_networks
from utils.weights.description import VERSION

ALL = sorted({*DOCUMENTS, *CHINESE})


@pytest.fixture(scope="module")
def yamls(tmp_path_factory) -> dict:
    """The config files that a document asks the user to write: {name: file}."""
    folder = tmp_path_factory.mktemp("yamls")
    result = {}
    for document in DOCUMENTS:
        for name, text in FILE.findall(document.read_text()):
            result[name] = folder / name
            result[name].parent.mkdir(parents=True, exist_ok=True)
            result[name].write_text(text)
    return result


COMMANDS = [line.command for page in DOCUMENTS for line in read_lines(page)]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_documented_command_names_existing_scripts_and_settings(line, yamls):
    words = [w for w in shlex.split(line, comments=True) if not re.fullmatch(r"[A-Z_]+=\S+", w)]
    if words[0] in ("source", "pip", "diff"):
        return
    assert words[0] in ("bash", "python"), line
    assert (ROOT / words[1]).is_file(), line
    overrides = [w[2:] for w in words if re.match(r"--\w+\.\w+=", w)]
    for name in [w for w in words if w.endswith(".yaml")]:
        config = find_network(name.split("/")[0]).config
        load_config(config, yamls.get(name, ROOT / name), overrides)


@pytest.mark.parametrize("document", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_settings_and_files_of_a_document_exist(document):
    """Settings and linked files. The README of a network names settings of that network only.

    In examples in Python, `model.names` is no setting; tests run them.
    """
    text = re.sub(r"```python\n.*?```", "", document.read_text(), flags=re.DOTALL)
    networks = list_networks()
    selected = [name for name in networks if document.parent == ROOT / name] or networks
    settings = [list_settings(find_network(network).config) for network in selected]
    existing = set().union(*settings)
    names = re.findall(r"(?<![\w/.])(?:run|data|model|train|eval)\.\w+", text)
    files = re.compile(r"\.(py|csv|txt|log|json|bin|mindrecord\d?|safetensors)$")
    assert not {name for name in names if not files.search(name)} - existing
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_an_anchor_of_a_link_is_a_heading(document):
    for name, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
        page = document.parent / name if name else document
        assert anchor in list_anchors(page), f"{name}#{anchor}"


def list_anchors(document: Path) -> set:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {make_anchor(heading) for heading in headings}


def test_citations_are_of_this_version_and_agree():
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    for page in ("README.md", "README_CN.md"):
        entry = (ROOT / page).read_text().split("```bibtex")[1]
        assert f"  title  = {{{citation['title']}}},\n" in entry
        assert f"  author = {{{{{citation['authors'][0]['name']}}}}},\n" in entry
        assert f"  note   = {{{citation['abstract']}, version {VERSION}}},\n" in entry
