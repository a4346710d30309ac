"""The sparse vector technique: ask threshold questions until the first hit.

Noise is integers, and the comparison is made without rounding. For an epsilon, noise is J / m in units of the
sensitivity: J = round(2^t L), L an exact Laplace variable (`exact_noise`), and m = floor(2^t epsilon) the number of
steps that one unit of sensitivity stands for. Whether value - threshold + sensitivity (nu - xi) reaches 0 is then a
question about rational numbers, and answered as such. Only the answer is released, so values need no lattice.

**Proof.** P(J = j) is the integral of a Laplace density of scale 2^t over an interval of length 1, so P(J = j + i) >=
e^(-|i| / 2^t) P(J = j) for all integers. Let the threshold's noise be xi = J / m, m from epsilon_threshold; that of the
values nu = J / h, h from epsilon_queries / 2. Between neighbours (value - threshold) / sensitivity moves by at most 1.
Fix the noise of the values before the hit. Where a run on D has xi = j / m and, at its hit, nu = i / h, the run on D'
gives the same answers with xi = (j + m) / m, higher by 1, and nu = (i + 2 h) / h, higher by 2. Different (j, i) go to
different integers, of at least e^-(m / 2^t + 2 h / 2^t) times the probability, each with the t of its noise. As m / 2^t
<= epsilon_threshold and 2 h / 2^t <= epsilon_queries, the answers are (epsilon_threshold + epsilon_queries)-DP: no part
of delta is spent on rounding. What `ledger.privacy_losses` takes from Laplace noise holds likewise: a shift of nu by 1
is h steps, a factor of e^(epsilon_queries / 2) at most, one by 2 is 2 h; a shift of xi by 1 is m steps. One thing is
not in the price: a probability of `exact_noise` may be off by a factor of 1 + 2^-330, from its table of 400 bits.

The true scales are 2^t / m and 2^t / h: above those asked for by less than 2^-29 of them down to an epsilon of 2^-15,
and by about 2^-45 / epsilon of them below. `threshold_scale`, `query_scale` and `tail` are about these.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from privopt.ledger.events import (
    DeltaEvent,
    Event,
    NonPrivateEvent,
    Poisson,
    PureEvent,
    Sequence,
    TestedSampleEvent,
)
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import (
    HiddenState,
    Request,
    StreamMechanism,
    checked_sensitivity,
    noise_exponent,
    spacing_ratio,
)
from privopt.mechanisms.exact_noise import FINEST
from privopt.mechanisms.noise import Noise, Shape

_ARITHMETIC = 2.0**-32  # more than the formula of the tail is off by: 745 times a few units in the last place


class AboveThresholdState(HiddenState):
    """The noise on the threshold, drawn once, and whether the stream has stopped."""

    __slots__ = ("stopped", "threshold_noise")

    def __init__(self, threshold_noise: Fraction) -> None:
        self.threshold_noise = threshold_noise
        self.stopped = False


@dataclass(frozen=True)
class AboveThreshold(StreamMechanism):
    """Say of each value in a stream whether it reaches a threshold, and stop at the first that does.

    With xi ~ Lap(1 / epsilon_threshold) drawn once and nu_t ~ Lap(2 / epsilon_queries) drawn for each value, the answer
    is a hit when (value_t - threshold) / sensitivity_t + nu_t >= xi. `reversed` asks the opposite question: it
    continues while the value reaches the threshold and stops at the first that falls below.

    Args:
        threshold: in the unit of the values. Public.
        epsilon_threshold: spent on the threshold's noise; `math.inf` turns that noise off.
        epsilon_queries: spent on the values' noise; `math.inf` turns that noise off.
        reversed: stop at the first value below the threshold.
    Privacy:
        (epsilon_threshold + epsilon_queries)-DP for any number of answers. Each (value - threshold) / sensitivity moves
        by at most 1: shifting xi by 1 absorbs every answer before the hit, and the hit itself pays epsilon_queries.
        Releases of other mechanisms may stand between the answers; their losses add. On integers: see the module.
    Source:
        Lyu, Su, Li 2017, Algorithm 1; Lowy, Liu, Asi 2024, Algorithm 4. We draw the threshold's noise once: redrawing
        it after every answer, as printed there, is not private.
    """

    exact: ClassVar[bool] = True
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType({"answer": Request(fed=True)})

    threshold: float
    epsilon_threshold: float
    epsilon_queries: float
    reversed: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold!r}.")
        if not (self.epsilon_threshold > 0 and self.epsilon_queries > 0):
            raise ValueError(
                "epsilon_threshold and epsilon_queries must be positive, "
                f"got {self.epsilon_threshold!r} and {self.epsilon_queries!r}: `best_split` divides an epsilon."
            )
        for spent in self._spent():
            _steps(spent)

    @classmethod
    def best_split(cls, epsilon: float) -> tuple[float, float]:
        """Divide an epsilon into (epsilon_threshold, epsilon_queries), 1 : 2^(2/3): the least noise on a comparison.

        Source:
            Lyu, Su, Li 2017, section 4.2: minimises the variance 2 / epsilon_threshold^2 + 8 / epsilon_queries^2.
        """
        share = 1.0 / (1.0 + 2.0 ** (2.0 / 3.0))
        return epsilon * share, epsilon * (1.0 - share)

    @property
    def threshold_scale(self) -> float:
        """The Laplace scale of the threshold's noise, over the sensitivity: 1 / epsilon_threshold, or a bit more."""
        return _scale(self.epsilon_threshold)

    @property
    def query_scale(self) -> float:
        """The Laplace scale of a value's noise, in units of the sensitivity: 2 / epsilon_queries, or a bit more."""
        return _scale(self.epsilon_queries / 2.0)

    def event(self) -> Event:
        """The whole stream, charged once when it opens."""
        total = self.epsilon_threshold + self.epsilon_queries
        return PureEvent(total) if math.isfinite(total) else NonPrivateEvent()

    def open(self, noise: Noise, shape: Shape = ()) -> AboveThresholdState:
        """Draw the threshold's noise; the values are numbers.

        Raises:
            ValueError: the shape is that of an array of more than one value.
        """
        if math.prod(shape) != 1:
            raise ValueError(f"AboveThreshold answers about single numbers, got values of shape {shape}.")
        return AboveThresholdState(_drawn(noise, self.epsilon_threshold))

    def admits(self, items: frozenset[int]) -> bool:
        """Any: every unit may be in every value."""
        del items
        return True

    def answer(
        self,
        state: AboveThresholdState,
        noise: Noise,
        private_value: SupportsFloat,
        sensitivity: SupportsFloat,
    ) -> bool:
        """Release whether this value is a hit; after the first hit the stream is closed.

        Args:
            state: from `open`; an answer of True closes it.
            noise: the secret stream.
            private_value: a number.
            sensitivity: how far one unit moves it, in its own unit. Public; 0 answers exactly.
        Raises:
            RuntimeError: the stream has had its hit.
            ValueError: the sensitivity is negative, NaN, or infinite while some noise is on.
        """
        if state.stopped:
            raise RuntimeError("this stream stopped at its first hit: open, and pay for, another.")
        scale = checked_sensitivity(sensitivity, noisy=self.threshold_scale > 0 or self.query_scale > 0)
        query_noise = _drawn(noise, self.epsilon_queries / 2.0)
        private_excess = _fraction(private_value) - Fraction(self.threshold)
        if self.reversed:
            private_excess = -private_excess
        margin = Fraction(scale) * (query_noise - state.threshold_noise) if scale < math.inf else 0
        private_level = private_excess + margin
        state.stopped = private_level > 0 if self.reversed else private_level >= 0
        return state.stopped

    def tail(self, distance: float) -> float:
        """P(nu - xi >= distance) at most: a wrong answer for a value that far away, in units of the sensitivity.

        A bound for distances of at least 0; for others, one less that of the opposite. Rounding of the two draws,
        half a step each, is in it, and as much again for the arithmetic of the formula.
        """
        if distance < 0:
            return 1.0 - self.tail(-distance)
        rest = distance - sum(0.5 / _steps(epsilon)[0] for epsilon in self._spent() if epsilon < math.inf)
        found = self._continuous_tail(rest) if rest >= 0 else 1.0 - self._continuous_tail(-rest)
        return found * (1.0 + _ARITHMETIC)

    def _continuous_tail(self, distance: float) -> float:
        """The same for two Laplace variables of the true scales; with no cancellation where they are close."""
        smaller, larger = sorted((self.query_scale, self.threshold_scale))
        if larger == 0:
            return 0.5 if distance == 0 else 0.0
        mixed = 0.0
        if smaller > 0:
            gap = distance * (larger - smaller) / larger / smaller
            share = -math.expm1(-gap) / gap if gap > 0 else 1.0
            mixed = distance / larger * smaller / (larger + smaller) * share
        return 0.5 * math.exp(-distance / larger) * (1.0 + mixed)

    def _spent(self) -> tuple[float, float]:
        """The epsilons of which a step of either noise is a part."""
        return self.epsilon_threshold, self.epsilon_queries / 2.0

    def threshold_for(self, failure: float, tests: int) -> float:
        """The least distance, in units of the sensitivity, with `tests * tail(distance) <= failure`.

        A stream of at most `tests` values that all lie this far on the continuing side of the threshold stops with
        probability at most `failure`.

        Raises:
            ValueError: failure is not in (0, tests / 2), or tests is below 1.
        """
        if tests < 1 or not 0 < failure < tests / 2:
            raise ValueError(
                f"tests must be at least 1 and failure in (0, tests / 2), got {tests!r} and {failure!r}: failure is "
                "the probability of stopping too early."
            )
        lower, upper = (
            0.0,
            max(self.query_scale, self.threshold_scale, math.ulp(0.0)),
        )  # there may be no noise
        while tests * self.tail(upper) > failure:
            lower, upper = upper, 2 * upper
        while lower < (middle := (lower + upper) / 2) < upper:
            lower, upper = (middle, upper) if tests * self.tail(middle) > failure else (lower, middle)
        return upper


