"""Means of points that the curator holds: programs of one or a few releases, for a solver to call like a function.

Each is a frozen value with a price, `event()`, known before there are any points, and a `release`. Clipping around a
centre needs no test. The others find the centre themselves, and release only after a private test: where it fails they
halt, or fall back to clipping around the centre given, with the noise that was paid for.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from privopt.curator.base import Curator
from privopt.curator.handles import Held, Stream
from privopt.later import Array, jnp
from privopt.ledger.events import Event, Sequence, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import GaussianTest, SparseTest, TestedSamples
from privopt.planning import stable_mean as planning
from privopt.planning.stable_mean import OUTLIERS, RADII, RATIO, StableNumbers
from privopt.queries.base import MeanQuery, StatisticOfHeld
from privopt.queries.scores import HeldCount
from privopt.queries.users import (
    AcceptedMean,
    ConcentrationScore,
    FriendlyMean,
    FriendlyWeight,
    HeldMean,
    HuberCentre,
    HuberScore,
    even,
    require_replaced,
)
from privopt.status import Status

Found = TypeVar("Found")


class MeanRelease(NamedTuple):
    """A private mean of held points.

    Attributes:
        value: (k,).
        status: `FINISHED`; `HALTED`: a test failed, and the value is the centre given; `FELL_BACK`: a test failed, and
            the value is a clipped mean around the centre given.
    """

    value: Array
    status: Status


class PrivateMean(abc.ABC):
    """A mean of held points."""

    @abc.abstractmethod
    def event(self) -> Event:
        """What it costs at most, however it ends: a fallback is made with noise that is paid for."""

    @abc.abstractmethod
    def check(self, points: int, *, replaced: bool) -> None:
        """Refuse public numbers of points that it cannot work on.

        Args:
            points: K.
            replaced: whether a neighbour replaces a point, see `Held`.
        Raises:
            ValueError: it cannot.
            BudgetTooSmall: there are too few points for the noise.
        """

    @abc.abstractmethod
    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """Release the mean.

        Args:
            curator: the one that holds the points.
            held: the points.
            centre: v0, (k,), public or released; points without data are at 0.
        """


@dataclass(frozen=True, kw_only=True)
class ClippedMean(PrivateMean):
    """v0 + (1 / K) sum clip_c(y_j - v0) + noise. No test, no bad event; biased where many points are further than c.

    Attributes:
        radius: c.
        noise: of the mean.
    """

    radius: float
    noise: Gaussian

    def __post_init__(self) -> None:
        require_length("radius", self.radius)

    def event(self) -> Event:
        """One Gaussian release."""
        return self.noise.event()

    def check(self, points: int, *, replaced: bool) -> None:
        """Any points will do."""
        del points, replaced

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`. The centre is added to what was released."""
        centre = jnp.asarray(centre, jnp.float64)
        moved = curator.release(HeldMean(held=held, centre=centre, radius=self.radius), self.noise)
        return MeanRelease(centre + moved, Status.FINISHED)


