"""Numbers written for people."""

import math
from typing import Any

from privopt.json_values import plain
from privopt.ledger.amounts import rounded_down

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FILTERS = (
    "chance",
    "several",
    "several_or",
    "size",
    "duration",
    "at_most",
    "spelled",
    "titled",
)  # of templates
_THOUSANDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: Any, digits: int = 4) -> str:
    """A number as text: thousands separated, at most `digits` significant digits; anything else as it prints.

    >>> number(16152), number(0.123456), number(3.83e-9), number(float("inf")), number(2.0)
    ('16,152', '0.1235', '3.83e-9', 'infinity', '2')
    """
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    size = abs(value)
    if size == 0 or (size < 1e15 and float(value).is_integer() and size < 10.0 ** max(digits, 6)):
        return f"{int(value):,}"
    if size < 1e-4 or size >= 1e9:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def pretty(value: Any, digits: int = 4) -> str:
    r"""`number` for a page: powers of ten and minus signs are typeset.

    >>> print(pretty(3.83e-9).replace("\xa0", " "), pretty(-0.5), pretty(float("inf")))
    3.83 × 10⁻⁹ −0.5 ∞
    """
    value = plain(value)
    text = number(value, digits)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text
    if not math.isfinite(value):
        return text.replace("infinity", "∞").replace("-", "−")
    mantissa, _, exponent = text.partition("e")
    typeset = mantissa.replace("-", "−")
    return f"{typeset}\xa0×\xa0{power_of_ten(int(exponent))}" if exponent else typeset


def power_of_ten(exponent: int) -> str:
    """A power of ten, typeset.

    >>> power_of_ten(-6), power_of_ten(0)
    ('10⁻⁶', '1')
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}" if exponent else "1"


def span(low: float, high: float) -> str:
    """A range as text, one number where both ends read the same.

    >>> span(0.5, 0.5), span(1.0, 2.5)
    ('0.5', '1 to 2.5')
    """
    first, last = pretty(low), pretty(high)
    return first if first == last else f"{first} to {last}"


def percent(share: float) -> str:
    """A probability as a percentage, rounded up so that a bound stays a bound.

    >>> percent(0.5), percent(0.54601), percent(0.99995)
    ('50 %', '54.7 %', '99.995 %')
    """
    digits = 1
    while share < 1 and digits < 6 and math.ceil(share * 10 ** (digits + 2) - 1e-6) >= 10 ** (digits + 2):
        digits += 1
    if share < 1 and digits == 6:
        return "almost 100 %"
    rounded = math.ceil(share * 10 ** (digits + 2) - 1e-6) / 10**digits
    return f"{rounded:.{digits}f}".rstrip("0").rstrip(".") + " %"


def chance(probability: float) -> str:
    """A small probability as "1 in so many", rounded so that a bound stays a bound.

    >>> chance(0.0), chance(3.83e-9), chance(0.0123), chance(0.3)
    ('zero', '1 in 260 million', '1 in 81', '30 %')
    """
    if probability <= 0:
        return "zero"
    if probability > 0.1:
        return percent(min(probability, 1.0))
    odds = 1 / probability
    if odds >= 1e15:
        return "less than 1 in 1,000 trillion"
    unit, name = next(((size, name) for size, name in _THOUSANDS if odds >= size), (1.0, ""))
    scaled = odds / unit
    step = 10 ** max(0, math.floor(math.log10(scaled)) - 1)
    return f"1 in {math.floor(scaled / step) * step:,}" + (f" {name}" if name else "")


def size(count: int) -> str:
    """A number of bytes as text.

    >>> size(512), size(3_500_000)
    ('512 bytes', '3.5 MB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{number(count / unit, 2)} {name}"
    return f"{count} bytes"


def duration(seconds: float) -> str:
    """A time as text.

    >>> duration(0.02), duration(75.0)
    ('under 0.1 s', '75 s')
    """
    if seconds < 0.1:
        return "under 0.1 s"
    return f"{number(seconds, 2)} s" if seconds < 600 else f"{number(seconds / 60, 2)} minutes"


def at_most(value: float, digits: int = 3) -> str:
    """A positive number as text, rounded down, so that what is shown is never too much.

    >>> at_most(0.92961), at_most(1.0), at_most(0.0)
    ('0.929', '1', '0')
    """
    return number(rounded_down(value, digits), digits)


def several(count: int, noun: str) -> str:
    """A count with its noun.

    >>> several(1, "release"), several(1200, "release"), several(2, "pass")
    ('1 release', '1,200 releases', '2 passes')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def spelled(name: str) -> str:
    """A class name as words.

    >>> spelled("ClippedGradientDifference"), spelled("step_size"), spelled("PrefixSum.next")
    ('clipped gradient difference', 'step size', 'prefix sum: next')
    """
    letters: list[str] = []
    for position, letter in enumerate(name):
        starts = letter.isupper() and position > 0 and name[position - 1].islower()
        letters.append((" " if starts else "") + letter)
    return "".join(letters).replace("_", " ").replace(".", ": ").lower()


def several_or(count: float, noun: str) -> str:
    """`several` for a number that need not be whole.

    >>> several_or(30.0, "pass"), several_or(2.5, "pass")
    ('30 passes', '2.5 passes')
    """
    if count == int(count):
        return several(int(count), noun)
    return f"{number(count, 3)} {several(2, noun).partition(' ')[2]}"


def titled(name: str) -> str:
    """A class name as a heading.

    >>> titled("LogisticRegression")
    'Logistic regression'
    """
    text = spelled(name)
    return text[:1].upper() + text[1:]
