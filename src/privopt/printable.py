"""Texts from elsewhere as they may be shown: nothing steers a terminal or runs on for pages."""

import re

MOST_SHOWN = 1000  # letters of a sentence
_CUT = "..."
# Letters that Python calls printable, of no width or blank: fillers, joiners, selectors of variants, empty Braille.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def printable(text: str, most: int = MOST_SHOWN) -> str:
    r"""A text for a terminal: what cannot be seen there is a question mark, and a long text is cut.

    Control characters, escape sequences, marks that turn the direction of writing, letters of no width, blank ones and
    halves of surrogate pairs cannot be seen. A space is the only blank that stays.

    Args:
        text: any.
        most: how many letters are shown.

    >>> printable("re\x1b[31md"), printable("abcdef", 4)
    ('re?[31md', 'abcd...')
    """
    seen = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    seen = _UNSEEN.sub("?", seen)
    return seen if len(text) <= most else seen[:most] + _CUT


def printable_lines(text: str) -> str:
    """A text of several lines, each as `printable`."""
    return "\n".join(map(printable, text.split("\n")))