@functools.lru_cache(maxsize=256)
def _steps(epsilon: float) -> tuple[int, int]:
    """(steps that one unit of sensitivity stands for, t) of noise of scale 1 / epsilon; (1, 0) where it is off.

    Raises:
        ValueError: an epsilon so small that a unit would be no step.
    """
    if math.isinf(epsilon):
        return 1, 0
    if not epsilon * 2.0**FINEST >= 1:
        raise ValueError(
            f"an epsilon of {epsilon:.3g} for a threshold asks for noise beyond the integers that exact noise is drawn "
            "as: nothing of the values would be left in it. Take a larger epsilon."
        )
    exponent = noise_exponent(1.0 / epsilon)
    return math.floor(Fraction(epsilon) * Fraction(2) ** exponent), exponent


@functools.lru_cache(maxsize=256)
def _scale(epsilon: float) -> float:
    """The true scale of noise of scale 1 / epsilon."""
    if math.isinf(epsilon):
        return 0.0
    steps, exponent = _steps(epsilon)
    return float(Fraction(2) ** exponent / steps)


def _drawn(noise: Noise, epsilon: float) -> Fraction:
    """Laplace noise of scale 1 / epsilon, in units of the sensitivity: integers from an exact source, or a float64."""
    steps, exponent = _steps(epsilon)
    if noise.exact:
        private_steps = int(noise.rounded_laplace((), exponent))
        return Fraction(private_steps, steps) if math.isfinite(epsilon) else Fraction(0)
    return Fraction(_scale(epsilon) * float(noise.laplace(())))


