"""The sparse vector technique: ask threshold questions until the first hit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, SupportsFloat

from privopt.ledger.events import Event, NonPrivateEvent, PureEvent
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism, checked_sensitivity
from privopt.mechanisms.noise import Noise, Shape


class AboveThresholdState(HiddenState):
    """The noise on the threshold, drawn once, and whether the stream has stopped."""

    __slots__ = ("stopped", "threshold_noise")

    def __init__(self, threshold_noise: float) -> None:
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
        Releases of other mechanisms may stand between the answers; their losses add.
    Source:
        Lyu, Su, Li 2017, Algorithm 1; Lowy, Liu, Asi 2024, Algorithm 4. We draw the threshold's noise once: redrawing
        it after every answer, as printed there, is not private.
    """

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
        """The Laplace scale of the threshold's noise, in units of the sensitivity."""
        return 1.0 / self.epsilon_threshold

    @property
    def query_scale(self) -> float:
        """The Laplace scale of a value's noise, in units of the sensitivity."""
        return 2.0 / self.epsilon_queries

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
        return AboveThresholdState(self.threshold_scale * float(noise.laplace(())))

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
        query_noise = self.query_scale * float(noise.laplace(()))
        private_excess = float(private_value) - self.threshold
        if self.reversed:
            private_excess = -private_excess
        private_distance = private_excess / scale if 0 < scale < math.inf else private_excess
        margin = query_noise - state.threshold_noise if scale > 0 else 0.0
        private_level = private_distance + margin
        state.stopped = private_level > 0 if self.reversed else private_level >= 0
        return state.stopped

    def tail(self, distance: float) -> float:
        """P(nu - xi >= distance), distance in units of the sensitivity: a wrong answer for a value that far away."""
        if distance < 0:
            return 1.0 - self.tail(-distance)
        first, second = self.query_scale, self.threshold_scale
        if first == 0 and second == 0:
            return 0.5 if distance == 0 else 0.0
        if abs(first - second) < 1e-5 * max(first, second):  # the general form cancels; error of order 1e-10
            middle = (first + second) / 2
            return (2 + distance / middle) * math.exp(-distance / middle) / 4

        def weight(scale: float) -> float:
            return scale**2 * math.exp(-distance / scale) if scale > 0 else 0.0

        return (weight(first) - weight(second)) / (2 * (first**2 - second**2))

    def threshold_for(self, failure: float, tests: int) -> float:
        """The distance, in units of the sensitivity, with `tests * tail(distance) = failure`.

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
        lower, upper = 0.0, max(self.query_scale, self.threshold_scale)
        while tests * self.tail(upper) > failure:
            lower, upper = upper, 2 * upper
        while lower < (middle := (lower + upper) / 2) < upper:
            lower, upper = (middle, upper) if tests * self.tail(middle) > failure else (lower, middle)
        return upper
