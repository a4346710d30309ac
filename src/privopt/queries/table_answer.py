"""The answer to one query on the cells of a held marginal, and how far a model's answer is from it."""

from dataclasses import field
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, Scalar, query, static
from privopt.queries.held_marginal import held_workload
from privopt.queries.marginals import MarginalMeans

_UNIT_ROUNDOFF = 2.0**-53

Vector = NDArray[Any]


@query
class TableAnswer(FunctionOfMean):
    """sum over the cells z of a held marginal of h(z) q(z), a number: the answer to the query q.

    Attributes:
        mean: from `hold_mean(MarginalMeans(...))`, with the joint table among its sets.
        values: q(z) for each cell; moved into [0, 1], and 0 where it is no number. Public.
        place: which of the workload's column sets.
    Privacy:
        A unit adds a number in [0, 1] over n: a convex combination of values times a weight of at most 1, or 0. Adding,
        removing or replacing it moves the answer by at most 1 / n.
        Rounding: h is off by `mean.rounding` in the l1 norm, on both data sets together, and so is the answer. The
        product of K terms of sum at most 2 rounds by at most 2 (K + 2) 2^-53 on each.
    """

    mean: Any = static()
    values: Float[Any, " cells"]
    place: int = field(default=0, metadata={"static": True})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / n, and rounding."""
        del public, sampling
        cells = held_workload(self.name, self.mean, MarginalMeans).cells[self.place]
        return 1.0 / self.mean.public.n + self.mean.rounding + 4.0 * (cells + 2) * _UNIT_ROUNDOFF

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        workload = held_workload(self.name, self.mean, MarginalMeans)
        values = np.clip(np.nan_to_num(np.asarray(self.values, np.float64), nan=0.0), 0.0, 1.0).reshape(-1)
        return private_mean[workload.slices[self.place]] @ values


@query
class TableAnswerError(TableAnswer):
    """|answer - modelled|, a number: what private multiplicative weights compare with their threshold.

    Attributes:
        mean, values, place: see `TableAnswer`.
        modelled: the model's answer. Public.
    Privacy:
        The distance of a number from a fixed one moves by no more than the number: 1 / n. The subtraction rounds by at
        most 2^-53 (2 + |modelled|) on each data set.
    Source:
        Hardt and Rothblum 2010, Figure 1.
    """

    modelled: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / n, and rounding."""
        more = 2.0 * _UNIT_ROUNDOFF * (2.0 + abs(float(self.modelled)))
        return TableAnswer.sensitivity(self, public, sampling) + more

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        return abs(TableAnswer.value(self, private_mean) - float(self.modelled))
