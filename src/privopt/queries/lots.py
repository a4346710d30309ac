"""Means of contributions that also depend on chance: each unit draws a secret lot at every release.

A lot is the key of a `jax.random` generator. It makes no noise: no guarantee rests on it, see `LotSum`.
"""

import abc
from dataclasses import field, replace
from functools import partial
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.queries.base import MeanQuery, Query, Scalar

Lots = Any  # the data of a `jax.random` key, two numbers of 32 bits: secret
QueryType = TypeVar("QueryType", bound=Query)


def no_lots() -> Any:
    """A dataclass field for the lots of a `LotSum`, all alike until the curator fills them in."""
    return field(default_factory=partial(np.zeros, 2, np.uint32), repr=False)


class LotSum(MeanQuery):
    """A mean query whose contribution also depends on a random lot of the unit, drawn anew at every release.

    The class declares the field `lots: Lots = no_lots()`, which the curator fills in from the secret stream of units:
    each position gets the lot `fold_in(lots, position)`, whoever is there.

    Privacy:
        Lots are independent of the data and never recorded. Given any lots, `clip_unit` bounds a unit's contribution,
        and a unit's lot moves nobody else's: so the sensitivity is that of `MeanQuery`, for every value of the lots,
        under both relations (a unit that leaves takes its position along).
    """

    lots: Lots

    @abc.abstractmethod
    def record_contribution_of_lot(
        self, private_features: Float[Array, " d"], private_target: Scalar, lot: Array
    ) -> Array:
        """What one record contributes, before averaging within its unit and clipping.

        Args:
            private_features: its row.
            private_target: its target.
            lot: a key of `jax.random`, the same for all records of the unit.
        """

    def with_lots(self, lots: Lots) -> Self:
        """The same query with the lots of one release."""
        return replace(self, lots=lots)  # type: ignore[type-var]  # every query is a dataclass


def lots_of(lots: Lots, positions: Array) -> Array:
    """The lots of the units at some positions, as keys of `jax.random`; pure JAX."""
    key = jax.random.wrap_key_data(jnp.asarray(lots, jnp.uint32))
    return jax.vmap(partial(jax.random.fold_in, key))(positions)


def split_lot(lot: Array, count: int) -> Array:
    """Several lots out of one; pure JAX."""
    return jax.random.split(lot, count)


def any_lot() -> Array:
    """A lot to trace a contribution with."""
    return jax.random.key(0)


def drawn_lots(query: QueryType, generator: np.random.Generator) -> QueryType:
    """The query with fresh lots from the secret stream of units; one that has none as it is."""
    if not isinstance(query, LotSum):
        return query
    return query.with_lots(np.frombuffer(generator.bytes(8), np.uint32).copy())
