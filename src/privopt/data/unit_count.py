"""The public number of units, and whether so many can be there."""

from typing import Any

import numpy as np

from privopt.data import user_keys
from privopt.errors import ArgumentError
from privopt.public import Relation

MOST_ABSENT = 2  # under replace-one, n is at most this many times the number of rows


def check_units(n: Any, units: int, relation: Relation, *, by_user: bool) -> int:
    """The public number of units, where so many are there; see `Units.from_arrays` for what is refused."""
    # Only the number of rows under replace-one is public: a user may be replaced by one who has none.
    what = "users" if by_user else "rows"
    if n is None:
        if relation is Relation.ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"n is missing: under add-or-remove-one the number of {what} is private. Give a public "
                "number that no data set exceeds, or use relation='replace-one', which takes it as public."
            )
        return user_keys.user_count(units) if by_user else units
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"n must be an integer, got {type(n).__name__}.")
    if relation is Relation.REPLACE_ONE and not by_user and not units <= n <= MOST_ABSENT * units:
        raise ArgumentError(
            f"n = {n} was given with {units} rows: under replace-one it lies between {units} and twice that; leave it "
            "out, or give relation='add-or-remove-one' if the number of rows is private."
        )
    if units > n:
        raise ArgumentError(
            f"there are more {what} than n = {n}: n must be a public number that no data set exceeds."
        )
    return int(n)
