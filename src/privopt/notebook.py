"""How a value looks in a notebook: a small table of labelled sentences, everything in it escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_TABLE = "border-collapse: collapse; text-align: left; margin: .3em 0"
_CELL = (
    "text-align: left; vertical-align: top; padding: .15em .9em .15em 0; max-width: 60em; white-space: normal"
)
_WARNING = "border: 2px solid #c0392b; padding: .3em .6em; margin: .3em 0; max-width: 60em"


def card(title: str, rows: Iterable[tuple[str, str]], *, warnings: Iterable[str] = ()) -> str:
    """A heading and labelled sentences, without scripts, style sheets or anything from elsewhere.

    Args:
        title: the heading.
        rows: (label, sentence) pairs.
        warnings: sentences that must not be overlooked.

    >>> card("a < b", [("note", "x & y")]).count("&amp;"), "a &lt; b" in card("a < b", [])
    (1, True)
    """
    banners = [f'<p style="{_WARNING}"><b>{escape(text)}</b></p>' for text in warnings]
    lines = [
        f'<tr><th scope="row" style="{_CELL}">{escape(label)}</th><td style="{_CELL}">{escape(text)}</td></tr>'
        for label, text in rows
    ]
    return _wrapped(f"<p><b>{escape(title)}</b></p>{''.join(banners)}{_table(lines)}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose columns have headings."""
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(heading)}</th>' for heading in headings)
    body = [
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    ]
    return _wrapped(_table([f"<tr>{head}</tr>", *body]))


def _table(lines: Iterable[str]) -> str:
    return f'<table style="{_TABLE}"><tbody>{"".join(lines)}</tbody></table>'


def _wrapped(content: str) -> str:
    return f"<div>{content}</div>"