@dataclass(frozen=True, kw_only=True)
class MeanBehindTest(PrivateMean):
    """What means behind a test share.

    Attributes:
        noise: of the mean.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    noise: Gaussian
    fallback: float | None = None

    def __post_init__(self) -> None:
        if self.fallback is not None:
            require_length("fallback", self.fallback)

    def failed(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """What is released where the test fails; at most what a pass would have cost."""
        if self.fallback is None:
            return MeanRelease(centre, Status.HALTED)
        clipped = ClippedMean(radius=self.fallback, noise=self.noise).release(curator, held, centre)
        return MeanRelease(clipped.value, Status.FELL_BACK)


@dataclass(frozen=True, kw_only=True)
class MeanBehindGaussianTest(MeanBehindTest):
    """A mean behind one released score.

    Attributes:
        test: how the score is released.
    """

    test: GaussianTest

    def event(self) -> Event:
        """The test with its bad events, and the mean."""
        return Sequence((self.test.event(), self.noise.event()))


@dataclass(frozen=True, kw_only=True)
class StableMean(MeanBehindGaussianTest):
    """The Huber centre of points of unknown location, within a known radius of each other's mean.

    The Huber centre is the point that is its own clipped mean; where more than half of the points lie well inside the
    clip, its sensitivity is that of clipping around a known centre, 2.02 c / (N0 + 1). A score of sensitivity 1
    certifies that, see `proofs.huber_centre`.

    Attributes:
        spread: b*, a radius around the mean that holds all but a fraction `outliers` of the points.
        test: how the score is released.
        noise: of the centre.
        outliers: o.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    spread: float
    outliers: float = OUTLIERS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("spread", self.spread)
        if not 0 <= self.outliers < 0.5:
            raise ValueError(
                f"outliers must be at least 0 and below 0.5, got {self.outliers!r}: it is the fraction of the points "
                "that may lie outside of `spread`."
            )

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        self.numbers(points, replaced=replaced)

    def numbers(self, points: int, *, replaced: bool) -> StableNumbers:
        """The public numbers of the test."""

        def found(count: int) -> StableNumbers | None:
            return planning.gaussian_test_numbers(
                count,
                self.test.noise_multiplier,
                self.test.bad_event_delta,
                replaced=replaced,
                outliers=self.outliers,
            )

        return required(points, found)

    def radius(self, numbers: StableNumbers) -> float:
        """c, the clip radius."""
        return self.spread / numbers.inner

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        numbers = self.numbers(held.points, replaced=held.replaced)
        around = _Around(held, jnp.asarray(centre, jnp.float64), numbers, curator.public.drawn)
        radius = self.radius(numbers)
        if float(curator.release(around.score(radius), self.test)) < numbers.threshold:
            return self.failed(curator, held, around.origin)
        moved = curator.release(around.centre(radius), self.noise)
        return MeanRelease(around.origin + moved, Status.FINISHED)


@dataclass(frozen=True, kw_only=True)
class StableMeanAuto(MeanBehindTest):
    """A stable mean whose radius is searched for: the sparse vector technique asks radius after radius.

    Radii grow by a factor of 1.25 up to `largest`; the first whose score passes is taken. Where none does it falls back
    to clipping around the centre given, with the same noise multiplier; without a `fallback` it halts.

    Attributes:
        largest: c_max, the largest radius.
        search: the tests, `SparseTest.of(epsilon, tests=radii, bad_event_delta=...)`.
        noise: of the centre.
        radii: how many are tried.
        outliers: o.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    largest: float
    search: SparseTest
    radii: int = RADII
    outliers: float = OUTLIERS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("largest", self.largest)
        if self.radii < 1:
            raise ValueError(f"radii must be at least 1, got {self.radii!r}: how many are tried.")

    def event(self) -> Event:
        """The search with its bad event, and the centre."""
        return Sequence((self.search.event(), self.noise.event()))

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        self.numbers(points, replaced=replaced)

    def numbers(self, points: int, *, replaced: bool) -> StableNumbers:
        """The public numbers of the tests."""

        def found(count: int) -> StableNumbers | None:
            return planning.sparse_test_numbers(count, self.search, replaced=replaced, outliers=self.outliers)

        return required(points, found)

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        numbers = self.numbers(held.points, replaced=held.replaced)
        around = _Around(held, jnp.asarray(centre, jnp.float64), numbers, curator.public.drawn)
        stream = curator.stream("radius search", self.search)
        for power in range(self.radii - 1, -1, -1):
            radius = self.largest / RATIO**power
            if bool(stream.ask("answer", around.score(radius))):
                moved = curator.release(around.centre(radius), self.noise)
                return MeanRelease(around.origin + moved, Status.FINISHED)
        return self.failed(curator, held, around.origin)


class _Around(NamedTuple):
    """Score and centre of some points at any radius."""

    held: Held
    origin: Array
    numbers: StableNumbers
    drawn: bool  # whether there may be more points than the public number

    def _at(self, radius: float) -> dict[str, Any]:
        # The score is cut where N0 is not more than half.
        steps = self.numbers.steps(2 * self.held.points if self.drawn else self.held.points)
        place = {"held": self.held, "origin": self.origin, "radius": radius}
        return {**place, "least": self.numbers.least, "steps": steps}

    def score(self, radius: float) -> HuberScore:
        return HuberScore(**self._at(radius))

    def centre(self, radius: float) -> HuberCentre:
        return HuberCentre(**self._at(radius))


def require_length(name: str, value: float) -> None:
    """Refuse a length that is none.

    Raises:
        ValueError: it is not positive and finite.
    """
    if not (value > 0 and np.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value!r}: it is a length.")


def required(points: int, found: Callable[[int], Found | None]) -> Found:
    """What is found for a number of points, or the error that names the smallest number for which something is."""
    here = found(points)
    if here is None:
        raise planning.too_few(points, planning.smallest_enough(lambda count: found(count) is not None))
    return here


# ---- Means that keep the points with many others nearby: with weights, and as the paper has it --------------
@dataclass(frozen=True, kw_only=True)
class SoftFriendlyMean(MeanBehindGaussianTest):
    """The mean of the points weighted by how many others are near, see `queries.users`. Replaced points only.

    Attributes:
        within: r; most pairs of points are to be within it.
        least_weight: W_min, above 3: the mean's noise is that of sensitivity 6 r / W_min.
        test: how the total weight is released.
        noise: of the mean.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    within: float
    least_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("within", self.within)
        if not self.least_weight > 3:
            raise ValueError(
                f"least_weight must be above 3, got {self.least_weight!r}: one point moves the weight by 3."
            )

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        require_replaced(Held(points=points, replaced=replaced))

        threshold = self.test.threshold(self.least_weight, 3.0)
        required(points, lambda count: count if threshold < count else None)

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
class PaperOutlierMean(MeanBehindGaussianTest):
    """The paper's outlier removal with exact constants, for comparison. Replaced points only.

    See `queries.users`.

    Attributes:
        within: tau.
        test: how the concentration score is released; its `bad_event_delta` holds `coupling_delta` too.
        noise: of the mean.
        coupling_delta: zeta, the probability that more decisions differ than the noise of the mean allows for.
        fallback: radius of the clipped mean that takes its place; None to halt.
    """

    within: float
    coupling_delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_length("within", self.within)
        if not 0 < self.coupling_delta < 1 or self.coupling_delta >= self.test.bad_event_delta:
            raise ValueError(
                f"coupling_delta must be positive and below the test's bad_event_delta = "
                f"{self.test.bad_event_delta!r}, which pays for it, got {self.coupling_delta!r}."
            )

    def check(self, points: int, *, replaced: bool) -> None:
        """See `PrivateMean`."""
        require_replaced(Held(points=points, replaced=replaced))

        def passing(count: int) -> int | None:
            return count if count >= 4 and self._threshold(count) < even(count) else None

        required(points, passing)

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


