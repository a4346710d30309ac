"""One player's gradient of a bilinear game from its held mean payoffs, for noise that is scaled by l2."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.saddle import BilinearGame, Who
from privopt.public import Public
from privopt.queries.base import FunctionOfMean, Scalar, query, static
from privopt.queries.payoff_means import held_game, unpacked

_UNIT_ROUNDOFF = 2.0**-53


@query
class PayoffSlope(FunctionOfMean):
    """`A y + p`, or `q - A^T x`, less its mean over the player's pure strategies.

    Attributes:
        mean: from `hold_mean(PayoffMeans(...))`.
        who: whose gradient, "x" of f or "y" of -f.
        play: the other player's strategy, weights of sum 1.
    Privacy:
        Exactly, the value is the mean over units of P w, w = u (v . play) + p (or q - v (u . play)), halved with
        offsets, and P the orthogonal projection that subtracts the mean of the m entries. The entries of w lie within
        L, the game's `half_range`, of some number c (see `PayoffGradient`), and P takes c away: |P w|_2 = |P (w - c)|_2
        <= |w - c|_2 <= sqrt(m) L. A user's is an average of such vectors with a weight of at most 1. So one unit moves
        the value by at most factor sqrt(m) L / n.
        Rounding: an entry of the held mean is off by at most r = `mean.rounding` times the largest entry a, on both
        data sets together, so a convex combination and an offset by 2 r a. In each data set the product with the play
        rounds an entry by at most (d + 2) 2^-53 a, d the length of the play, the mean of the entries by (m + 2) 2^-53
        a, and the difference by 2^-52 a. P is no longer than 1, so the l2 norm of all this is at most sqrt(m) times
        the largest entry of it. Weights whose sum is rounded scale it by 1 + d 2^-51.
    """

    mean: Any = static()
    who: Who = static()
    play: Float[Array, " vertices"]

    @property
    def game(self) -> BilinearGame:
        """The held game."""
        return held_game(self.mean, self.name)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor sqrt(m) L / n, and rounding."""
        del sampling
        game, units = self.game, self.mean.public
        (entries,), (length,) = self.shape(public), jnp.shape(self.play)
        largest = max(game.largest_entry**2, game.largest_entry)
        exact = units.relation.factor * game.half_range / units.n
        rounding = largest * (2.0 * self.mean.rounding + 4.0 * (length + entries + 8) * _UNIT_ROUNDOFF)
        total = float(np.sum(np.abs(np.asarray(self.play))))
        return entries**0.5 * (exact + rounding) * max(1.0, total) * (1.0 + length * 2.0**-51)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a pure strategy."""
        del public
        return (self.game.rows if self.who == "x" else self.game.columns,)

    def value(self, private_mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the class."""
        private_matrix, private_p, private_q = unpacked(self.game, private_mean)
        play = np.asarray(self.play, np.float64)
        if self.who == "x":
            private_slope = private_matrix @ play + private_p
        else:
            private_slope = private_q - private_matrix.T @ play
        return private_slope - np.mean(private_slope)
