"""Amounts of memory as they are typed: 8GB, 500 MiB, 1e9."""

import re
from typing import Any

from privopt.errors import ArgumentError

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def bytes_of(amount: Any, name: str = "memory") -> int | None:
    """A number of bytes, or a text such as "8GB"; None for None.

    Args:
        amount: as it was given.
        name: of what was given.
    Raises:
        ArgumentError: it is neither, or less than 1.
    """
    if amount is None or (isinstance(amount, int) and not isinstance(amount, bool) and amount >= 1):
        return amount
    found = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    size = 0.0 if found is None else float(found.group(1)) * _UNITS[found.group(2).lower()]
    if not 1 <= size < 2**62:
        raise ArgumentError(
            f"{name} must be an amount such as 8GB, 500MiB or a number of bytes, got {amount!r}."
        )
    return int(size)
