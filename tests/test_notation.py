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


def test_letters_of_single_pages_stand_on_the_pages_that_they_name() -> None:
    """What stands in the first table holds everywhere; another letter has one meaning on the pages it names."""
    bullets = re.split(r"^\* ", SYMBOLS.partition("### On single pages")[2], flags=re.MULTILINE)[1:]
    assert len(bullets) > 5
    meanings = Counter()
    for bullet in bullets:
        head = re.match(r"([^(:]+) \((.*?\.md\))\): ", " ".join(bullet.split()))
        assert head, bullet
        letters = [letter.strip() for letter in head[1].split(",")]
        pages = {
            name: (DOCS / name).read_text(encoding="utf-8")
            for name in re.findall(r"\(([^()]+\.md)\)", head[2])
        }
        uses = {
            (letter, name)
            for letter in letters
            for name, text in pages.items()
            if re.search(rf"(?<![A-Za-z]){re.escape(letter)}(?![A-Za-z])", text)
        }
        assert {letter for letter, _ in uses} == set(letters), bullet
        assert {name for _, name in uses} == set(pages), bullet
        meanings.update(uses)
    assert not [use for use, count in meanings.items() if count > 1]
