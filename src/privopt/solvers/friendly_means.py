"""Means of held points that keep those with many others nearby: with weights, and as the paper has it."""

from dataclasses import dataclass, replace
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.events import Event, Sequence
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.queries.held_friends import FriendlyMean, FriendlyWeight, require_replaced
from privopt.queries.held_outliers import AcceptedMean, ConcentrationScore, even
from privopt.solvers.held_means import MeanBehindTest, MeanRelease, louder, require_length, required
from privopt.status import Status


@dataclass(frozen=True, kw_only=True)
class SoftFriendlyMean(MeanBehindTest):
    """The mean of the points weighted by how many others are near, see `queries.held_friends`. Replaced points only.

    Attributes:
        within: r; most pairs of points are to be within it.
        least_weight: W_min, above 3: the mean's noise is that of sensitivity 6 r / W_min.
        test: how the total weight is released.
        noise: of the mean.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    within: float
    least_weight: float
    test: GaussianTest

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("within", self.within)
        if not self.least_weight > 3:
            raise ValueError(
                f"least_weight must be above 3, got {self.least_weight!r}: one point moves the weight by 3."
            )

    def event(self) -> Event:
        """The test with its bad event, and the mean."""
        return Sequence((self.test.event(), self.noise.event()))

    def scaled(self, factor: float) -> Self:
        """See `PrivateMean`."""
        return replace(self, test=louder(self.test, factor), noise=louder(self.noise, factor))

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        require_replaced(Held(points=points, replaced=replaced))

        def passes(count: int) -> bool:
            return self.test.threshold(self.least_weight, 3.0) < count

        required(points, True if passes(points) else None, passes)

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        self.check(held.points, replaced=held.replaced)
        origin = jnp.asarray(centre, jnp.float64)
        weight = FriendlyWeight(held=held, origin=origin, within=self.within)
        threshold = self.test.threshold(self.least_weight, float(weight.sensitivity(curator.public)))
        if float(curator.release(weight, self.test)) < threshold:
            return self.failed(curator, held, origin)
        mean = FriendlyMean(held=held, origin=origin, within=self.within, least_weight=self.least_weight)
        return MeanRelease(origin + curator.release(mean, self.noise), Status.FINISHED)


@dataclass(frozen=True, kw_only=True)
class PaperOutlierMean(MeanBehindTest):
    """The paper's outlier removal with exact constants, for comparison. Replaced points only.

    See `queries.held_outliers`.

    Attributes:
        within: tau.
        test: how the concentration score is released; its `bad_event_delta` holds `coupling_delta` too.
        noise: of the mean.
        coupling_delta: zeta, the probability that more decisions differ than the noise of the mean allows for.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    within: float
    test: GaussianTest
    coupling_delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("within", self.within)
        if not 0 < self.coupling_delta < 1 or self.coupling_delta >= self.test.bad_event_delta:
            raise ValueError(
                f"coupling_delta must be positive and below the test's bad_event_delta = "
                f"{self.test.bad_event_delta!r}, which pays for it, got {self.coupling_delta!r}."
            )

    def event(self) -> Event:
        """The test with both bad events, and the mean."""
        return Sequence((self.test.event(), self.noise.event()))

    def scaled(self, factor: float) -> Self:
        """See `PrivateMean`."""
        return replace(self, test=louder(self.test, factor), noise=louder(self.noise, factor))

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        require_replaced(Held(points=points, replaced=replaced))

        def passes(count: int) -> bool:
            return count >= 4 and self._threshold(count) < even(count)

        required(points, True if passes(points) else None, passes)

    def _threshold(self, points: int) -> float:
        count = even(points)
        wrong_pass = replace(self.test, bad_event_delta=self.test.bad_event_delta - self.coupling_delta)
        return wrong_pass.threshold(2.0 * count / 3.0, 2.0 * (count - 1) / count * (1.0 + 1e-12))

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        self.check(held.points, replaced=held.replaced)
        origin = jnp.asarray(centre, jnp.float64)
        score = ConcentrationScore(held=held, origin=origin, within=self.within)
        if float(curator.release(score, self.test)) < self._threshold(held.points):
            return self.failed(curator, held, origin)
        lottery = jnp.asarray(np.random.default_rng(held.seed).random(held.points))
        mean = AcceptedMean(
            held=held, origin=origin, within=self.within, lottery=lottery, failure=self.coupling_delta
        )
        return MeanRelease(origin + curator.release(mean, self.noise), Status.FINISHED)
