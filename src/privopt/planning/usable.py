"""The number of usable privacy units, estimated from released values, and the notice where it is small.

A record whose target cannot be read counts as zero, and so does a user without a usable record. Nothing may say so
while data are read. There are two ways to tell their number, n units of d columns:

    by the trace    of the second moment M. It takes each row divided by its length, so that every usable unit adds
                    exactly 1 to the trace and the others add 0: usable n tr(M), deviation sqrt(factor d) z with z the
                    noise multiplier. It is post-processing of a release that is paid for already.
    by a count      for 1 % of mu^2, see `UsableUnits`: deviation 10 / mu, under both relations.

A fit counts where no such trace is released, or its noise would hide even whether any unit is usable; and it does not
where the noise of the count would hide that too. All of it follows from public numbers.

Source:
    Ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.planning.plan import FEW_USABLE, USABLE, Finding
from privopt.planning.row_length import LEAST_SHARE, SURE
from privopt.public import Public, Relation

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
