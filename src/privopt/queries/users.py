"""The mean of held points, each clipped around a public centre."""

import math
from functools import partial
from typing import Any, ClassVar

from scipy import stats

from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.proofs import huber_centre as proof
from privopt.public import Public
from privopt.queries.base import Number, Scalar, StatisticOfHeld, clip_to_ball, query, static

_UNIT_ROUNDOFF = 2.0**-53


@query
class HeldMean(StatisticOfHeld):
    """(1 / K) sum over the points of clip_c(y_j - v0); v0 is for whoever asked to add.

    Attributes:
        held: the points.
        centre: v0, (k,), public or released.
        radius: c.
    Privacy:
        Each term lies in the ball of radius c and K is public: replacing a point moves the sum by at most 2 c, adding
        or removing one by at most c. v0 is added once, to what was released: added to every term it would leak through
        their number.
        Rounding: y_j - v0 and its clip are functions of one point. A tree of additions of p terms of norm at most c
        is off by at most p gamma_p c, gamma_p = p u / (1 - p u), u = 2^-53; p <= 2 K holds in a random block of the
        units as well. Two data sets' means differ by at most 2 * 2 K * gamma_2K c / K more than the exact ones:
        16 K u c covers it.
        On a sample K is the expected number of points: one that enters moves the mean by c / K, under replace-one half
        of the sensitivity. Rows that are no points add 0, which is exact, and p counts the others.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"mean"})

    held: Any = static()
    centre: Float[Array, " k"]
    radius: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor c / K, and rounding."""
        del public, sampling
        points = self.held.points
        return self.radius * (self.held.factor / points + 16.0 * points * _UNIT_ROUNDOFF)

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.centre))

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_moved = clipped_offsets(private_vectors, self.centre, self.radius)
        return _masked_sum(private_moved, private_present) / float(self.held.points)


@jax.jit
def clipped_offsets(
    private_vectors: Float[Array, "p k"], centre: Float[Array, " k"], radius: Scalar
) -> Float[Array, "p k"]:
    """clip(y_j - v0) of every row; zero where that is not finite."""
    return jax.vmap(clip_to_ball, in_axes=(0, None))(private_vectors - centre[None, :], radius)


@jax.jit
def _masked_sum(private_rows: Float[Array, "p k"], private_kept: Bool[Array, " p"]) -> Float[Array, " k"]:
    return jnp.sum(jnp.where(private_kept[:, None], private_rows, 0.0), axis=0)


# ------------------------------------------------------------------------------------------------------------
# How concentrated held points are, and the mean of those with many others nearby: weights without
# randomness.
# K points, one radius r; h_j = #{i: |y_j - y_i| <= r} counts j itself, h0 = (K + 1) / 2:
#
#     a_j = max(0, (h_j - h0) / (K - h0)),   W = sum a_j,   mean = sum a_j y_j / W
#
# Source:
#     Lowy, Liu, Asi 2024, Algorithm 1, lines 10 to 22 (concentration score, outlier removal); Tsfadia, Cohen, Kaplan,
#     Mansour, Stemmer 2022 (FriendlyCore). Weights in place of random acceptance, and every constant, are ours.


MARGIN = 1e-4  # of a radius: what distances from a matrix product may be off by, and the rounding of a mean
_BLOCK = 2**22  # numbers of one block of the distance matrix
_ROUNDING = 1e-9  # of a sum of weights


@query
class _AroundOrigin(StatisticOfHeld):
    """Points as they are seen from a public or released one."""

    held: Any = static()
    origin: Float[Array, " k"]

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.origin))


@query
class FriendlyWeight(Number, _AroundOrigin):
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

    within: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """3."""
        del public, sampling
        require_replaced(self.held)
        return 3.0 * (1.0 + _ROUNDING)

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        return jnp.sum(friendly_weights(within_reach(private_vectors, self.origin, self.within), self.within))


@query
class FriendlyMean(_AroundOrigin):
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

    within: Scalar
    least_weight: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """6 r / W_min."""
        del public, sampling
        require_replaced(self.held)
        return 6.0 * self.within / self.least_weight

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


# ---- The Huber centre of held points, and the score that certifies how little one point can move it --------
# The proofs are in `privopt.proofs.huber_centre`: the score has sensitivity 1, and wherever it is at least 1 the centre
# moves by at most a c / (N0 + 1), on secret samples a c / N0.


