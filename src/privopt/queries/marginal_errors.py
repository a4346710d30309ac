"""How far a model is from held marginals or answers: scores by which the worst of them is chosen."""

from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, Scalar, query, static
from privopt.queries.held_marginal import held_workload
from privopt.queries.marginals import MarginalMeans
from privopt.queries.query_means import QueryMeans

_UNIT_ROUNDOFF = 2.0**-53

Vector = NDArray[Any]


@query
class CellErrors(FunctionOfMean):
    """|held - modelled| of every cell of every marginal, or of every query: larger is worse modelled.

    Attributes:
        mean: from `hold_mean` of `MarginalMeans` or `QueryMeans`.
        modelled: the model's answers, in the coordinates of the mean. Public.
    Privacy:
        A unit adds to every entry a number in [0, 1] (marginals) or [-1/2, 1/2] (queries), over n. Replacing it moves
        every entry by at most 1 / n, up or down; adding or removing it by at most 1 / n, and its distance from a number
        up or down by as much. So the scores move by a vector of range at most 2 / n under both relations.
        Rounding: entries are off by `mean.rounding` times 1 together on both data sets; a subtraction rounds by at most
        2^-53 (1 + |modelled|) 2 on each. Twice the sum of these for a range.
    Source:
        Hardt, Ligett, McSherry 2012, Figure 1, step 1 (the scores; the range is theirs as well).
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    modelled: Float[Any, " size"]

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 / n, and rounding."""
        del public, sampling
        held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        return 2.0 / self.mean.public.n + 2.0 * (
            self.mean.rounding + 4.0 * _UNIT_ROUNDOFF * (2.0 + _peak(self.modelled))
        )

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a cell or a query."""
        del public
        return self.mean.shape

    def value(self, private_mean: Vector) -> Vector:
        """See the class."""
        held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        return np.abs(private_mean - _as_modelled(self.modelled, private_mean.shape))


@query
class SignedErrors(FunctionOfMean):
    """held - modelled of every cell or query, then its negative: the signed errors, centred.

    Centred means that a marginal's cells are taken less half of their sum, the answers of queries as they are: both
    hold `q - 1/2` in place of `q`. So the model must have the total weight of the data, or say what it takes it to be.

    Attributes:
        mean: from `hold_mean` of `MarginalMeans` or `QueryMeans`.
        modelled: the model's answers, in the coordinates of the mean; of the marginals as they are, not centred.
    Privacy:
        A unit adds to every centred entry a number in [-1/2, 1/2], over n: in a marginal it adds v_j - sum(v) / 2 with
        v >= 0 and sum(v) <= 1. Adding or removing it moves the vector of both signs by a range of at most 1 / n,
        replacing it by at most 2 / n: factor / n.
        Rounding: with r = `mean.rounding`, an entry and half of a marginal's sum are off by at most 3 r / 2 together on
        both data sets. A marginal's sum of K terms of total size s <= 2 + sum |modelled| rounds by at most K 2^-53 s,
        an entry by at most 4 2^-53 (2 + s) more, on each data set. Both signs have the same error but for the sign, so
        twice all this for a range.
    Source:
        The queries of Gonzalez, Guzman, Paquette 2024, Theorem 1.1, closed under negation; centring is ours.
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    modelled: Float[Any, " size"]

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / n, and rounding."""
        del public, sampling
        workload = held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        terms = max(workload.cells, default=1)
        size = 2.0 + max(_sizes(workload, self.modelled))
        rounding = 1.5 * self.mean.rounding + 2.0 * (terms + 8.0) * _UNIT_ROUNDOFF * (2.0 + size)
        return self.mean.public.relation.factor / self.mean.public.n + 2.0 * rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """Two scores a cell or a query: those of `held - modelled` first."""
        del public
        return (2 * self.mean.shape[0],)

    def value(self, private_mean: Vector) -> Vector:
        """See the class."""
        workload = held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        private_errors = private_mean - _as_modelled(self.modelled, private_mean.shape)
        for place in workload.slices:
            private_errors[place] -= 0.5 * np.sum(private_errors[place])
        return np.concatenate([private_errors, -private_errors])


@query
class MarginalDistances(FunctionOfMean):
    """n |held - modelled|_1 of some marginals, less a public penalty each: larger is worse modelled, in units.

    Attributes:
        mean: from `hold_mean(MarginalMeans(...))`.
        modelled: the model's cells of all marginals, in the coordinates of the mean. Public.
        penalties: (candidates,) what is taken off each distance, in units: what noise alone would cause, say.
        candidates: which of the workload's column sets are scored; None for all.
    Privacy:
        A unit adds to a marginal a vector of l1 norm at most 1, over n. Replacing it moves n times a distance by at
        most 2, adding or removing it by at most 1, up or down: factor. So the scores move by a range of at most
        2 factor, whichever marginals are scored.
        Rounding: the sum of a marginal's K distances is off by at most n r, r = `mean.rounding`, on both data sets
        together, and rounds by at most (K + 8) 2^-53 n s more on each, s <= 2 + sum |modelled|; the penalty's
        subtraction by 2^-53 (n s + |penalty|). Twice all this for a range.
    Source:
        McKenna, Mullins, Sheldon, Miklau 2022 (AIM), section 4.2 (the score).
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    modelled: Float[Any, " size"]
    penalties: Float[Any, " candidates"]
    candidates: tuple[int, ...] | None = field(default=None, metadata={"static": True})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 factor, and rounding."""
        del public, sampling
        workload = held_workload(self.name, self.mean, MarginalMeans)
        units = self.mean.public
        size = units.n * (2.0 + max(_sizes(workload, self.modelled)))
        largest = (max(workload.cells) + 10.0) * size + _peak(self.penalties)
        rounding = units.n * self.mean.rounding + 2.0 * _UNIT_ROUNDOFF * largest
        return 2.0 * units.relation.factor + 2.0 * rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a candidate."""
        del public
        return (len(self._places()),)

    def value(self, private_mean: Vector) -> Vector:
        """See the class."""
        workload = held_workload(self.name, self.mean, MarginalMeans)
        private_errors = np.abs(private_mean - _as_modelled(self.modelled, private_mean.shape))
        private_distances = np.array([np.sum(private_errors[workload.slices[k]]) for k in self._places()])
        return private_distances * self.mean.public.n - np.asarray(self.penalties, np.float64)

    def _places(self) -> tuple[int, ...]:
        workload = held_workload(self.name, self.mean, MarginalMeans)
        return tuple(range(len(workload.sets))) if self.candidates is None else self.candidates


