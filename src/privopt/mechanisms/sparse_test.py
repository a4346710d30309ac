"""Many tests for one price: the sparse vector technique with a threshold that keeps wrong passes rare."""

import math
from dataclasses import dataclass
from typing import SupportsFloat

from privopt.ledger.events import DeltaEvent, Event, Sequence
from privopt.mechanisms.above_threshold import AboveThreshold, AboveThresholdState
from privopt.mechanisms.noise import Noise


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
