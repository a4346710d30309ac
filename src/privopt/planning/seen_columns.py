"""Columns of which nothing but the value of a missing cell was seen, by the released second moment.

A missing or unreadable cell becomes a public value, the middle of its bounds or a block of zeros, so a column that
cannot be read at all is constant and no record is missing. With M the released second moment of rows with a column of
ones c, s the standard deviation of its entries, and x0_j what feature j of a missing cell becomes, the features J of a
column are spread about it by

    spread   sum_j in J of (e_j - x0_j e_c)^T M (e_j - x0_j e_c)
    noise    s sqrt(|J| + 2 sum x0_j^2 + (sum x0_j^2)^2)

An off-diagonal entry of M has the standard deviation s / sqrt(2). Nothing is said of a column whose cells, if they were
readable, would hardly stand out from the noise: spread times `FAR` noise must be below what cells usually show.

Source:
    Ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.planning.plan import UNSEEN_COLUMNS, Finding

SURE, FAR = 2.0, 4.0  # standard deviations of the noise
NUMBER, FLAG, LEVEL = (
    0.08,
    0.25,
    1.0,
)  # usual spreads: of numbers over half their range squared, even ones have 1/3
MOST_NAMES = 10  # in a sentence


@dataclass(frozen=True, kw_only=True)
class SourceColumn:
    """The features that one column of a table becomes.

    Attributes:
        name: of the column.
        start, stop: its features, the indicator of missing cells left out.
        missing: what each of them becomes where the cell is missing.
        spread: the sum of the squared distances from that which readable cells usually have.
    """

    name: str
    start: int
    stop: int
    missing: float
    spread: float


def unseen(
    released_moment: Array | NDArray[np.float64],
    noise: float,
    columns: Sequence[SourceColumn],
    constant: int,
) -> list[str]:
    """The names of the columns of which nothing else was seen. Post-processing.

    Args:
        released_moment: M, (d, d).
        noise: s.
        columns: in the units of the rows.
        constant: the number of the column of ones.
    """
    moment = np.asarray(released_moment, np.float64)
    if not np.all(np.isfinite(moment)):
        return []
    ones, names = float(moment[constant, constant]), list[str]()
    for column in columns:
        here, size = slice(column.start, column.stop), column.stop - column.start
        squares = size * column.missing**2
        spread = float(np.trace(moment[here, here])) + squares * ones
        spread -= 2.0 * column.missing * float(np.sum(moment[here, constant]))
        deviation = noise * math.sqrt(size + 2.0 * squares + squares**2)
        if spread <= SURE * deviation and FAR * deviation < column.spread * ones:
            names.append(column.name)
    return names


def finding(names: Sequence[str]) -> dict[str, Finding]:
    """By its name, the notice; nothing where every column was seen."""
    if not names:
        return {}
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    listed = ", ".join(names[:MOST_NAMES])
    return {
        UNSEEN_COLUMNS: Finding(
            len(names),
            f"nothing but the midpoint was seen in {listed}{more}: the cells cannot be read, or hardly differ from the "
            "middle of the bounds (of a category: none of its levels was seen). Usual causes: a decimal comma, another "
            "spelling of the levels, bounds that are far too wide",
        )
    }
