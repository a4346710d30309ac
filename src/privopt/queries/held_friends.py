"""How concentrated held points are, and the mean of those with many others nearby: weights without randomness.

K points, one radius r; h_j = #{i: |y_j - y_i| <= r} counts j itself, h0 = (K + 1) / 2:

    a_j = max(0, (h_j - h0) / (K - h0)),   W = sum a_j,   mean = sum a_j y_j / W

Source:
    Lowy, Liu, Asi 2024, Algorithm 1, lines 10 to 22 (concentration score, outlier removal); Tsfadia, Cohen, Kaplan,
    Mansour, Stemmer 2022 (FriendlyCore). Weights in place of random acceptance, and every constant, are ours.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import Scalar, StatisticOfHeld, query, static
from privopt.queries.held_mean import clipped_offsets

MARGIN = 1e-4  # of a radius: what distances from a matrix product may be off by, and the rounding of a mean
_BLOCK = 2**22  # numbers of one block of the distance matrix
_ROUNDING = 1e-9  # of a sum of weights


@query
class FriendlyWeight(StatisticOfHeld):
    """W, the total weight of the points.

    Attributes:
        held: the points; replaced ones only.
        origin: v0, (k,), public or released: points far from it are moved nearer, see `within_reach`.
        within: r.
    Privacy:
        Replacing point k moves every other h_j by at most 1, hence a_j by at most 1 / (K - h0), in total by at most
        (K - 1) / (K - h0) = 2, and its own weight by at most 1: sensitivity 3, attained. h0 depends on K, so K must be
        fixed.
    """

    held: Any = static()
    origin: Float[Array, " k"]
    within: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """3."""
        del public, sampling
        require_replaced(self.held)
        return 3.0 * (1.0 + _ROUNDING)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        return jnp.sum(friendly_weights(within_reach(private_vectors, self.origin, self.within), self.within))


@query
class FriendlyMean(StatisticOfHeld):
    """The weighted mean of the points minus v0; zero if all weights are.

    Attributes:
        held: the points; replaced ones only.
        origin: v0, (k,).
        within: r.
        least_weight: W_min.
    Privacy:
        Two points of positive weight, of either data set, have more than K + 1 neighbours together, hence a common
        one among the K - 1 that both data sets have, and are within 2 r. So |mean - mean'| <= 2 r (sum |a_j - a_j'| +
        a_k + a_k') / max(W, W') over j != k: the bracket is at most 3 if one of a_k, a_k' is 0, and at most 2 if both
        are positive. This is 6 r / max(W, W').
        It is at most `6 r / least_weight` **if W or W' reaches least_weight**: the test before it lets any other pair
        of data sets pass with probability delta_1 at most, which the test has paid for.
        Rounding: neighbours are told apart at r (1 - 1e-4), so that a neighbour found is within r. The mean is taken
        around one of the weighted points, so that it is off by at most (K + 1e5 sqrt(k)) 2^-52 r, which half of that
        margin covers up to K = 1e5.
    """

    held: Any = static()
    origin: Float[Array, " k"]
    within: Scalar
    least_weight: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """6 r / W_min."""
        del public, sampling
        require_replaced(self.held)
        return 6.0 * self.within / self.least_weight

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.origin))

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        private_points = within_reach(private_vectors, self.origin, self.within)
        return mean_around_one(private_points, friendly_weights(private_points, self.within))


def require_replaced(held: Any) -> None:
    """Refuse points that come and go, and those of a secret sample, whose number is private.

    Raises:
        ValueError: they do, or they are.
    """
    if not held.replaced:
        raise ValueError(
            "this statistic depends on the number of points: use replace-one, which fixes it, or groups of units."
        )
    if held.sampled:
        raise ValueError(
            "this statistic depends on the number of points, which is private in a secret sample: hold points without "
            "`sample`."
        )


def within_reach(
    private_vectors: Float[Array, "p k"], origin: Float[Array, " k"], within: Scalar
) -> Float[Array, "p k"]:
    """y_j - v0, moved to a distance of 1e5 r, or 4.7e5 r / sqrt(k + 3), where further.

    Privacy:
        A squared distance d^2 = |y|^2 + |y'|^2 - 2 <y, y'> is off by at most 4 gamma_(k+3) times the square of that
        distance, which is 1e-4 r^2: less than the 2e-4 r^2 between r^2 and (r (1 - 1e-4))^2.
    """
    reach = min(1e5, math.sqrt(MARGIN * 2.0**53 / (4.0 * (private_vectors.shape[1] + 3))))
    return clipped_offsets(private_vectors, origin, reach * within)


def friendly_weights(private_points: Float[Array, "p k"], within: Scalar) -> Float[Array, " p"]:
    """a_j of every point."""
    count = private_points.shape[0]
    middle = (count + 1) / 2.0
    private_counts = neighbours(private_points, within * (1.0 - MARGIN))
    return jnp.maximum(0.0, (private_counts - middle) / (count - middle))


@jax.jit
def neighbours(private_points: Float[Array, "p k"], within: Scalar) -> Float[Array, " p"]:
    """How many points lie within a distance of each, itself included; the distances in blocks of rows."""
    count = private_points.shape[0]
    private_squares = jnp.sum(private_points * private_points, axis=1)

    def near(private_index: Array) -> Array:
        private_own = private_points[private_index]
        private_apart = (
            private_squares - 2.0 * (private_points @ private_own) + private_squares[private_index]
        )
        return jnp.sum((private_apart <= within * within).astype(jnp.float64))

    return jax.lax.map(near, jnp.arange(count), batch_size=min(count, max(1, _BLOCK // count)))


@jax.jit
def mean_around_one(
    private_points: Float[Array, "p k"], private_weights: Float[Array, " p"]
) -> Float[Array, " k"]:
    """The weighted mean, from differences to the point of largest weight; zero if all weights are."""
    private_total = jnp.sum(private_weights)
    private_one = private_points[jnp.argmax(private_weights)]
    private_moved = jnp.where((private_weights > 0)[:, None], private_points - private_one[None, :], 0.0)
    private_mean = private_one + private_weights @ private_moved / jnp.where(
        private_total > 0, private_total, 1.0
    )
    return jnp.where(private_total > 0, private_mean, 0.0)
