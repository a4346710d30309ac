"""Means of contributions that also depend on chance: each unit draws a secret lot at every release.

A lot is the key of a `jax.random` generator. It makes no noise. What a guarantee needs of lots is in `LotSum`.
"""

import abc
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, Int, UInt32, jax, jnp
from privopt.problems.constraints import Constraint, Unconstrained
from privopt.problems.losses import Loss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Regulariser
from privopt.queries.base import (
    AtPoint,
    Clipped,
    MeanQuery,
    Query,
    Scalar,
    UnitSum,
    clip_to_ball,
    query,
    static,
)
from privopt.queries.slopes import record_gradient

Lots = Any  # UInt32[Array, "9"]: the key of a release, 256 secret bits, then the position that has no lot
QueryType = TypeVar("QueryType", bound=Query)

_GENERATOR = "threefry2x32"  # whatever JAX is set to otherwise
_KEY_WORDS = 8
_EVERYBODY = 2**32 - 1  # no position is left out
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _all_alike() -> NDArray[np.uint32]:
    return np.array([*[0] * _KEY_WORDS, _EVERYBODY], np.uint32)


def no_lots() -> Any:
    """A dataclass field for the lots of a `LotSum`: those of a key that is no secret, until the curator draws one."""
    return field(default_factory=_all_alike, repr=False)