_HALVINGS = (
    60  # of squared distances up to 4e10 squared radii: quicker than sorting, and close enough for a start
)
_AT_ONCE = 8  # candidates whose distances to all points are held at the same time


@query
class _AroundItself(_AroundOrigin):
    """What score and centre share.

    Attributes:
        held: the points.
        origin: v0, (k,), public or released; points far from it are moved nearer, see `within_reach`.
        radius: c.
        least: N0, more than half of the points that there may be.
        steps: of the solver, see `proofs.huber_centre.descent_steps`; at least as many.
    """

    radius: Scalar
    least: int = static()
    steps: int = static()

    def _solved(
        self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]
    ) -> tuple[Array, Array, Array]:
        private_points = within_reach(private_vectors, self.origin, self.radius)
        return huber_centre(private_points, private_present, self.radius, least=self.least, steps=self.steps)


@query
class HuberScore(Number, _AroundItself):
    """f: how far, in points exchanged for the worst ones, the data are from an unstable Huber centre.

    Privacy:
        Sensitivity 1, by Lemma F; 0 on both data sets where the solver's residual is too large, except with the
        probability 2^-64 stated there. Where the number of points is private the score is cut at 2 N0 - 1 - K.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"answer"})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1."""
        del public, sampling
        return 1.0

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        _, private_residual, private_distances = self._solved(private_vectors, private_present)
        most = private_vectors.shape[0] - self.least
        if most < 1:
            return jnp.zeros((), jnp.float64)
        replaced = self.held.replaced
        sampled = self.held.sampled
        radii = proof.inner_radii(most, self.least, replaced=replaced, sampled=sampled)
        inner = jnp.asarray(radii[1:]) * self.radius
        private_met = private_distances[self.least :] <= inner
        private_score = jnp.max(jnp.where(private_met, jnp.arange(1.0, most + 1.0), 0.0))
        private_solved = private_residual <= 0.5 * proof.TOLERANCE * self.radius
        private_score = jnp.where(private_solved, private_score, 0.0)
        if replaced and not sampled:
            return private_score
        private_count = jnp.sum(private_present.astype(jnp.float64))
        return jnp.minimum(private_score, jnp.maximum(0.0, 2.0 * self.least - 1.0 - private_count))


