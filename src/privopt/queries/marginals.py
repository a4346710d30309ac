"""The marginals of a coded table: what share of the units stands in each cell of some sets of columns."""

import math
from dataclasses import field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.problems.workload import Workload, strides_of
from privopt.public import Public, Relation
from privopt.queries.base import (
    AcuteMean,
    FunctionOfMean,
    MeanQuery,
    Number,
    RecordSum,
    Scalar,
    query,
    static,
)


@query
class MarginalMeans(AcuteMean, RecordSum):
    """Every cell of every marginal of a workload, one marginal after the other, as a mean over units.

    A record adds 1 to one cell of each marginal, a user the average of their records times its weight. Divided by the
    public n, so that cells add up to less than 1 where fewer units are there or users weigh less.

    Attributes:
        workload: which column sets.
    Privacy:
        A unit's vector v has entries of at least 0, which add up to at most 1 in each of the k marginals, so that
        |v|_2 <= sqrt(k). Adding or removing a unit moves the sum by at most that. Replacing v by w moves it by at most
        sqrt(2 k): |v - w|^2 = |v|^2 + |w|^2 - 2 <v, w>, and <v, w> >= 0. Both are attained. There is nothing to clip:
        whatever stands in a row, its codes name cells (`data.units`), and an average of such vectors is one.
        Rounding: the engine counts records as integers, exactly; a user's shares are rounded down to a grid on which
        their sum is exact, see `engine.in_process`. The bound that the curator adds covers the division by n, and the
        plain path.
    """

    sensitivity_argument: ClassVar[str] = (
        "Two vectors without negative entries make no obtuse angle: replacing one by another moves the sum by sqrt(2) "
        "radii."
    )

    workload: Workload = static()

    @property
    def about(self) -> Workload:
        """Its own workload, which a synthesizer may choose."""
        return self.workload

    def require_rows(self, public: Public) -> None:
        """Refuse a table with other columns."""
        _require_sets(self.workload)
        public.require_codes(self.name, self.workload.levels)

    def radius(self) -> Scalar:
        """sqrt(k)."""
        return math.sqrt(len(self.workload.sets))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The cells of all marginals."""
        del public
        return (self.workload.size,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """1 in one cell of each marginal."""
        del private_target
        private_codes = private_features.astype(jnp.int64)
        private_cells = jnp.asarray(_strides(self.workload)) @ private_codes
        first = jnp.asarray([place.start for place in self.workload.slices])
        return jnp.zeros(self.workload.size).at[first + private_cells].add(1.0)

    def clip_unit(self, private_vector: Array) -> Array:
        """As it is, see the class; the engine scales what is too long all the same."""
        return private_vector


def _require_sets(workload: Workload) -> None:
    if not workload.sets:
        raise ValueError(
            "MarginalMeans counts column sets, and this workload has queries: ask for QueryMeans."
        )


def _strides(workload: Workload) -> NDArray[np.int64]:
    """(sets, columns) by what a row's codes are multiplied in the index of its cell."""
    made = np.zeros((len(workload.sets), len(workload.levels)), np.int64)
    for row, columns in zip(made, workload.sets, strict=True):
        row[list(columns)] = strides_of(workload.levels, columns)
    return made


# ---- The answers to queries on the cells of a small joint table --------------------------------------------


@query
class QueryMeans(RecordSum):
    """Mean over units of `q_j(z) - 1/2`, z the cell of a record in the joint table: a number for each query.

    Attributes:
        workload: the queries, with values in [0, 1].
    Privacy:
        A record's vector has the norm `|q(z) - 1/2|_2`, at most the radius, which is the largest over all N cells; so
        has an average of such vectors times a weight in [0, 1]. Centred at 1/2, vectors of binary queries have the norm
        sqrt(m) / 2, half of the bound without: replacing a record costs the same, adding or removing one half of it.
        Rounding: the engine counts cells exactly (see `engine.in_process`) and adds their queries' values, at most 2048
        cells in a block and a block sum for each: fewer roundings than the bound that the curator adds supposes.
    """

    workload: Workload = static()

    def require_rows(self, public: Public) -> None:
        """Refuse a table with other columns."""
        if self.workload.queries is None:
            raise ValueError(
                "QueryMeans answers queries, and this workload has column sets: ask for MarginalMeans."
            )
        public.require_codes(self.name, self.workload.levels)

    def radius(self) -> Scalar:
        """The largest `|q(z) - 1/2|_2`."""
        return longest_answer(self.workload)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One number a query."""
        del public
        return (self.workload.size,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The centred values of all queries on the record's cell."""
        del private_target
        strides = jnp.asarray(strides_of(self.workload.levels, range(len(self.workload.levels))))
        private_cell = jnp.sum(strides * private_features.astype(jnp.int64))
        return jnp.asarray(self.workload.queries)[:, private_cell] - 0.5


def centred_answers(workload: Workload, joint: Any) -> NDArray[np.float64]:
    """What `QueryMeans` would be on a joint table of weights: `sum_z p(z) (q_j(z) - 1/2)`."""
    table = np.asarray(joint, np.float64)
    return workload.answers(table) - 0.5 * np.sum(table)


@lru_cache(maxsize=8)
def longest_answer(workload: Workload) -> float:
    """The largest norm of `q(z) - 1/2` over all cells, rounded up."""
    squares = np.zeros(workload.universe)
    for values in workload.queries:
        squares += (values - 0.5) ** 2
    return float(np.sqrt(np.max(squares))) * (1.0 + 1e-9)


# ---- How far a model is from held marginals or answers: scores by which the worst of them is chosen --------


_UNIT_ROUNDOFF = 2.0**-53

Vector = NDArray[Any]


