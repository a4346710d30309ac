import pytest

from privopt.printable import MOST_SHOWN, printable, printable_lines


@pytest.mark.parametrize("text", ["\x1b[31m", "a\nb", "\u202ea", "a\u200bb", "\x07", "\ud800", "\x9b"])
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text, 1).isprintable()


@pytest.mark.parametrize(
    "letter", "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0100\u00a0\u00ad\u3000"
)
def test_what_is_blank_or_has_no_width_is_a_question_mark(letter: str) -> None:
    """A name that ends in one looks like another, and a row of them like an empty line."""
    assert printable(f"a{letter}b") == "a?b"


def test_long_texts_are_cut_and_lines_stay_lines() -> None:
    assert printable("x" * (MOST_SHOWN + 1)) == "x" * MOST_SHOWN + "..."
    assert printable("x" * MOST_SHOWN) == "x" * MOST_SHOWN
    assert printable_lines("a\x1b\nb") == "a?\nb"
