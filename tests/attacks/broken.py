"""What is broken, one mistake each, and the name under which an attack must find it."""

import dataclasses

import numpy as np
from examples.plain_descent import PlainDescent

from privopt.attacks.lockstep import SideCurator
from privopt.attacks.optimal import optimal_attack
from privopt.attacks.subjects import SUBJECTS, descent
from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome
from privopt.status import Status


class ClipForgotten(SideCurator):
    """Sums gradients as they are."""

    def private_value(self, query, sampling, private_draw):
        return super().private_value(dataclasses.replace(query, clip=1e3), sampling, private_draw)


class SensitivityHalved(SideCurator):
    """Takes half the sensitivity."""

    def _answer(self, query, mechanism, sampling, sensitivity):
        return super()._answer(query, mechanism, sampling, sensitivity / 2)


class NoiseReused:
    """Noise that is drawn once."""

    def __init__(self, seed=None):
        self._noise, self._drawn = NoiseSource(seed), {}

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def rounded_normal(self, shape, exponent):
        return self._drawn.setdefault(shape, self._noise.rounded_normal(shape, exponent))


class NoiseCorrelated(NoiseReused):
    """Noise of the right size that resembles the noise before it."""

    def rounded_normal(self, shape, exponent):
        before, drawn = self._drawn.get(shape, 0), self._noise.rounded_normal(shape, exponent)
        self._drawn[shape] = np.rint(0.6 * before + 0.8 * drawn).astype(np.int64)
        return self._drawn[shape]


class NoiseHalved(NoiseReused):
    """Half the noise."""

    def rounded_normal(self, shape, exponent):
        return self._noise.rounded_normal(shape, exponent) // 2


def is_private(curator):
    """Whether there are data to look at: not in the trial before a run is paid for."""
    return isinstance(curator, LocalCurator)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopsByData(PlainDescent):
    """Stops when the gradient is small, the one before noise."""

    def run(self, curator, problem, start):
        for t in range(self.steps):
            query = ClippedGradient(loss=problem.loss, at=start, clip=self.clip)
            if t > 3 and is_private(curator):
                norm = np.linalg.norm(curator.private_value(query, EveryUnit(), None))
                if norm < 0.5 * self.clip:
                    break
            curator.release(query, Gaussian(self.noise_multiplier))
        return Outcome(start, Status.FINISHED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaksN(PlainDescent):
    """Divides by the number of records that there are, in place of the public one."""

    def run(self, curator, problem, start):
        found = PlainDescent.run(self, curator, problem, start)
        count = curator.private_engine.private_count if is_private(curator) else 1
        return found._replace(params=found.params * (self.steps / count))


def descending(kind):
    """Descent of 16 steps by such a solver, as a subject."""
    return descent(kind(steps=16, clip=0.7, step_size=1e-9))


# By the name under which it is found: what to attack, and with what.
BROKEN = {
    "clip forgotten": {"kind": ClipForgotten},
    "sensitivity understated": {"kind": SensitivityHalved},
    "noise reused": {"source": NoiseReused},
    "noise not independent": {"source": NoiseCorrelated},
    "noise too small": {"source": NoiseHalved},
    "stop that follows the data": {"subject": descending(StopsByData)},
    "leaked n": {"subject": descending(LeaksN), "relation": "add-or-remove-one"},
}


def attack_broken(fault, epsilon=1.0, runs=6, **changes):
    """The attack on what is broken in this way."""
    given = {"subject": SUBJECTS["descent"], "runs": runs, "seed": 7} | BROKEN[fault] | changes
    return optimal_attack(given.pop("subject"), Budget(epsilon, 1e-6), **given)
