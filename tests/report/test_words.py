import math

import pytest

from privopt.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (1234.5678, "1,235"),
        (0.00012346, "0.0001235"),
        (-2.50, "-2.5"),
        (6.02e23, "6.02e23"),
        (1e-300, "1e-300"),
        (math.inf, "infinity"),
        (math.nan, "not a number"),
        ("tail", "tail"),
        (True, "True"),
    ],
)
def test_numbers_are_written_for_people(value: object, text: str) -> None:
    assert words.number(value) == text


def test_bounds_on_probabilities_are_never_rounded_to_the_safe_looking_side() -> None:
    for share in (0.5, 0.50001, 0.7310585786, 0.9, 0.9991, 0.9999999):
        shown = words.percent(share)
        assert shown == "almost 100 %" or float(shown.rstrip(" %")) / 100 >= share - 1e-9
    for probability in (1e-12, 3.7e-9, 0.0099, 0.05):
        odds = words.chance(probability).removeprefix("1 in ").replace(",", "")
        for name, factor in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
            odds = odds.replace(f" {name}", f"e{round(math.log10(factor))}")
        assert 1 / float(odds) >= probability * (1 - 1e-9)
