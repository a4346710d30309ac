"""Tests on fresh secret samples, each with a Gaussian release on the same sample: a stream with a price of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import DeltaEvent, Event, NonPrivateEvent, Sequence, TestedSampleEvent
from privopt.ledger.sampling import Poisson
from privopt.mechanisms.above_threshold import AboveThresholdState
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import Request
from privopt.mechanisms.noise import Noise
from privopt.mechanisms.sparse_test import SparseTest


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
        See `ledger.tested_samples`. A release after the vector stopped is one on a sample of rate g <= g', which the
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
