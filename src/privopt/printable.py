"""Texts from elsewhere as they may be shown: nothing steers a terminal or runs on for pages."""

MOST_SHOWN = 1000  # letters of a sentence
_CUT = "..."


def printable(text: str, most: int = MOST_SHOWN) -> str:
    r"""A text for a terminal: what cannot be seen there is a question mark, and a long text is cut.

    Control characters, escape sequences, marks that turn the direction of writing, zero-width letters and halves of
    surrogate pairs cannot be seen. A space is the only blank that stays.

    Args:
        text: any.
        most: how many letters are shown.

    >>> printable("re\x1b[31md"), printable("abcdef", 4)
    ('re?[31md', 'abcd...')
    """
    seen = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return seen if len(text) <= most else seen[:most] + _CUT


def printable_lines(text: str) -> str:
    """A text of several lines, each as `printable`."""
    return "\n".join(map(printable, text.split("\n")))
