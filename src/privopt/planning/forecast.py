"""What a solver says of its result before the data are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from privopt.planning.plan import Bound, Finding


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What can be expected of a configured solver, from public numbers.

    Attributes:
        excess: predicted excess of the objective over its non-private optimum; None where no formula applies.
        excess_range: (low, high), between which the excess ends in most cases, as `meaning` says; None if not known.
        meaning: what the prediction is and how far to trust it, or why there is none.
        bound: a bound on the excess; None where there is none.
        indicators: by name, public numbers that say what can be hoped of this solver.
        notices: sentences that a user should read.
        measure: what `excess` is: that of an objective, or the "duality gap" of a game.
        for_convex: whether `excess` and `bound` are those of convex losses, and say nothing of others.
    """

    excess: float | None = None
    excess_range: tuple[float, float] | None = None
    meaning: str = ""
    bound: Bound | None = None
    indicators: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    notices: tuple[str, ...] = ()
    measure: str = "excess"
    for_convex: bool = True

    def noting(self, *notices: str) -> "Forecast":
        """The same with further notices."""
        return replace(self, notices=(*self.notices, *notices))
