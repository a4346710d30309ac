"""Stable means in many steps behind one sparse vector: each is released if its test says to go on."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.curator.handles import Held, Stream
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.sparse_test import SparseTest
from privopt.mechanisms.tested_samples import TestedSamples
from privopt.planning import stable_mean as planning
from privopt.planning.stable_mean import OUTLIERS, StableNumbers
from privopt.queries.base import MeanQuery, StatisticOfHeld
from privopt.queries.held_huber import HuberCentre, HuberScore
from privopt.queries.held_mean import HeldMean
from privopt.solvers.held_means import MeanRelease
from privopt.status import Status


@dataclass(frozen=True, kw_only=True)
class StableMeans:
    """The Huber centres of points that are held anew in every step, see `StableMean`, behind one sparse vector.

    Attributes:
        spread: b*, a radius around their mean that holds all but a fraction `outliers` of the points.
        search: the tests: reversed, it goes on while scores reach the threshold. `TestedSamples` asks about a fresh
            sample in every step, and releases the centres as well.
        noise: of every centre.
        steps: how many tests and centres there are at most.
        outliers: o.
    """

    spread: float
    search: SparseTest
    noise: Gaussian
    steps: int
    outliers: float = OUTLIERS

    def event(self) -> Event:
        """The tests with their bad event, and the centres."""
        if self.sampled:
            return self.search.event()
        return sequence((self.search.event(), *(self.noise.event() for _ in range(self.steps))))

    @property
    def sampled(self) -> bool:
        """Whether every step looks at a secret sample."""
        return isinstance(self.search, TestedSamples)

    def numbers(self, points: int, *, replaced: bool) -> StableNumbers:
        """The public numbers of a test.

        Args:
            points: K.
            replaced: whether a neighbour replaces a point.
        Raises:
            BudgetTooSmall: there are too few points for the noise.
        """

        def found(count: int) -> StableNumbers | None:
            slack = self.search.threshold + self.search.threshold_for(planning.FALSE_SKIP, max(1, self.steps))
            return planning.stable_numbers(
                count,
                self.search.threshold,
                int(slack) + 1,
                replaced=replaced,
                outliers=self.outliers,
                sampled=self.sampled,
            )

        numbers = found(points)
        if numbers is None:
            raise planning.too_few(points, planning.smallest_enough(lambda count: found(count) is not None))
        return numbers

    def cost(self, points: int, *, replaced: bool) -> float:
        """K times a centre's noise over the spread, for a noise multiplier of 1: around a known centre it is 2."""
        numbers = self.numbers(points, replaced=replaced)
        return points * numbers.shift / numbers.inner

    def open(self, curator: Curator) -> Stream:
        """Pay for the tests."""
        return curator.stream("tests of steps", self.search)

    def release(self, curator: Curator, tests: Stream, query: MeanQuery, centre: Array) -> MeanRelease:
        """One step: its test, and if it passes its centre.

        Args:
            curator: whose units the points are of.
            tests: from `open`; a failed test closes it.
            query: the points of this step.
            centre: v0, (k,), public or released.
        Returns:
            The centre given and `HALTED` where the test failed.
        """
        held = self._held(curator, tests, query)
        numbers = self.numbers(held.points, replaced=held.replaced)
        origin = jnp.asarray(centre, jnp.float64)
        place: dict[str, Any] = {
            "held": held,
            "origin": origin,
            "radius": self.spread / numbers.inner,
            "least": numbers.least,
            # A drawn block may hold more units than its public size; the score is cut where N0 is not more than half.
            "steps": numbers.steps(2 * held.points if curator.public.drawn or self.sampled else held.points),
        }
        if bool(tests.ask("answer", HuberScore(**place))):
            return MeanRelease(origin, Status.HALTED)
        moved = self._released(curator, tests, HuberCentre(**place))
        return MeanRelease(origin + moved, Status.FINISHED)

    def clipped(
        self, curator: Curator, tests: Stream, query: MeanQuery, centre: Array, radius: float
    ) -> MeanRelease:
        """A step after a failed test: the points clipped around the centre given, with the noise that was paid for.

        Args:
            curator: whose units the points are of.
            tests: from `open`, closed by now.
            query: the points of this step, held anew: of a fresh sample, if there are samples.
            centre: v0, (k,), public or released.
            radius: of the clip.
        """
        origin = jnp.asarray(centre, jnp.float64)
        mean = HeldMean(held=self._held(curator, tests, query), centre=origin, radius=radius)
        return MeanRelease(origin + self._released(curator, tests, mean), Status.FELL_BACK)

    def _held(self, curator: Curator, tests: Stream, query: MeanQuery) -> Held:
        return curator.hold(query, sample=tests) if self.sampled else curator.hold(query)

    def _released(self, curator: Curator, tests: Stream, statistic: StatisticOfHeld) -> Array:
        """By the stream where the points are its sample, else on its own."""
        if self.sampled:
            return jnp.asarray(tests.ask("mean", statistic))
        return curator.release(statistic, self.noise)
