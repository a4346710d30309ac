"""The marginals of a coded table: what share of the units stands in each cell of some sets of columns."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.problems.workload import Workload, strides_of
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, acute_factor, query, static


@query
class MarginalMeans(RecordSum):
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

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """sqrt(k) / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)

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