@query
class MeanDistance(FunctionOfMean):
    """The mean over marginals of |held - modelled|_1 / 2, or over queries of |held - modelled|: a number.

    Attributes:
        mean: from `hold_mean` of `MarginalMeans` or `QueryMeans`.
        modelled: the model's answers, in the coordinates of the mean. Public.
    Privacy:
        A unit adds to a marginal a vector of l1 norm at most 1, over n, and to the centred answer of a query a number
        of at most 1/2 in size: adding or removing it moves each term by at most 1 / (2 n), replacing it by at most
        1 / n, and so it moves their mean: factor / (2 n).
        Rounding: with r = `mean.rounding`, a marginal's distance is off by at most r on both data sets together, an
        answer by r / 2. Sums of K terms of total size s <= 2 + sum |modelled| round by at most (K + 8) 2^-53 s on
        each data set, the sum over m terms and the division by (m + 2) 2^-53 s.
    """

    mean: Any = static()
    modelled: Float[Any, " size"]

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / (2 n), and rounding."""
        del public, sampling
        workload = held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        terms = max(workload.cells, default=1) + (len(workload.sets) or workload.size) + 16.0
        rounding = self.mean.rounding + 2.0 * terms * _UNIT_ROUNDOFF * (
            2.0 + max(_sizes(workload, self.modelled))
        )
        return 0.5 * self.mean.public.relation.factor / self.mean.public.n + rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        workload = held_workload(self.name, self.mean, MarginalMeans, QueryMeans)
        private_errors = np.abs(private_mean - _as_modelled(self.modelled, private_mean.shape))
        if workload.queries is not None:
            return np.mean(private_errors)
        return np.mean([0.5 * np.sum(private_errors[place]) for place in workload.slices])


def _as_modelled(modelled: Any, shape: tuple[int, ...]) -> Vector:
    """The model's answers as float64.

    Raises:
        ValueError: there are not as many as are held; the sizes are public.
    """
    answers = np.asarray(modelled, np.float64)
    if answers.shape != shape:
        raise ValueError(
            f"modelled must have shape {shape}, one answer for each that is held, got {answers.shape}."
        )
    return answers


def _peak(values: Any) -> float:
    """The largest entry of a public vector in size."""
    return float(np.max(np.abs(np.asarray(values, np.float64)), initial=0.0))


def _sizes(workload: Workload, modelled: Any) -> list[float]:
    """The l1 norm of the model's answers in each marginal; of queries, the largest answer."""
    answers = np.abs(np.asarray(modelled, np.float64))
    return [float(np.sum(answers[place])) for place in workload.slices] or [
        float(np.max(answers, initial=0.0))
    ]
