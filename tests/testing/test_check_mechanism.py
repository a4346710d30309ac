"""A mechanism that breaks its promise is told by the name of its fault; the library's own pass."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from privopt.ledger.events import GaussianEvent, PureEvent
from privopt.mechanisms.additive import AdditiveNoise, Gaussian, Laplace
from privopt.mechanisms.base import host_release
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import banded
from privopt.mechanisms.tests import AboveThreshold, AboveThresholdState
from privopt.testing import ContractViolation, Rule, check_mechanism

SOUND = [
    Gaussian(0.3),
    Gaussian(2.0),
    Gaussian(60.0),
    Gaussian(0.0),
    Laplace(0.5),
    Laplace(8.0),
    ExponentialMechanism(0.5),
    ExponentialMechanism(np.inf),
    PermuteAndFlip(2.0),
    AboveThreshold(0.5, 0.1, 0.1),
    PrefixSum(strategy=banded(6, 3), noise_multiplier=2.0),
]


@pytest.mark.later(
    "ExponentialMechanism(epsilon=0.5)",
    "Gaussian(noise_multiplier=0.3)",
    "Laplace(noise_multiplier=0.5)",
    "Laplace(noise_multiplier=8.0)",
    "PermuteAndFlip(epsilon=2.0)",
)
@pytest.mark.parametrize("mechanism", SOUND, ids=repr)
def test_the_mechanisms_of_the_library_pass(mechanism):
    check_mechanism(mechanism)


class OfANormal(AdditiveNoise):
    """Gaussian noise, written anew."""

    def event(self):
        return GaussianEvent(self.noise_multiplier)

    def standard(self, noise, shape):
        return noise.normal(shape)


@dataclass(frozen=True)
class HalfTheNoise(OfANormal):
    def standard(self, noise, shape):
        return 0.5 * noise.normal(shape)


@dataclass(frozen=True)
class LittleNoiseAfterTheFirst(OfANormal):
    def standard(self, noise, shape):
        drawn = np.asarray(noise.normal(shape))
        drawn[..., 1:] *= 0.1
        return drawn


@dataclass(frozen=True)
class HalfTheNoiseByAName(OfANormal):
    """It is priced by a number that does not name its noise."""

    def event(self):
        return PureEvent(0.5)

    def standard(self, noise, shape):
        return noise.laplace(shape)


@dataclass(frozen=True)
class SameNoiseAgain(OfANormal):
    """It keeps what it drew, by the shape."""

    kept: dict = field(default_factory=dict, compare=False, hash=False)

    def standard(self, noise, shape):
        return self.kept.setdefault(shape, noise.normal(shape))


@dataclass(frozen=True)
class OneDrawForAll(OfANormal):
    def standard(self, noise, shape):
        return np.full(shape, noise.normal(()))


@dataclass(frozen=True)
class NoiseOfAFixedSize(OfANormal):
    """Its noise does not grow with the sensitivity."""

    def release(self, noise, private_value, sensitivity):
        drawn = self.draw(noise, np.shape(private_value))
        return host_release(private_value, sensitivity, 0.0, drawn) + self.noise_multiplier * drawn * (
            float(sensitivity) > 0
        )

    def combine(self, private_value, sensitivity, standard_noise):
        return private_value + self.noise_multiplier * standard_noise


@dataclass(frozen=True)
class TakesAnything(OfANormal):
    def release(self, noise, private_value, sensitivity):
        scale = abs(float(sensitivity))
        return private_value + self.noise_multiplier * scale * noise.normal(np.shape(private_value))


@dataclass(frozen=True)
class AnotherLoop(OfANormal):
    def combine(self, private_value, sensitivity, standard_noise):
        return super().combine(private_value, sensitivity, 0.9 * standard_noise)


@dataclass(frozen=True)
class OneNumber(OfANormal):
    def release(self, noise, private_value, sensitivity):
        return np.sum(super().release(noise, private_value, sensitivity))


@dataclass
class NotFrozen(OfANormal.__mro__[2]):
    noise_multiplier: float = 1.0

    def event(self):
        return GaussianEvent(self.noise_multiplier)

    noise_shape = AdditiveNoise.noise_shape
    draw = AdditiveNoise.draw
    combine = AdditiveNoise.combine
    release = AdditiveNoise.release


class PrintedState(AboveThresholdState):
    def __repr__(self):
        return f"threshold noise {self.threshold_noise}"


class PrintsItsState(AboveThreshold):
    def open(self, noise, shape):
        return PrintedState(float(noise.laplace(())))


class AnswersNothing(AboveThreshold):
    answer = None


FAULTY = [
    (HalfTheNoise(2.0), Rule.NOISE_AMOUNT),
    (HalfTheNoise(60.0), Rule.NOISE_AMOUNT),
    (LittleNoiseAfterTheFirst(2.0), Rule.NOISE_AMOUNT),
    (HalfTheNoiseByAName(1.0), Rule.NOISE_AMOUNT),
    (SameNoiseAgain(2.0), Rule.NOISE_REUSED),
    (OneDrawForAll(2.0), Rule.NOISE_REUSED),
    (NoiseOfAFixedSize(2.0), Rule.GUARDS),
    (TakesAnything(2.0), Rule.GUARDS),
    (AnotherLoop(2.0), Rule.PATHS),
    (OneNumber(2.0), Rule.SHAPE),
    (NotFrozen(2.0), Rule.VALUE),
    (PrintsItsState(0.5, 0.1, 0.1), Rule.HIDDEN),
    (AnswersNothing(0.5, 0.1, 0.1), Rule.VALUE),
]


@pytest.mark.parametrize(("mechanism", "rule"), FAULTY, ids=lambda one: type(one).__name__)
def test_a_faulty_mechanism_is_told_by_the_name_of_its_fault(mechanism, rule):
    with pytest.raises(ContractViolation, match=rule.value) as raised:
        check_mechanism(mechanism)
    assert raised.value.rule is rule