@query
class HuberCentre(_AroundItself):
    """u - v0, u the Huber centre of the points.

    Privacy:
        a c / (N0 + 1) **where the score is at least 1 on one of the two data sets**, by Lemma F; the test before it
        lets any other pair pass with probability delta_1 at most, which the test has paid for. The lemma grants the
        residual kappa c and the solver leaves kappa c / 2, so that its bound has kappa c / (N0 + 1) to spare for the
        rounding of u, at most sqrt(k) 2^-53 1e5 c on either side.
        On a secret sample a c / N0, **where the score is at least 1 on one of the three samples** that a unit is
        missing from, in, or replaced in; entering moves it by at most half of that, by Lemma T.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"mean"})

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """Delta.

        Raises:
            ValueError: the points are a secret sample and N0 is below 21.
        """
        del public, sampling
        return self.radius * proof.centre_shift(
            self.least, replaced=self.held.replaced, sampled=self.held.sampled
        )

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_centre, _, _ = self._solved(private_vectors, private_present)
        return private_centre


@partial(jax.jit, static_argnames=("least", "steps"))
def huber_centre(
    private_points: Float[Array, "p k"],
    private_present: Bool[Array, " p"],
    radius: Scalar,
    *,
    least: int,
    steps: int,
) -> tuple[Float[Array, " k"], Scalar, Float[Array, " p"]]:
    """An approximate Huber centre by a fixed number of gradient steps.

    Args:
        private_points: rows, those that are no points included.
        private_present: which are points. The first 64 of them are tried as starts: rows are in random order, so one
            unit changes one of them at most.
        radius: c.
        least: N0.
        steps: how many.
    Returns:
        The centre, the residual |G| there, and the sorted distances of the points from it, infinite for the rest.
    """
    private_start = _start(private_points, private_present, least)
    # Around the start, the squares of near points are small and their differences exact enough.
    private_moved = private_points - private_start[None, :]
    private_squares = jnp.sum(private_moved * private_moved, axis=1)
    private_mask = private_present.astype(jnp.float64)
    private_count = jnp.maximum(jnp.sum(private_mask), 1.0)

    def distances(at: Array) -> Array:
        return jnp.sqrt(jnp.maximum(private_squares - 2.0 * (private_moved @ at) + jnp.sum(at * at), 0.0))

    def gradient(at: Array) -> Array:
        private_apart = distances(at)
        private_near = private_apart <= radius
        private_shares = jnp.where(private_near, 1.0, radius / jnp.where(private_near, 1.0, private_apart))
        private_shares = private_shares * private_mask
        return at * jnp.sum(private_shares) - private_shares @ private_moved

    private_at = jax.lax.fori_loop(
        0, steps, lambda _, at: at - gradient(at) / private_count, jnp.zeros_like(private_start)
    )
    private_left = gradient(private_at)
    private_residual = jnp.sqrt(jnp.sum(private_left * private_left))
    private_sorted = jnp.sort(jnp.where(private_present, distances(private_at), jnp.inf))
    return private_start + private_at, private_residual, private_sorted


def _start(
    private_points: Float[Array, "p k"], private_present: Bool[Array, " p"], least: int
) -> Float[Array, " k"]:
    """The candidate with the smallest N0-th nearest distance.

    Privacy:
        By `within_reach` a squared distance is off by at most 1e-4 c^2, and the halvings by 4e10 2^-60 c^2 more: the
        N0-th nearest point of the one chosen is within sqrt((2 b_0)^2 + 3e-4 c^2), so that it lies within 3 c of the
        minimiser, as the proof supposes, in every dimension.
    """
    candidates = min(proof.CANDIDATES, private_points.shape[0])
    private_first = jnp.argsort(~private_present, stable=True)[:candidates]
    private_squares = jnp.sum(private_points * private_points, axis=1)

    def spread(private_index: Array) -> Array:
        private_own = private_points[private_index]
        private_apart = (
            private_squares - 2.0 * (private_points @ private_own) + private_squares[private_index]
        )
        private_apart = jnp.where(private_present, private_apart, jnp.inf)

        def halve(_: Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = interval
            middle = 0.5 * (low + high)
            enough = jnp.sum((private_apart <= middle).astype(jnp.float64)) >= least
            return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

        private_most = jnp.max(jnp.where(private_present, private_apart, 0.0))
        _, private_spread = jax.lax.fori_loop(
            0, _HALVINGS, halve, (jnp.zeros_like(private_most), private_most)
        )
        return jnp.where(private_present[private_index], private_spread, jnp.inf)

    private_spreads = jax.lax.map(spread, private_first, batch_size=min(_AT_ONCE, candidates))
    return private_points[private_first[jnp.argmin(private_spreads)]]


# ------------------------------------------------------------------------------------------------------------
# Outlier removal as in the paper, with exact constants: random acceptance of points with many others
# nearby.
# K points, K even, one radius tau; s = (1 / K) #{(j, i): |y_j - y_i| <= tau}, h_j = #{i: |y_j - y_i| <= 2 tau}, both
# with i = j; point j is accepted with probability p_j = clip((h_j - K / 2) / (K / 6), 0, 1); the mean is that of the
# accepted.
#
# Source:
#     Lowy, Liu, Asi 2024, Algorithm 1, lines 10 to 22. Ours: the constants, the factor 4 where the text
#     says 1, and K even.


_SCORE_MARGIN = 10 * MARGIN  # so that two neighbours of one point count as neighbours at twice the radius


def even(points: int) -> int:
    """How many of the points are used: of an odd number, all but the one at the last place, which is public.

    Two accepted points share a neighbour where h + h' > K + 1. With K odd, h = (K + 1) / 2 gives K + 1 exactly.
    """
    return points - points % 2


@query
class ConcentrationScore(Number, _AroundOrigin):
    """s, the average number of points within tau of a point.

    Attributes:
        held: the points; replaced ones only.
        origin: v0, (k,), public or released.
        within: tau.
    Privacy:
        Replacing a point changes 2 (K - 1) ordered pairs: sensitivity 2 (K - 1) / K, attained when it leaves a cluster.
    """

    within: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 (K - 1) / K."""
        del public, sampling
        require_replaced(self.held)
        count = even(self.held.points)
        return 2.0 * (count - 1) / count * (1.0 + 1e-12)

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        del private_present
        private_points = within_reach(private_vectors[: even(len(private_vectors))], self.origin, self.within)
        return jnp.mean(neighbours(private_points, self.within * (1.0 - _SCORE_MARGIN)))


@query
class AcceptedMean(_AroundOrigin):
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
