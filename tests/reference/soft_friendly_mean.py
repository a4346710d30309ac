"""The mean of concentrated user vectors: vectors held by the curator, a concentration test, an inlier mean.

K units, one vector y_j each, one radius r; h_j = #{i: |y_j - y_i| <= r} counts j itself, h0 = (K + 1) / 2:

    a_j = max(0, (h_j - h0) / (K - h0)),   W = sum a_j,   mean = sum a_j y_j / W

Test-and-release: W is released with Gaussian noise of standard deviation s; if it reaches W_min + s z(delta_1) with
z(p) the upper normal quantile, the mean is released with the noise of sensitivity 6 r / W_min, else nothing more is.

Source:
    Lowy, Liu, Asi 2024, Algorithm 1, lines 10 to 22 (concentration score, outlier removal); weights in place of random
    acceptance, and every constant, are ours.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.public import Public, Relation
from privopt.queries.base import RecordSum, StatisticOfHeld, query, static
from privopt.result import Result, Status

ROUNDING = 1e-9  # of lengths, weights and means in float64; the curator adds a bound for sums over units only


@query
class UnitVector(RecordSum):
    """Each unit's feature vector, clipped to the l2 norm `clip`; held, never released."""

    clip: float

    def radius(self):
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        del private_target
        return private_features


@query
class Concentration(StatisticOfHeld):
    """W, the total weight of the held vectors.

    Privacy:
        Replacing unit k moves every other h_j by at most 1, hence a_j by at most 1 / (K - h0), in total by at most
        (K - 1) / (K - h0) = 2, and its own weight by at most 1: sensitivity 3, attained. Each pair is compared once
        for both of its units, so rounding does not spoil the count. h0 depends on K, so K must be fixed.
    """

    held: Any = static()
    within: float  # r

    def sensitivity(self, public: Public, sampling=None):
        del sampling
        _require_fixed_number(public)
        return 3.0 * (1.0 + ROUNDING)

    def shape(self, public: Public) -> tuple[int, ...]:
        del public
        return ()

    def value(self, private_vectors, private_present):
        del private_present
        return jnp.sum(soft_weights(private_vectors, self.within))


@query
class InlierMean(StatisticOfHeld):
    """The weighted mean of the held vectors; zero if all weights are.

    Privacy:
        Two vectors of positive weight, of either data set, have more than K + 1 neighbours together, hence a common
        one, and are within 2 r. So |mean - mean'| <= 2 r (sum |a_j - a_j'| + a_k + a_k') / max(W, W') over j != k: the
        bracket is at most 3 if one of a_k, a_k' is 0, and at most 2 if both are positive. This is 6 r / max(W, W').
        It is at most `6 r / least_weight` **if W or W' reaches least_weight**: the test before it lets any other pair
        of data sets pass with probability delta_1 at most, which the test has paid for.
    """

    held: Any = static()
    within: float  # r
    least_weight: float  # W_min

    def sensitivity(self, public: Public, sampling=None):
        del sampling
        _require_fixed_number(public)
        return 6.0 * self.within * (1.0 + ROUNDING) / self.least_weight

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def value(self, private_vectors, private_present):
        del private_present
        private_weights = soft_weights(private_vectors, self.within)
        private_total = jnp.sum(private_weights)
        return private_weights @ private_vectors / jnp.where(private_total > 0, private_total, 1.0)


def soft_weights(private_vectors: Float[Array, "K d"], within: float) -> Float[Array, " K"]:
    """a_j of every unit, from differences: the distance of i and j is that of j and i to the last bit."""
    count = private_vectors.shape[0]
    middle = (count + 1) / 2.0
    private_gaps = private_vectors[:, None, :] - private_vectors[None, :, :]
    private_near = jnp.sqrt(jnp.sum(private_gaps * private_gaps, axis=2)) <= within
    private_counts = jnp.sum(private_near, axis=1).astype(jnp.float64)
    return jnp.maximum(0.0, (private_counts - middle) / (count - middle))


def _require_fixed_number(public: Public) -> None:
    if public.relation is not Relation.REPLACE_ONE:
        raise ValueError("the weights depend on the number of units: use replace-one, which fixes it.")


@dataclass(frozen=True, kw_only=True)
class SoftFriendlyMean:
    """The solver of this file.

    Attributes:
        within: r.
        least_weight: W_min, above 3.
        clip: largest norm of a held vector; privacy does not rest on it.
        test: how W is released.
        noise: how the mean is released.
    Guarantee:
        (epsilon, delta)-DP under replace-one by composition of two Gaussian releases, plus `bad_event_delta`.
    """

    within: float
    least_weight: float
    clip: float
    test: GaussianTest
    noise: Gaussian

    def event(self, public: Public) -> Event:
        del public
        return Sequence((self.test.event(), self.noise.event()))

    def solve(self, curator: Curator, centre: Array) -> Result:
        held = curator.hold(UnitVector(clip=self.clip))
        concentration = Concentration(held=held, within=self.within)
        weight = float(curator.release(concentration, self.test))
        if weight < self.test.threshold(self.least_weight, concentration.sensitivity(curator.public)):
            return Result(centre, Status.FINISHED, curator.transcript)
        mean = InlierMean(held=held, within=self.within, least_weight=self.least_weight)
        return Result(curator.release(mean, self.noise), Status.FINISHED, curator.transcript)
