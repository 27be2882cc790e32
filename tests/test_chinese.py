"""Chinese pages have the headings, commands and links of the English ones.

tests/test_documents.py runs the commands of the English pages; those of the Chinese pages are the
same, up to comments. tests/test_readme.py checks settings, links and anchors in both languages.
"""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.documents import make_anchor
from utils.files import ROOT

# {English page: Chinese page}
PAGES = {ROOT / "docs" / page.name: page for page in sorted((ROOT / "docs" / "zh").glob("*.md"))}
PAGES[ROOT / "README.md"] = ROOT / "README_CN.md"
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
OTHER = re.compile(r"^(?:<!--.*-->|.*English.* \| .*简体中文.*)\n", re.MULTILINE)
COMMENT = re.compile(r"\s+# .*")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAIRS = pytest.mark.parametrize(
    ("english", "chinese"), PAGES.items(), ids=[str(page.relative_to(ROOT)) for page in PAGES]
)


def read_blocks(page: Path) -> list[str]:
    """The blocks of code of a page, without comments."""
    return [COMMENT.sub("", block) for block in BLOCK.findall(page.read_text())]


def read_sections(page: Path) -> list[str]:
    """The page from one heading to the next, without code, HTML comments and the languages."""
    text = OTHER.sub("", BLOCK.sub("~~~", page.read_text()))
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:]


def find_heading(page: Path, anchor: str) -> int:
    """The position of a heading in its page."""
    headings = [section.splitlines()[0].lstrip("# ") for section in read_sections(page)]
    return [*map(make_anchor, headings)].index(anchor)


def read_links(page: Path, section: str, pages: dict[Path, Path]) -> Counter:
    """(linked page, position of the heading); a page of `pages` is replaced by its translation."""
    links = []
    for target in LINK.findall(section):
        if "://" in target:
            links.append((target, None))
            continue
        name, _, anchor = target.partition("#")
        linked = Path(os.path.normpath(page.parent / name)) if name else page
        position = find_heading(linked, anchor) if anchor else None
        links.append((str(pages.get(linked, linked)), position))
    return Counter(links)


@PAIRS
def test_a_page_begins_with_a_link_to_the_other_language(english, chinese):
    """The third line of both."""
    name = os.path.relpath(chinese, english.parent)
    assert english.read_text().splitlines()[2] == f"English | [简体中文]({name})"
    name = os.path.relpath(english, chinese.parent)
    assert chinese.read_text().splitlines()[2] == f"[English]({name}) | 简体中文"


@PAIRS
def test_the_commands_of_both_languages_are_equal(english, chinese):
    assert read_blocks(chinese) == read_blocks(english)


@PAIRS
def test_the_headings_of_both_languages_have_the_same_levels(english, chinese):
    levels = [[text.split(" ")[0] for text in read_sections(page)] for page in (english, chinese)]
    assert levels[0] == levels[1]


@PAIRS
def test_a_chinese_page_links_to_chinese_pages_where_they_exist(english, chinese):
    expected = [read_links(english, section, PAGES) for section in read_sections(english)]
    assert [read_links(chinese, section, {}) for section in read_sections(chinese)] == expected
