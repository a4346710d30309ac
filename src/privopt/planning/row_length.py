"""The mean square length of rows with a constant column, read off the second moment of the divided rows.

Rows a = (x, 1) enter the second moment as a / |a|, so that it needs no bound on |a|. What is wanted is the moment of
rows as they are, about k times that, k = 1 + L^2 with L the length of a typical x. The entry of the constant column,
E[1 / |a|^2], tells k at no further price. With d columns that are even over [-1, 1], S = |a|^2 has a relative variance
v = 0.8 Q^2 / (d S^2), Q = S - 1. To second order

    E[1 / |a|^2] = (1 + v) / S,    L = (sqrt(S) (1 - v / 8) - (1 + 3 v / 8) / sqrt(S)) / (1 - (1 + v) / S).

L weighs the features by least squares: it is the L for which `w.a / |a|` is closest to `w.a / L`. The noise is public:
L is the exponential of the posterior mean of log L, under a prior flat in log S between the shortest row and the
longest. Utility only.

Source:
    Ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning.plan import FEW_USABLE, UNSEEN_COLUMNS, USABLE, Finding
from privopt.public import Public, Relation

EVEN = 0.8  # variance of the square of a number that is even over [-1, 1], over its squared mean
GRID = 4_000  # values of S that are weighed, evenly spaced by their logarithms
FARTHEST, LEAST_NOISE = 1e6, 1e-12  # of the entry and its noise, so that no square overflows
SPREAD = 0.3  # how far the share of usable units may be below 1
LEAST_SHARE, SURE = (
    0.95,
    2.0,
)  # a share that is not below this by so many standard deviations is 1, as is expected


def square_length(moment: NDArray[np.float64], noise: float, constant: int, *, all_expected: bool) -> float:
    """k, at least 1: what turns the second moment of divided rows into that of rows as they are.

    Args:
        moment: of the divided rows, released, (d, d).
        noise: standard deviation of its entries.
        constant: the number of the column of ones.
        all_expected: see `usable_share`.
    """
    share = usable_share(moment, noise, all_expected=all_expected)
    columns = max(len(moment) - 1, 1)
    return 1.0 + length_shown(float(moment[constant, constant]) / share, noise / share, columns=columns) ** 2


def usable_share(moment: NDArray[np.float64], noise: float, *, all_expected: bool) -> float:
    """The share of usable units, between 0.1 and 1: each adds 1 to the trace of the moment of divided rows.

    Args:
        moment: of the divided rows, released, (d, d).
        noise: standard deviation of its entries.
        all_expected: whether n is the number of units that there are, so that all are usable unless the trace says
            surely that they are not; else n may be above it.
    """
    trace, variance = float(np.trace(moment)), len(moment) * noise**2
    if not math.isfinite(trace) or (all_expected and trace + SURE * math.sqrt(variance) >= LEAST_SHARE):
        return 1.0
    share = 1.0 + SPREAD**2 / (SPREAD**2 + variance) * (trace - 1.0)
    return min(max(share, 1.0 - 3.0 * SPREAD), 1.0)


def length_shown(square: float, noise: float, *, columns: int) -> float:
    """L.

    Args:
        square: E[1 / |a|^2], noise included.
        noise: its standard deviation.
        columns: d, at least 1, the constant left out.
    """
    size = np.geomspace(1.0 + 1e-6, 1.0 + columns, GRID)  # S
    spread = EVEN * (size - 1.0) ** 2 / (columns * size**2)  # v
    squares = (1.0 + spread) / size
    root = np.sqrt(size)
    lengths = (root * (1.0 - spread / 8.0) - (1.0 + 3.0 * spread / 8.0) / root) / (1.0 - squares)
    logarithms = np.log(np.maximum(lengths, 1.0))
    if not (math.isfinite(square) and math.isfinite(noise)):
        return math.exp(float(np.mean(logarithms)))
    square, noise = min(max(square, -FARTHEST), FARTHEST), max(noise, LEAST_NOISE) if noise > 0.0 else 0.0
    if noise == 0.0:
        return math.exp(float(np.interp(-square, -squares, logarithms)))
    misfit = 0.5 * ((squares - square) / noise) ** 2
    weights = np.exp(np.min(misfit) - misfit)
    return math.exp(float(np.sum(weights * logarithms) / np.sum(weights)))


# ---- Columns of which nothing but the value of a missing cell was seen, by the released second moment ------
# A missing or unreadable cell becomes a public value, the middle of its bounds or a block of zeros, so a column that
# cannot be read at all is constant and no record is missing. With M the released second moment of rows with a column of
# ones c, s the standard deviation of its entries, and x0_j what feature j of a missing cell becomes, the features J of
# a column are spread about it by
#
#     spread   sum_j in J of (e_j - x0_j e_c)^T M (e_j - x0_j e_c)
#     noise    s sqrt(|J| + 2 sum x0_j^2 + (sum x0_j^2)^2)
#
# An off-diagonal entry of M has the standard deviation s / sqrt(2). Nothing is said of a column whose cells, if they
# were readable, would hardly stand out from the noise: spread times `FAR` noise must be below what cells usually show.
#
# Source:
#     Ours.


NEAR, FAR = 2.0, 4.0  # standard deviations of the noise
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
        if spread <= NEAR * deviation and FAR * deviation < column.spread * ones:
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


# ------------------------------------------------------------------------------------------------------------
# The number of usable privacy units, estimated from released values, and the notice where it is small.
# A record whose target cannot be read counts as zero, and so does a user without a usable record. Nothing may say so
# while data are read. There are two ways to tell their number, n units of d columns:
#
#     by the trace    of the second moment M. It takes each row divided by its length, so that every usable unit adds
#                     exactly 1 to the trace and the others add 0: usable n tr(M), deviation sqrt(factor d) z with z the
#                     noise multiplier. It is post-processing of a release that is paid for already.
#     by a count      for 1 % of mu^2, see `UsableUnits`: deviation 10 / mu, under both relations.
#
# A fit counts where no such trace is released, or its noise would hide even whether any unit is usable; and it does not
# where the noise of the count would hide that too. All of it follows from public numbers.
#
# Source:
#     Ours.


COUNT_SHARE = 0.01  # of mu^2, for the count
BY_COUNT = f"by a count, for {100 * COUNT_SHARE:g} % of the budget (of its rho)"
CAUSES = (
    "Usual causes: labels in another spelling than the declared ones (yes and no, the codes 1 and 2, M and F); labels "
    "stored as text; numbers with a decimal comma; an encoding other than UTF-8; missing targets"
)
CELL_CAUSES = CAUSES.replace("labels", "levels").replace("missing targets", "cells that are empty")


@dataclass(frozen=True, kw_only=True)
class Usable:
    """An estimate of the number of usable units.

    Attributes:
        estimate: of the number; noise may put it below 0 or above n.
        deviation: standard deviation of its noise.
        public: of the data.
        source: the release that it was read off, and its price.
    """

    estimate: float
    deviation: float
    public: Public
    source: str

    @classmethod
    def in_moment(
        cls, released_moment: Array | NDArray[np.float64], multiplier: float, public: Public
    ) -> "Usable":
        """Read off the second moment of rows of length 1, (d, d).

        Args:
            released_moment: as it was released; it counts as zero where it is not finite.
            multiplier: its noise multiplier.
            public: of the data.
        """
        trace = float(np.trace(np.asarray(released_moment, np.float64)))
        return cls(
            estimate=public.n * trace if math.isfinite(trace) else 0.0,
            deviation=moment_deviation(multiplier, public),
            public=public,
            source="by the trace of the second moment, at no further price",
        )

    @classmethod
    def counted(cls, released_share: Array | float, multiplier: float, public: Public) -> "Usable":
        """From the share of usable units, as it was released; it counts as zero where it is not finite.

        Args:
            released_share: of n.
            multiplier: its noise multiplier.
            public: of the data.
        """
        share = float(released_share)
        return cls(
            estimate=public.n * share if math.isfinite(share) else 0.0,
            deviation=multiplier,
            public=public,
            source=BY_COUNT,
        )

    @property
    def count(self) -> int:
        """The estimate, rounded and moved into [0, n]."""
        return round(min(max(self.estimate, 0.0), float(self.public.n)))

    @property
    def is_low(self) -> bool:
        """Whether fewer than 95 % of the units are usable, by two standard deviations."""
        return self.estimate + SURE * self.deviation < LEAST_SHARE * self.public.n

    @property
    def amount(self) -> str:
        """The number in words."""
        return f"about {self.count:,} (± {_rounded(self.deviation)}) of {self.public.n:,} {self.public.unit}s"

    @property
    def findings(self) -> dict[str, Finding]:
        """By name, the number, and the notice where it is low; nothing where the noise hides even whether any are."""
        if not tells(self.deviation, self.public):
            return {}
        found = {USABLE: Finding(self.count, f"{self.amount} are usable, {self.source}")}
        if self.is_low:
            found[FEW_USABLE] = Finding(self.count, self._notice())
        return found

    def _notice(self) -> str:
        nominal = ""
        if self.public.relation is Relation.ADD_OR_REMOVE_ONE:
            nominal = f"; an n above the number of {self.public.unit}s"
        return f"only {self.amount} are usable, and the others count as zero. {CAUSES}{nominal}"


def moment_deviation(multiplier: float, public: Public) -> float:
    """Standard deviation, in units, of the number that the trace of a released second moment shows."""
    return math.sqrt(public.relation.factor * public.d) * multiplier


def count_multiplier(budget: Budget) -> float:
    """The noise multiplier of a count for `COUNT_SHARE` of a budget; it is the deviation of the number as well."""
    return (
        1.0 / (gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(COUNT_SHARE))
        if budget.is_private
        else 0.0
    )


def tells(deviation: float, public: Public) -> bool:
    """Whether an estimate tells none from all by two standard deviations."""
    return SURE * deviation < LEAST_SHARE * public.n


def announced(deviation: float, public: Public, price: str) -> dict[str, Finding]:
    """The indicator of a plan: how exactly the number will be known, at what price; nothing where it will not be."""
    if not tells(deviation, public):
        return {}
    meaning = (
        f"the report will give the number of usable {public.unit}s to about ± {_rounded(deviation)}, {price}"
    )
    return {USABLE: Finding(deviation, meaning)}


def _rounded(deviation: float) -> str:
    """A standard deviation of a number of units, to two digits; at least 1."""
    return f"{int(float(f'{max(deviation, 1.0):.1e}')):,}"