# ---- A private radius that holds a given fraction of held points -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NormQuantile:
    """A radius around a centre that holds about a fraction of the points, by bisection on noisy counts.

    Attributes:
        quantile: the fraction, in (0, 1).
        smallest: below this no radius is tried; positive.
        largest: nor above this.
        steps: how many counts are released; the logarithm of the radius is halved by each.
        noise: of each count.
    """

    quantile: float
    smallest: float
    largest: float
    steps: int
    noise: Gaussian

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, got {self.quantile!r}.")
        require_length("smallest", self.smallest)
        require_length("largest", self.largest)
        if not self.smallest < self.largest:
            raise ValueError(f"smallest must be below largest, got {self.smallest!r} and {self.largest!r}.")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps!r}: each releases a count.")

    def event(self) -> Event:
        """All the counts."""
        return repeat(self.noise.event(), self.steps)

    def release(self, curator: Curator, held: Held, centre: Array) -> float:
        """The radius."""
        low, high = float(np.log(self.smallest)), float(np.log(self.largest))
        for _ in range(self.steps):
            middle = (low + high) / 2.0
            count = HeldCount(
                held=held, centre=jnp.asarray(centre, jnp.float64), radius=float(np.exp(middle))
            )
            inside = float(curator.release(count, self.noise))
            low, high = (low, middle) if inside >= self.quantile * held.points else (middle, high)
        return float(np.exp((low + high) / 2.0))


# ---- Stable means in many steps behind one sparse vector: each is released if its test says to go on -------
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

        return required(points, found)

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
        drawn = curator.public.drawn or self.sampled
        around = _Around(held, jnp.asarray(centre, jnp.float64), numbers, drawn)
        radius = self.spread / numbers.inner
        if bool(tests.ask("answer", around.score(radius))):
            return MeanRelease(around.origin, Status.HALTED)
        moved = self._released(curator, tests, around.centre(radius))
        return MeanRelease(around.origin + moved, Status.FINISHED)

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
