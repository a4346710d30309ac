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


def test_letters_of_single_pages_follow_a_link_to_their_page() -> None:
    """What stands in the first table holds everywhere; every other letter says on which pages."""
    on_pages = SYMBOLS.partition("### On single pages")[2]
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", on_pages)
    assert linked
    assert not [page for page in linked if not (DOCS / page).is_file()]
    letters = re.findall(r"^\* .*$", on_pages, re.MULTILINE)
    assert letters
    assert not [line for line in letters if "(" not in line]
