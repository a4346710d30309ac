"""How good several pairs of strategies are: the payoffs of a record for each, and their duality gaps as a function."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.saddle import Game
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, RecordSum, Scalar, query, static
from privopt.queries.player_gradient import centred_clip

_UNIT_ROUNDOFF = 2.0**-53


@query
class CandidatePayoffs(RecordSum):
    """The mean over units of the payoffs of candidate strategies against answers to them, a row a candidate.

    Row i holds f(x_i, y) for the answers y of the other player to x_i, then f(x, y_i) for the answers x to y_i. Where
    no answers are given they are all vertices, with f taken as linear in that player's strategy: by its gradient at
    (x_i, y_i), which is exact if it is.

    Attributes:
        game: the payoff of a record, and both players' sets.
        x, y: public candidates in coordinates, a pair a row.
        x_answers: public answers to y_i, (candidates, answers, p); with 0 answers, the vertices.
        y_answers: likewise to x_i.
        payoff_clip: B, the largest half-range of one unit's payoffs.
    Privacy:
        Sensitivity in the range. What a record adds to all of its payoffs alike changes no gap, so that the midrange of
        a unit's is subtracted, and each entry clipped to [-B, B], see `centred_clip`: the mean moves by a vector of
        range at most factor 2 B / N. Wrong linearity, or too small a B, costs utility alone.
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    x: Float[Array, "candidates p"]
    y: Float[Array, "candidates q"]
    x_answers: Float[Array, "candidates answers p"]
    y_answers: Float[Array, "candidates answers q"]
    payoff_clip: Scalar

    def radius(self) -> Scalar:
        """2 B, in range."""
        return 2.0 * jnp.asarray(self.payoff_clip, float)

    @property
    def answers_to_x(self) -> int:
        """How many payoffs of a row are those against answers to x_i; they come first."""
        return jnp.shape(self.y_answers)[1] or self.game.y.vertices.count

    def shape(self, public: Public) -> tuple[int, ...]:
        """A row a candidate."""
        del public
        against_y = jnp.shape(self.x_answers)[1] or self.game.x.vertices.count
        return jnp.shape(self.x)[0], self.answers_to_x + against_y

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's payoffs."""
        game = self.game

        def payoff(x: Array, y: Array) -> Array:
            return game.payoff(x, y, private_features, private_target)

        def row(x: Array, y: Array, to_y: Array, to_x: Array) -> Array:
            private_here = payoff(x, y)
            if len(to_x):
                private_first = jax.vmap(lambda answer: payoff(x, answer))(to_x)
            else:  # the slope of y is that of -f
                private_slope = game.slope("y", x, y, private_features, private_target)
                private_first = private_here - (game.y.vertices.along(private_slope) - private_slope @ y)
            if len(to_y):
                private_last = jax.vmap(lambda answer: payoff(answer, y))(to_y)
            else:
                private_slope = game.slope("x", x, y, private_features, private_target)
                private_last = private_here + (game.x.vertices.along(private_slope) - private_slope @ x)
            return jnp.concatenate([private_first, private_last])

        given = (self.x, self.y, self.x_answers, self.y_answers)
        return jax.vmap(row)(*(jnp.asarray(one) for one in given))

    def clip_unit(self, private_vector: Array) -> Array:
        """All payoffs of one unit, centred and clipped."""
        return centred_clip(private_vector, self.payoff_clip)


@query
class CandidateGaps(FunctionOfMean):
    """Minus the duality gap of every candidate, from held payoffs: scores of a choice, larger is better.

    Attributes:
        mean: from `hold_mean(CandidatePayoffs(...))`.
    Privacy:
        Let one unit move the held payoffs by entries within [s, s + R], R the stated range, rounding of the sum
        included. The largest of some entries moves by a number in [s, s + R], and so does the least of some; their
        difference by one in [-R, R], whatever s. So the gaps move by a vector of range at most 2 R: exactly
        factor 4 B / n, that is 8 B / n under replace-one and 4 B / n under add-or-remove-one.
        Rounding: entries are at most B, so a difference is at most 2 B and rounds by at most 2^-53 2 B, in each data
        set: 8 B 2^-53 in the range of their difference.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 4 (losses in [-B, B], sensitivity 16 B / n for a quarter of n).
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()

    @property
    def payoffs(self) -> CandidatePayoffs:
        """What is held.

        Raises:
            TypeError: it is something else.
        """
        if type(self.mean.query) is not CandidatePayoffs:
            raise TypeError(
                f"CandidateGaps is a function of CandidatePayoffs, and {self.mean.query.name} is held: its sensitivity "
                "rests on how payoffs are clipped."
            )
        return self.mean.query

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 R, and rounding."""
        del public, sampling
        return 2.0 * self.mean.sensitivity + 8.0 * _UNIT_ROUNDOFF * float(self.payoffs.payoff_clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One number a candidate."""
        return (self.payoffs.shape(public)[0],)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_payoffs = np.asarray(private_mean, np.float64)
        first = self.payoffs.answers_to_x
        return np.min(private_payoffs[:, first:], axis=1) - np.max(private_payoffs[:, :first], axis=1)
