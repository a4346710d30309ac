import pytest

from privopt.printable import MOST_SHOWN, printable, printable_lines


@pytest.mark.parametrize("text", ["\x1b[31m", "a\nb", "\u202ea", "a\u200bb", "\x07", "\ud800", "\x9b"])
def test_nothing_that_is_shown_steers_a_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text, 1).isprintable()


def test_long_texts_are_cut_and_lines_stay_lines() -> None:
    assert printable("x" * (MOST_SHOWN + 1)) == "x" * MOST_SHOWN + "..."
    assert printable("x" * MOST_SHOWN) == "x" * MOST_SHOWN
    assert printable_lines("a\x1b\nb") == "a?\nb"