@query
class _OfHeld(FunctionOfMean):
    """A function of held marginals or answers: its sensitivity rests on how such a mean is made."""

    kinds: ClassVar[tuple[type[MeanQuery], ...]] = (MarginalMeans, QueryMeans)

    mean: Any = static()

    def require_held(self) -> Workload:
        """The workload of the held mean.

        Raises:
            TypeError: something else is held.
        """
        if type(self.mean.query) not in self.kinds:
            made = " or ".join(kind.__name__ for kind in self.kinds)
            raise TypeError(
                f"{type(self).__name__} is a function of {made}, and {self.mean.query.name} is held: its sensitivity "
                "rests on what a record adds."
            )
        return self.mean.query.workload


@query
class _OfModel(_OfHeld):
    """How far a model's answers are from what is held."""

    modelled: Float[Any, " size"]

    def errors(self, private_mean: Vector) -> Vector:
        """held - modelled.

        Raises:
            ValueError: the model has not as many answers as are held; the sizes are public.
        """
        self.require_held()
        answers = np.asarray(self.modelled, np.float64)
        if answers.shape != private_mean.shape:
            raise ValueError(
                f"modelled must have shape {private_mean.shape}, one answer for each that is held, got {answers.shape}."
            )
        return private_mean - answers


@query
class CellErrors(_OfModel):
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

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 / n, and rounding."""
        del public, sampling
        self.require_held()
        return 2.0 / self.mean.public.n + 2.0 * (
            self.mean.rounding + 4.0 * _UNIT_ROUNDOFF * (2.0 + _peak(self.modelled))
        )

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a cell or a query."""
        del public
        return self.mean.shape

    def value(self, private_mean: Vector) -> Vector:
        """See the class."""
        return np.abs(self.errors(private_mean))


@query
class SignedErrors(_OfModel):
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

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / n, and rounding."""
        del public, sampling
        workload = self.require_held()
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
        workload = self.require_held()
        private_errors = self.errors(private_mean)
        for place in workload.slices:
            private_errors[place] -= 0.5 * np.sum(private_errors[place])
        return np.concatenate([private_errors, -private_errors])


@query
class MarginalDistances(_OfModel):
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
    kinds = (MarginalMeans,)

    penalties: Float[Any, " candidates"]
    candidates: tuple[int, ...] | None = field(default=None, metadata={"static": True})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 factor, and rounding."""
        del public, sampling
        workload = self.require_held()
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
        workload = self.require_held()
        private_errors = np.abs(self.errors(private_mean))
        private_distances = np.array([np.sum(private_errors[workload.slices[k]]) for k in self._places()])
        return private_distances * self.mean.public.n - np.asarray(self.penalties, np.float64)

    def _places(self) -> tuple[int, ...]:
        workload = self.require_held()
        return tuple(range(len(workload.sets))) if self.candidates is None else self.candidates


@query
class MeanDistance(Number, _OfModel):
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

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / (2 n), and rounding."""
        del public, sampling
        workload = self.require_held()
        terms = max(workload.cells, default=1) + (len(workload.sets) or workload.size) + 16.0
        rounding = self.mean.rounding + 2.0 * terms * _UNIT_ROUNDOFF * (
            2.0 + max(_sizes(workload, self.modelled))
        )
        return 0.5 * self.mean.public.relation.factor / self.mean.public.n + rounding

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        workload = self.require_held()
        private_errors = np.abs(self.errors(private_mean))
        if workload.queries is not None:
            return np.mean(private_errors)
        return np.mean([0.5 * np.sum(private_errors[place]) for place in workload.slices])


def _peak(values: Any) -> float:
    """The largest entry of a public vector in size."""
    return float(np.max(np.abs(np.asarray(values, np.float64)), initial=0.0))


def _sizes(workload: Workload, modelled: Any) -> list[float]:
    """The l1 norm of the model's answers in each marginal; of queries, the largest answer."""
    answers = np.abs(np.asarray(modelled, np.float64))
    return [float(np.sum(answers[place])) for place in workload.slices] or [
        float(np.max(answers, initial=0.0))
    ]


# ---- One marginal, or one query's answer, of those that the curator holds: to be measured with noise -------


@query
class HeldMarginal(_OfHeld):
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

    kinds = (MarginalMeans,)

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
        return self.require_held()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """sqrt(2) / n for replace-one, 1 / n for add-or-remove-one, and rounding."""
        del public, sampling
        self.require_held()
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
class HeldAnswer(Number, _OfHeld):
    """The answer to one query of held `QueryMeans`: the mean of `q(z) - 1/2`, a number.

    Attributes:
        mean: from `hold_mean(QueryMeans(...))`.
        place: which query.
    Privacy:
        A unit adds a number of at most 1/2 in size, over n: adding or removing it moves the mean by at most 1 / (2 n),
        replacing it by at most 1 / n. Rounding: `mean.rounding` times 1/2.
    """

    kinds = (QueryMeans,)

    place: int = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor / (2 n), and rounding."""
        del public, sampling
        self.require_held()
        return 0.5 * (self.mean.public.relation.factor / self.mean.public.n + self.mean.rounding)

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        self.require_held()
        return private_mean[self.place]


# ---- The answer to one query on the cells of a held marginal, and how far a model's answer is from it ------


@query
class TableAnswer(Number, _OfHeld):
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

    kinds = (MarginalMeans,)

    values: Float[Any, " cells"]
    place: int = field(default=0, metadata={"static": True})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / n, and rounding."""
        del public, sampling
        cells = self.require_held().cells[self.place]
        return 1.0 / self.mean.public.n + self.mean.rounding + 4.0 * (cells + 2) * _UNIT_ROUNDOFF

    def value(self, private_mean: Vector) -> Any:
        """See the class."""
        workload = self.require_held()
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