def _fraction(private_value: SupportsFloat) -> Fraction:
    """The value as it is; 0 for what is not a number, and the largest numbers for what is infinite."""
    return Fraction(float(np.nan_to_num(float(private_value))))


# ------------------------------------------------------------------------------------------------------------
# Many tests for one price: the sparse vector technique with a threshold that keeps wrong passes rare.


@dataclass(frozen=True)
class SparseTest(AboveThreshold):
    """`AboveThreshold` on whose answers later sensitivities rest.

    Args:
        threshold: see `AboveThreshold`, with sensitivity 1.
        epsilon_threshold: likewise.
        epsilon_queries: likewise.
        reversed: likewise.
        bad_event_delta: delta_1, the probability that any answer is a wrong pass; in [0, 1).
    Privacy:
        As in `GaussianTest`: delta_1 is added to delta once. A union over the draws of all the tests, so that the noise
        of the threshold, which they share, and questions chosen from earlier answers do not matter.
    """

    bad_event_delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.bad_event_delta < 1:
            raise ValueError(
                f"bad_event_delta must be at least 0 and below 1, got {self.bad_event_delta!r}: it is the probability "
                "of a wrong pass, and is added to delta."
            )

    @classmethod
    def of(
        cls, epsilon: float, *, tests: int, bad_event_delta: float, reversed: bool = False
    ) -> "SparseTest":
        """At most `tests` tests of numbers of sensitivity 1 whose wrong passes are those at or below 0.

        Args:
            epsilon: of all of them together.
            tests: how many there are at most.
            bad_event_delta: delta_1, in (0, tests / 2).
            reversed: see `AboveThreshold`.
        """
        first, second = cls.best_split(epsilon)
        level = cls(0.0, first, second).threshold_for(bad_event_delta, tests)
        return cls(level, first, second, reversed, bad_event_delta)

    def answer(
        self,
        state: AboveThresholdState,
        noise: Noise,
        private_value: SupportsFloat,
        sensitivity: SupportsFloat,
    ) -> bool:
        """See `AboveThreshold.answer`.

        Raises:
            ValueError: also where the sensitivity is above 1: a wrong pass would be likelier than `bad_event_delta`.
        """
        if not float(sensitivity) <= 1.0 and math.isfinite(self.epsilon_threshold + self.epsilon_queries):
            raise ValueError(
                f"a test on which later sensitivities rest takes numbers of sensitivity 1 at most, got "
                f"{float(sensitivity)!r}: divide the number by that."
            )
        return super().answer(state, noise, private_value, sensitivity)

    def event(self) -> Event:
        """The stream and its bad event."""
        return Sequence((super().event(), DeltaEvent(self.bad_event_delta)))


