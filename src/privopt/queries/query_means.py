"""The answers to queries on the cells of a small joint table."""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.problems.workload import Workload, strides_of
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static


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
