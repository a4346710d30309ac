"""One marginal, or one query's answer, of those that the curator holds: to be measured with noise."""

import math
from typing import Any, ClassVar

from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.workload import Workload
from privopt.public import Public, Relation
from privopt.queries.base import FunctionOfMean, MeanQuery, Scalar, query, static
from privopt.queries.marginals import MarginalMeans
from privopt.queries.query_means import QueryMeans

Vector = NDArray[Any]


def held_workload(name: str, mean: Any, *kinds: type[MeanQuery]) -> Workload:
    """The workload of a held mean; the sensitivity of what asks rests on how such a mean is made.

    Raises:
        TypeError: something else is held.
    """
    if type(mean.query) not in kinds:
        made = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{name} is a function of {made}, and {mean.query.name} is held: its sensitivity rests on what a record "
            "adds."
        )
    return mean.query.workload


@query
class HeldMarginal(FunctionOfMean):
    """The cells of one marginal of held `MarginalMeans`.

    Attributes:
        mean: from `hold_mean(MarginalMeans(...))`.
        place: which of the workload's column sets.
    Privacy:
        A unit adds to the marginal a vector v with entries of at least 0 and sum at most 1, over n: |v|_2 <= 1. Adding
        or removing it moves the marginal by at most 1 / n; replacing v by w by at most sqrt(2) / n, since |v - w|^2 =
        |v|^2 + |w|^2 - 2 <v, w> and <v, w> >= 0. How many other marginals are held does not matter.
        Rounding: vectors within 1 are summed, so `mean.rounding` times 1.
    """

    norm: ClassVar[str] = "l2"

    mean: Any = static()
    place: int = static()

    @property
    def name(self) -> str:
        """With the columns, so that the transcript says which marginal was released."""
        return f"{type(self).__name__}[{','.join(map(str, self.workload.sets[self.place]))}]"

    @property
    def about(self) -> Workload:
        """The marginal alone."""
        held = self.workload
        return Workload(held.levels, sets=(held.sets[self.place],))

    @property
    def workload(self) -> Workload:
        """What is held."""
        return held_workload(type(self).__name__, self.mean, MarginalMeans)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """sqrt(2) / n for replace-one, 1 / n for add-or-remove-one, and rounding."""
        del public, sampling
        held_workload(type(self).__name__, self.mean, MarginalMeans)
        units = self.mean.public
        length = math.sqrt(2.0) if units.relation is Relation.REPLACE_ONE else 1.0
        return length / units.n + self.mean.rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """The marginal's cells."""
        del public
        return (self.workload.cells[self.place],)

    def value(self, private_mean: Vector) -> Vector:
        """See the class."""
        return private_mean[self.workload.slices[self.place]]


@query
class HeldAnswer(FunctionOfMean):
    """The answer to one query of held `QueryMeans`: the mean of `q(z) - 1/2`, a number.

    Attributes:
        mean: from `hold_mean(QueryMeans(...))`.
        place: which query.
    Privacy:
        A unit adds a number of at most 1/2 in size, over n: adding or removing it moves the mean by at most 1 / (2 n),
        replacing it by at most 1 / n. Rounding: `mean.rounding` times 1/2.
    """

    mean: Any = static()
    place: int = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / (2 n), and rounding."""
        del public, sampling
        held_workload(self.name, self.mean, QueryMeans)
        return 0.5 * (self.mean.public.relation.factor / self.mean.public.n + self.mean.rounding)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        held_workload(self.name, self.mean, QueryMeans)
        return private_mean[self.place]
