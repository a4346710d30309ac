"""How far one pass of gradient steps over a unit's own records moves a public point."""

from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from privopt.problems.constraints import Constraint, Unconstrained
from privopt.problems.losses import Loss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Regulariser
from privopt.public import Public
from privopt.queries.base import Scalar, UnitSum, clip_to_ball, query, static
from privopt.queries.gradient import record_gradient

Returns = Literal["last", "average"]


@query
class LocalPass(UnitSum):
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

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

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