# ---- A Gaussian release that a later release rests on: test first, and release only after a pass -----------


@dataclass(frozen=True)
class GaussianTest(Gaussian):
    """A Gaussian release of a number that must reach a threshold before something else is released.

    Args:
        noise_multiplier: see `Gaussian`.
        bad_event_delta: delta_1, the probability of the test's bad event; in [0, 1).
    Privacy:
        Call two neighbouring data sets unsafe where what comes after the test may move by more than its stated
        sensitivity. The statistic must be below `least` on both data sets of an unsafe pair. Let the run end in a
        special outcome wherever the test passes on such a pair: that run composes as stated, with no exception, and
        differs from the real one with probability `bad_event_delta` at most, by `threshold`. So delta_1 is added to
        delta once, with no factor e^epsilon; those of several tests are added up.
    Raises:
        ValueError: the noise multiplier or the probability is none.
    Source:
        The argument is ours; test-and-release is Dwork and Lei 2009 (propose-test-release).
    """

    bad_event_delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.bad_event_delta < 1:
            raise ValueError(
                f"bad_event_delta must be at least 0 and below 1, got {self.bad_event_delta!r}: it is the probability "
                "of a wrong pass, and is added to delta."
            )

    def event(self) -> Event:
        """The Gaussian release and the bad event."""
        return Sequence((super().event(), DeltaEvent(self.bad_event_delta)))

    def threshold(self, least: float, sensitivity: float) -> float:
        """A value below `least` is released at or above this with probability `bad_event_delta` at most.

        On a lattice of spacing g the value is at most g (1/2 + 2^-8) higher, the noise g / 2, and the noise is a little
        larger than the multiplier says, see `lattice`: two spacings, and its true scale, are more than that.
        """
        if self.noise_multiplier * sensitivity == 0:
            return least
        quantile = float(stats.norm.isf(self.bad_event_delta))
        spacing = sensitivity * spacing_ratio(self.noise_multiplier, 1, self.norm) * (1 + 2.0**-33)
        stddev = spacing * 2.0 ** noise_exponent(self.noise_multiplier)
        return least + 2.0 * spacing + max(stddev * quantile, self.noise_multiplier * sensitivity * quantile)


