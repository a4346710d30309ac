"""The one exception for a schema, a table or a model directory that cannot be used."""

import csv
import difflib
from collections.abc import Sequence

from privopt.errors import PrivoptError


class TableError(PrivoptError, ValueError):
    """What the user gave cannot be used; the message is one sentence and carries no cell of the table."""


# ------------------------------------------------------------------------------------------------------------
# The names of a table's columns beside those of its schema: what may be meant by one that is not there.


MOST_COMPARED = 10_000  # names of a table
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


def instead_of(name: str, present: Sequence[str], wanted: Sequence[str], *, text: str | None = None) -> str:
    """What a column that a table lacks may be called there, or what is wrong with its header; empty where nothing is.

    Args:
        name: which the schema has.
        present: the table's names; the first `MOST_COMPARED` are looked at.
        wanted: all that the schema has, or those that are read.
        text: the separator of a text, whose first line may be a record: then no name is told that differs from that of
            the schema in more than capitals, blanks and signs. None where names are stored apart from the records.
    """
    present = present[:MOST_COMPARED]
    alike = [one for one in present if _plain(one) == _plain(name)]
    if alike:
        return f": did you mean {alike[0]!r}? Names are compared letter by letter"
    if text is None:
        close = difflib.get_close_matches(name, [one for one in present if one not in wanted], 1, 0.75)
        return f": did you mean {close[0]!r}?" if close else ""
    if set(present) & set(wanted):
        return ""
    if not present:
        return ": it is empty"
    known = {_plain(one) for one in wanted}
    for sign, words in _SEPARATORS.items():
        parts = [part for one in present for part in next(csv.reader([one], delimiter=sign), [])]
        if sign != text and len(parts) > len(present) and known & {_plain(part) for part in parts}:
            return (
                f": its first line has {words} between the names. Say so in the schema: "
                f'"file": {{"separator": "{_written(sign)}"}}'
            )
    mark = _SEPARATORS.get(text, repr(text))
    return (
        f", nor any other of them: its first line must be the names of the columns, with {mark} between them"
    )


def _plain(name: str) -> str:
    """A name without capitals, blanks and signs; itself where nothing else is in it."""
    return "".join(sign for sign in name.casefold() if sign.isalnum()) or name


def _written(sign: str) -> str:
    return "\\t" if sign == "\t" else sign
