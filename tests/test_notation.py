"""The notation table: a letter has one meaning on a page."""

import re
from collections import Counter
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
SYMBOLS = (DOCS / "notation.md").read_text(encoding="utf-8").partition("## Words")[0]
TABLES = [
    [line.split("|")[1] for line in block.splitlines()[2:]]
    for block in re.findall(r"^\| symbol .*?(?=\n\n)", SYMBOLS, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("rows", TABLES)
def test_no_letter_stands_twice_in_a_table(rows: list[str]) -> None:
    letters = Counter(letter.strip() for row in rows for letter in row.split(","))
    assert letters
    assert not [letter for letter, count in letters.items() if count > 1]


def test_every_table_of_a_page_names_its_page() -> None:
    """The first table holds everywhere; each of the others follows links to the pages that it holds on."""
    on_pages = SYMBOLS.partition("### On single pages")[2]
    headings = [block for block in on_pages.split("\n\n") if block.strip() and not block.startswith("|")]
    assert len(headings) == len(TABLES) - 1
    for heading in headings:
        linked = re.findall(r"\]\(([\w/-]+\.md)\)", heading)
        assert linked
        assert not [page for page in linked if not (DOCS / page).is_file()]
