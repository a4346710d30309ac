"""The mean payoffs of a bilinear game, and each player's gradient as a function of them."""

from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.saddle import BilinearGame, Who
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, RecordSum, Scalar, query, static

_UNIT_ROUNDOFF = 2.0**-53


@query
class PayoffMeans(RecordSum):
    """The mean over units of `u v^T`, and of p and q: the payoff matrix of a bilinear game, row by row, then offsets.

    With offsets all three are halved, as in the payoff. Every entry of u, v, p and q is moved into the game's bounds,
    so that no contribution is clipped.

    Attributes:
        game: sizes and bounds.
    Privacy:
        With every entry at most b, |u v^T|_F = |u| |v| <= b^2 sqrt(rows columns), and the offsets add b^2 (rows +
        columns) to the squared norm: that is `radius`, to which the engine holds every unit all the same.
        To hold it costs nothing; each player's gradient argues from the entries, see `PayoffGradient`.
    """

    game: BilinearGame = static()

    def radius(self) -> Scalar:
        """The l2 norm of the largest contribution, a margin for the engine's clip included."""
        return self.game.payoff_radius * (1.0 + 1e-8)

    def shape(self, public: Public) -> tuple[int, ...]:
        """Rows times columns, and both players' offsets."""
        del public
        return (payoff_size(self.game),)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's payoffs."""
        del private_target
        private_u, private_v, private_p, private_q = self.game.parts(private_features)
        private_matrix = jnp.ravel(jnp.outer(private_u, private_v))
        if not self.game.offsets:
            return private_matrix
        return 0.5 * jnp.concatenate([private_matrix, private_p, private_q])


def payoff_size(game: BilinearGame) -> int:
    """How many numbers `PayoffMeans` has."""
    return game.rows * game.columns + (game.rows + game.columns if game.offsets else 0)


def unpacked(
    game: BilinearGame, values: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The matrix (rows, columns) and the offsets of x and y; zero where there are none."""
    flat = np.asarray(values, np.float64)
    cells = game.rows * game.columns
    matrix = flat[:cells].reshape(game.rows, game.columns)
    if not game.offsets:
        return matrix, np.zeros(game.rows), np.zeros(game.columns)
    return matrix, flat[cells : cells + game.rows], flat[cells + game.rows :]


def held_game(mean: Any, name: str) -> BilinearGame:
    """The game whose payoffs are held, for a query that rests on how they are made.

    Args:
        mean: a handle.
        name: of the query.
    Raises:
        TypeError: something else is held.
    """
    if type(mean.query) is not PayoffMeans:
        raise TypeError(
            f"{name} is a function of PayoffMeans, and {mean.query.name} is held: its sensitivity rests on how payoffs "
            "are made."
        )
    if type(mean.query.game) is not BilinearGame:
        raise TypeError(
            f"{name} rests on the half-range of a BilinearGame, which no clip enforces, and "
            f"{type(mean.query.game).__name__} may state another: ask for PlayerGradient, which clips."
        )
    return mean.query.game


@query
class PayoffGradient(FunctionOfMean):
    """One player's gradient of a bilinear game, from its held mean payoffs: `A y + p`, or `q - A^T x`.

    Attributes:
        mean: from `hold_mean(PayoffMeans(...))`.
        who: whose gradient, "x" of f or "y" of -f.
        play: the other player's strategy, weights of sum 1.
        negated: whether the entries are turned, so that the best pure strategy has the largest.
    Privacy:
        Exactly, the value is, up to the sign, the mean over units of u (v . play) + p (or q - v (u . play)), halved
        with offsets. With weights of sum 1 the range of such a vector is at most 2 L, L the game's `half_range`:
        entries of u differ by at most high - low and |v . play| <= b. A user's is an average of such vectors with a
        weight of at most 1. So one unit moves the value by a vector of range at most factor 2 L / n.
        Rounding: an entry of the held mean is off by at most r = `mean.rounding` times the largest entry a, on both
        data sets together, so a convex combination and an offset by 2 r a, a range by 4 r a. The product with the play
        rounds an entry by at most (d + 2) 2^-53 a, d the length of the play, in each data set: 8 (d + 2) 2^-53 a
        for the range of the difference covers it. Weights whose sum is rounded scale all this by 1 + d 2^-52.
    """

    norm: ClassVar[str] = "range"

    mean: Any = static()
    who: Who = static()
    play: Float[Array, " vertices"]
    negated: bool = field(default=False, metadata={"static": True})

    @property
    def game(self) -> BilinearGame:
        """The held game."""
        return held_game(self.mean, self.name)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor 2 L / n, and rounding."""
        del public, sampling
        game, units = self.game, self.mean.public
        length = jnp.shape(self.play)[0]
        largest = max(game.largest_entry**2, game.largest_entry)
        exact = units.relation.factor * 2.0 * game.half_range / units.n
        rounding = largest * (4.0 * self.mean.rounding + 8.0 * (length + 2) * _UNIT_ROUNDOFF)
        total = float(np.sum(np.abs(np.asarray(self.play))))
        return (exact + rounding) * max(1.0, total) * (1.0 + length * 2.0**-51)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a pure strategy."""
        del public
        return (self.game.rows if self.who == "x" else self.game.columns,)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_matrix, private_p, private_q = unpacked(self.game, private_mean)
        play = np.asarray(self.play, np.float64)
        if self.who == "x":
            private_gradient = private_matrix @ play + private_p
        else:
            private_gradient = private_q - private_matrix.T @ play
        return -private_gradient if self.negated else private_gradient