class LotSum(MeanQuery):
    """A mean query whose contribution also depends on a random lot of the unit, drawn anew at every release.

    The class declares the field `lots: Lots = no_lots()`. At each release the curator puts 256 fresh bits of the secret
    stream of units there, a key K, and the unit at position p has the lot ChaCha20_K(p), whatever its records are.

    Privacy:
        Lots are chance that a run has besides its noise. Let them be independent of one another and of the data, with
        one law; that of ChaCha20 under a fresh secret key cannot be told from it, which is what exact noise rests on
        as well. K is never recorded or released.

        Let a unit leave that stands at position p, or wherever a user who is replaced stands. Those behind it move up,
        and have other lots than before, so for *one* K the value may move by as much as everybody's lots count. But
        take the lots of all releases of a run on the larger data set, and on the smaller one those of the same units,
        without the lots of the one who left. Which lots these are is decided without a look at lots, so they are again
        independent, with the same law: this is the run on the smaller data set. Given the lots, every unit that stays
        draws on both sides what it drew, and `clip_unit` bounds what the one unit contributes, for any lot. So, given
        the lots, each value moves by at most the sensitivity of `MeanQuery`, samples and blocks are drawn without
        regard to lots, and the releases are as hard to tell apart as is charged. Both runs are mixtures over the same
        law of lots, with the same bound for each of them: a test errs in the mixture as it does on average, and the
        trade-off curve of what is charged is convex. So the mixtures are as hard to tell apart, by every accounting.

        Needed are therefore a key that nobody outside learns and that no other release has, and a bound that holds for
        every lot. A lot itself may have few bits.
    Source:
        ChaCha20: RFC 8439, with the position as a counter of 64 bits.
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
    """The lots of the units at some positions, as keys of `jax.random`; pure JAX, in double precision."""
    words = jnp.asarray(lots, jnp.uint32)
    places = jnp.asarray(positions).astype(jnp.uint64)
    left_out = words[_KEY_WORDS].astype(jnp.uint64)
    behind = (places >= left_out).astype(jnp.uint64)
    blocks = chacha_blocks(words[:_KEY_WORDS], places + behind)
    return jax.vmap(partial(jax.random.wrap_key_data, impl=_GENERATOR))(blocks[:, :2])


def chacha_blocks(key: UInt32[Array, "8"], counters: Array) -> UInt32[Array, "c 16"]:
    """The blocks of ChaCha20 under a key, at some counters of 64 bits, for the nonce 0; pure JAX."""
    low, high = counters.astype(jnp.uint32), (counters >> 32).astype(jnp.uint32)
    none = jnp.zeros_like(low)
    fixed = [jnp.full_like(low, word) for word in (*_CONSTANTS, *key)]
    start = (*fixed, low, high, none, none)

    def double_round(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        words = list(state)
        for quarter in (*_COLUMNS, *_DIAGONALS):
            _mix(words, quarter)
        return tuple(words)

    ended = jax.lax.fori_loop(0, 10, double_round, start)
    return jnp.stack([one + other for one, other in zip(start, ended, strict=True)], axis=1)


def _mix(words: list[Array], quarter: Sequence[int]) -> None:
    """A quarter round, in place."""
    a, b, c, d = quarter
    for one, other, turned, places in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        words[one] = words[one] + words[other]
        mixed = words[turned] ^ words[one]
        words[turned] = (mixed << places) | (mixed >> (32 - places))


def without_lot(query: QueryType, position: int) -> QueryType:
    """The query for the same units less the one at a position, which takes its lot along: the others keep theirs."""
    if not isinstance(query, LotSum):
        return query
    lots = np.asarray(query.lots).copy()
    lots[_KEY_WORDS] = position
    return query.with_lots(lots)


def split_lot(lot: Array, count: int) -> Array:
    """Several lots out of one; pure JAX."""
    return jax.random.split(lot, count)


def any_lot() -> Array:
    """A lot to trace a contribution with."""
    return jax.random.key(0, impl=_GENERATOR)


def drawn_lots(query: QueryType, generator: np.random.Generator) -> QueryType:
    """The query with fresh lots from the secret stream of units; one that has none as it is."""
    if not isinstance(query, LotSum):
        return query
    lots = _all_alike()
    lots[:_KEY_WORDS] = np.frombuffer(generator.bytes(4 * _KEY_WORDS), "<u4")
    return query.with_lots(lots)


# ---- How far one pass of gradient steps over a unit's own records moves a public point ---------------------


Returns = Literal["last", "average"]


@query
class LocalPass(AtPoint, Clipped, UnitSum):
    """Mean over units of `y_j - at`, each clipped to the l2 norm `clip`; y_j is where a pass over its records ends.

        y <- P( prox_{eta r}( y - eta (grad f(y; record) + grad r(y)) ) )   for each record once, from y = at

    A unit without records, or whose pass ends at a point that is not finite, contributes 0: it stays at `at`.

    Attributes:
        loss: a generalised-linear or user-written loss.
        regulariser: r, part of every step.
        constraint: the set that every iterate is projected to; `at` is in it.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        step_size: eta.
        clip: C, the largest distance from `at` that counts; infinite only when privacy is switched off.
        reach: radius of a ball around `at` that every iterate is projected to; None for none.
        returns: y_j is the last iterate, or the average of the iterates after each step.
        shuffle: public seed of the order in which the records are visited, see `visiting_order`; None for the order in
            which they are stored.
    Privacy:
        l2 sensitivity factor * clip / N, see `MeanQuery`: a unit's y_j is a function of its own records alone, and
        nothing is asked of the loss, of the steps or of their number. There are as many steps as a unit may have
        records, a public number; those of absent records change nothing.
    Source:
        McMahan, Ramage, Talwar, Zhang 2018, Algorithm 1 (`UserUpdateFedAvg`, one local epoch, batches of one record);
        Lowy, Liu, Asi 2024, Algorithm 1, lines 6-10 (a pass over the records of a group).
    """

    loss: Loss = static()
    regulariser: Regulariser = field(default=NoRegulariser())
    constraint: Constraint = field(default=Unconstrained(), metadata={"static": True})
    at: Float[Array, " *shape"]
    step_size: Scalar
    clip: Scalar
    reach: Scalar | None = field(default=None)
    returns: Returns = field(default="last", metadata={"static": True})
    shuffle: Any = field(default=None)

    def unit_contribution(
        self,
        private_features: Float[Array, "M d"],
        private_targets: Float[Array, " M"],
        private_mask: Float[Array, " M"],
        private_weight: Scalar,
    ) -> Array:
        """Where the pass ends, seen from `at`."""
        del private_weight
        at = jnp.asarray(self.at, private_features.dtype)
        problem = Problem(self.loss, self.regulariser, self.constraint)
        length = private_features.shape[0]
        order = jnp.arange(length) if self.shuffle is None else visiting_order(self.shuffle, length)

        def visit(private_state: tuple[Array, Array], private_record: tuple[Array, Array, Array]) -> Any:
            private_params, private_total = private_state
            private_row, private_target, private_there = private_record
            private_slope = record_gradient(self.loss, private_params, private_row, private_target)
            private_next = problem.proximal_step(private_params, private_slope, self.step_size)
            if self.reach is not None:
                private_next = at + shortened(private_next - at, self.reach)
            private_kept = jnp.where(private_there > 0, private_next, private_params)
            private_share = jnp.where(private_there > 0, private_next - at, jnp.zeros_like(at))
            return (private_kept, private_total + private_share), None

        private_records = (private_features[order], private_targets[order], private_mask[order])
        (private_last, private_total), _ = jax.lax.scan(visit, (at, jnp.zeros_like(at)), private_records)
        if self.returns == "average":
            return private_total / jnp.maximum(jnp.sum(private_mask), 1.0)
        return private_last - at


def visiting_order(seed: Any, length: int) -> Int[Array, " length"]:
    """A public random order of the places 0..length-1 where a unit's records are stored.

    The same for every unit; a unit with fewer records passes over the places that it has not. So their order is random
    whatever the order of the data, and another in every pass if the seed is.

    Args:
        seed: a whole number, at least 0.
        length: how many records a unit may have.
    """
    words = jnp.arange(length).astype(jnp.uint32)
    salt = _mixed(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    return jnp.argsort(_mixed(words ^ salt))


def _mixed(word: Array) -> Array:
    """Words of 32 bits, scattered one to one; for an order that is public, not for noise.

    Source:
        Appleby 2011, MurmurHash3, the last step.
    """
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def shortened(private_move: Array, reach: Scalar) -> Array:
    """A move of at most the length `reach`; one that is not finite stays so, for the unit to count as zero."""
    private_short = clip_to_ball(private_move, reach)
    return jnp.where(jnp.all(jnp.isfinite(private_move)), private_short, private_move)
