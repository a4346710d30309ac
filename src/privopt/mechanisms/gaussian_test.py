"""A Gaussian release that a later release rests on: test first, and release only after a pass."""

from dataclasses import dataclass

from scipy import stats

from privopt.ledger.events import DeltaEvent, Event, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.lattice import noise_exponent, spacing_ratio


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