# ------------------------------------------------------------------------------------------------------------
# Tests on fresh secret samples, each with a Gaussian release on the same sample: a stream with a price of
# its own.


@dataclass(frozen=True)
class TestedSamples(SparseTest):
    """A reversed sparse vector whose tests look at fresh Poisson samples, and a Gaussian release on each that passes.

    The points of a sample are held by `curator.hold(query, sample=stream)`; "answer" tests a statistic of them, of
    sensitivity 1 wherever a unit enters, leaves or is replaced; "mean" releases another one; which may be asked
    for is said by `StatisticOfHeld.on_samples`. A sample serves for one answer, and for one release if the answer was
    to go on; after the vector has stopped, samples that were not tested serve for the releases that are left.

    Args:
        threshold, epsilon_threshold, epsilon_queries, reversed, bad_event_delta: see `SparseTest`.
        rate: with which a unit is in a sample.
        noise_multiplier: of the releases, over the sensitivity given who was drawn.
        tests: how many samples, answers and releases there are at most.
    Privacy:
        See `ledger.privacy_losses`. A release after the vector stopped is one on a sample of rate g <= g', which the
        answers say nothing about: a further step of the processes A and B of that proof. There are at most `tests`
        releases in all.
    """

    __test__: ClassVar[bool] = False  # no class of tests

    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"answer": Request(fed=True), "mean": Request(fed=True)}
    )

    rate: float = 1.0
    noise_multiplier: float = 1.0
    tests: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reversed:
            raise ValueError("tests on samples go on while they pass: use reversed=True.")
        Poisson(self.rate)
        Gaussian(self.noise_multiplier)
        if self.tests < 1:
            raise ValueError(
                f"tests must be at least 1, got {self.tests!r}: how many samples there are at most."
            )

    @property
    def sampling(self) -> Poisson:
        """How every sample is drawn."""
        return Poisson(self.rate)

    def event(self) -> Event:
        """All the tests and releases, and the bad event."""
        total = self.epsilon_threshold + self.epsilon_queries
        if self.noise_multiplier == 0 or not np.isfinite(total):
            return NonPrivateEvent()
        tested = TestedSampleEvent(
            rate=self.rate,
            noise_multiplier=self.noise_multiplier,
            tests=self.tests,
            epsilon_threshold=self.epsilon_threshold,
            epsilon_queries=self.epsilon_queries,
        )
        return Sequence((tested, DeltaEvent(self.bad_event_delta)))

    def mean(
        self,
        state: AboveThresholdState,
        noise: Noise,
        private_value: ArrayLike,
        sensitivity: SupportsFloat,
    ) -> NDArray[np.float64]:
        """Release a statistic of the sample.

        Args:
            state: from `open`.
            noise: the secret stream.
            private_value: the statistic.
            sensitivity: how far one unit moves it, given who was drawn. Public.
        """
        del state
        return Gaussian(self.noise_multiplier).release(noise, private_value, sensitivity)
