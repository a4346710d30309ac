"""Outlier removal as in the paper, with exact constants: random acceptance of points with many others nearby.

K points, K even, one radius tau; s = (1 / K) #{(j, i): |y_j - y_i| <= tau}, h_j = #{i: |y_j - y_i| <= 2 tau}, both with
i = j; point j is accepted with probability p_j = clip((h_j - K / 2) / (K / 6), 0, 1); the mean is that of the accepted.

Source:
    Lowy, Liu, Asi 2024, Algorithm 1, lines 10 to 22. Ours: the constants, the factor 4 where the text
    says 1, and K even.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from scipy import stats

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import Scalar, StatisticOfHeld, query, static
from privopt.queries.held_friends import MARGIN, mean_around_one, neighbours, require_replaced, within_reach

_SCORE_MARGIN = 10 * MARGIN  # so that two neighbours of one point count as neighbours at twice the radius


def even(points: int) -> int:
    """How many of the points are used: of an odd number, all but the one at the last place, which is public.

    Two accepted points share a neighbour where h + h' > K + 1. With K odd, h = (K + 1) / 2 gives K + 1 exactly.
    """
    return points - points % 2


@query
class ConcentrationScore(StatisticOfHeld):
    """s, the average number of points within tau of a point.

    Attributes:
        held: the points; replaced ones only.
        origin: v0, (k,), public or released.
        within: tau.
    Privacy:
        Replacing a point changes 2 (K - 1) ordered pairs: sensitivity 2 (K - 1) / K, attained when it leaves a cluster.
    """

    held: Any = static()
    origin: Float[Array, " k"]
    within: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 (K - 1) / K."""
        del public, sampling
        require_replaced(self.held)
        count = even(self.held.points)
        return 2.0 * (count - 1) / count * (1.0 + 1e-12)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        private_points = within_reach(private_vectors[: even(len(private_vectors))], self.origin, self.within)
        return jnp.mean(neighbours(private_points, self.within * (1.0 - _SCORE_MARGIN)))


@query
class AcceptedMean(StatisticOfHeld):
    """The mean of the accepted points minus v0; zero if none is.

    Attributes:
        held: the points; replaced ones only.
        origin: v0, (k,), public or released.
        within: tau.
        lottery: (K,), independent uniform numbers, drawn without looking at the points; they may be public.
        failure: zeta, the probability that the stated sensitivity does not hold; somebody must have paid for it.
    Privacy:
        *Diameter.* Two points with h > K / 2, of either data set, have at least h - 1 and h' - 1 neighbours among the
        K - 1 points that both data sets have, K even makes h + h' >= K + 2, so they share one and are within 4 tau.
        *Size.* s >= 2 K / 3 makes some point have 2 K / 3 neighbours within tau, which are mutually within 2 tau and
        accepted with probability 1: |S| >= 2 K / 3.
        *S' is not empty*, K >= 4: some point keeps p' = 1. Let t >= 2 K / 3 be the most points within tau of one. If t
        >= 2 K / 3 + 1, those of them that stay have h' >= t - 1 >= 2 K / 3. Else r = t - 2 K / 3 is 0, 1 / 3 or 2 / 3
        and the counts within tau fall short of t by r K in total, s being their average. So some j != k has t
        (otherwise they fall short by K - 1 at least), and shares a neighbour with every point of more than K - t. The
        others fall short by 2 t - K = K / 3 + 2 r each: fewer than 3 r, so h_j >= K - 1, and h_j = K unless r = 2 / 3.
        Then h_j' >= h_j - 1 >= 2 K / 3 for every even K >= 4: r = 2 / 3 has K = 8 at least. K = 2 is refused.
        *Coupling.* With the same lottery, decisions about j != k differ with probability |p_j - p_j'| <= 6 / K each,
        independently: their number X is at most the (1 - zeta)-quantile of Poisson(6 (K - 1) / K), by Hoeffding
        1956 and Anderson, Samuels 1967 from the mean plus 1 on, except with probability zeta. Then

            |S| (mean - mean') = sum_(j != k) (1_S - 1_S')(j) (y_j - mean')
                                 + 1_S(k) (y_k - mean') - 1_S'(k) (y_k' - mean'),

        so that mean - mean'

        is at most 4 tau (X + 2) / (2 K / 3) = 6 tau (X + 2) / K long, **if s or s' reaches 2 K / 3**: the test before
        it lets any other pair pass with probability delta_1 at most, which the test has paid for.
    """

    held: Any = static()
    origin: Float[Array, " k"]
    within: Scalar
    lottery: Float[Array, " K"]
    failure: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """6 tau (X + 2) / K.

        Raises:
            ValueError: there are fewer than four points.
        """
        del public, sampling
        require_replaced(self.held)
        if self.held.points < 4:
            raise ValueError(
                f"outlier removal needs at least 4 points, got {self.held.points}: of two points none may be accepted "
                "once one is replaced."
            )
        return self.within * accepted_shift(self.held.points, self.failure)

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.origin))

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        count = even(len(private_vectors))
        private_points = within_reach(private_vectors[:count], self.origin, self.within)
        private_accepted = self.lottery[:count] < acceptance(private_points, self.within)
        return mean_around_one(private_points, private_accepted.astype(jnp.float64))


def acceptance(private_points: Float[Array, "p k"], within: Scalar) -> Float[Array, " p"]:
    """p_j of every point."""
    count = private_points.shape[0]
    private_counts = neighbours(private_points, 2.0 * within * (1.0 - MARGIN))
    return jnp.clip((private_counts - count / 2) / (count / 6), 0.0, 1.0)


def accepted_shift(points: int, failure: float) -> float:
    """6 (X + 2) / K: how far the mean moves, in radii, except with probability zeta = `failure`."""
    count = even(points)
    mean = 6.0 * (count - 1) / count
    differing = max(float(stats.poisson.isf(failure, mean)), mean + 1.0)
    return 6.0 * (differing + 2.0) / count
