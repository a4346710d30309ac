"""Ends of one pass over the records: the average of its iterates, and its last iterate with noise at every step."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.objective_perturbation import LARGEST_NORMAL
from privopt.mechanisms.pass_noise import PassNoise
from privopt.problems.problem import Problem
from privopt.proofs.one_pass import GrowingBatches, PassSteps, Records
from privopt.public import Public
from privopt.queries.base import query, static
from privopt.queries.of_records import PassQuery

Vector = NDArray[np.float64]
Draw = Callable[[int], Vector]


@query
class PassAverage(PassQuery):
    """The average of the iterates of one pass, a gradient step a record; see `proofs.one_pass`.

    Attributes:
        problem: a convex generalised-linear loss of the library, a ridge, l1 or an elastic net, a ball or no set.
        clip: C, the largest norm of one record's gradient; infinite only when privacy is switched off.
        start: public first iterate.
        step_size: eta, at most 2 / (L + mu); L includes the ridge.
    Privacy:
        l2 sensitivity 2 eta C, and the rounding of n steps and of their sum on both sides. Replace-one only.
    Source:
        Feldman, Koren, Talwar 2020, Algorithm 2 and Lemma 4.3.
    """

    problem: Problem = static()
    clip: float = static()
    start: Float[Array, " d"]
    step_size: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> float:
        """2 eta C, and the rounding.

        Raises:
            ValueError: the proof does not cover the problem, the relation or the step size.
        """
        del sampling
        steps = self._steps(public)
        if math.isinf(self.clip):
            return math.inf
        length = steps.length(float(np.linalg.norm(np.asarray(self.start))), public.n)
        averaged = (public.n + 2) * 2.0**-53 * length
        return 2.0 * (self.step_size * self.clip + public.n * steps.rounding(length) + averaged)

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

    def mechanism(self, noise_multiplier: float, public: Public) -> PassNoise:
        """The mechanism that fits this query."""
        return PassNoise(noise_multiplier=noise_multiplier, places=public.n, size=public.d, inside=False)

    def require_mechanism(self, mechanism: Mechanism | StreamMechanism, public: Public) -> None:
        """Refuse every mechanism but one made by `mechanism` for these data."""
        multiplier = mechanism.noise_multiplier if isinstance(mechanism, PassNoise) else 0.0
        _require(self, mechanism, self.mechanism(multiplier, public))

    def follow(
        self, public: Public, private_features: Any, private_targets: Vector, order: Vector, draw: Draw
    ) -> Vector:
        """The average; without a look at `draw`."""
        del draw
        return self._average(public, (private_features, private_targets), order)

    def moved(
        self, public: Public, private_left: Records, private_right: Records, order: Vector, draw: Draw
    ) -> float:
        """How far apart the averages of two data sets are."""
        del draw
        left, right = (self._average(public, side, order) for side in (private_left, private_right))
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            return float(np.linalg.norm(left - right))

    def _average(self, public: Public, private_records: Records, order: Any) -> Vector:
        ends = np.ones(public.n, np.int64)
        _, private_total = self._steps(public).run(private_records, order, np.asarray(self.start), ends)
        return private_total / public.n

    def _steps(self, public: Public) -> PassSteps:
        return PassSteps(problem=self.problem, public=public, clip=self.clip, step_size=self.step_size)


@query
class NoisyPass(PassQuery):
    """The last iterate of one pass with noise at every step, on batches of given sizes; see `proofs.one_pass`.

    Attributes:
        problem, clip, start, step_size: as for `PassAverage`.
        noise_multiplier: sigma over the sensitivity; it enters the bound on rounding only.
        batches: B_1, ..., B_T, together at most n; places beyond them are not visited.
    Privacy:
        The sensitivity is that of the noises, on the scale of a mean gradient: for neighbours there are noises at most
        Delta = max over t of 2 C / (B_t sqrt(T - t + 1)), and rounding, apart that lead to the same end, and the later
        noise of one follows from the earlier noise of the other. Replace-one only.
    Source:
        Feldman, Koren, Talwar 2020, Algorithm 1 (Snowball-SGD) and Theorem 3.2.
    """

    problem: Problem = static()
    clip: float = static()
    start: Float[Array, " d"]
    step_size: float = static()
    noise_multiplier: float = static()
    batches: GrowingBatches = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> float:
        """max over t of sqrt(m) (2 C / (B_t m) + 2 e / eta), m = T - t + 1.

        Raises:
            ValueError: the proof does not cover the problem, the relation, the step size or the batches.
        """
        del sampling
        steps = self._steps(public)
        sizes = self.batches.sizes
        if len(sizes) == 0 or int(np.sum(sizes)) > public.n:
            raise ValueError(
                f"the batches need at least one record, and all together at most n = {public.n}, got "
                f"{len(sizes)} batches of {int(np.sum(sizes))} records."
            )
        if math.isinf(self.clip):
            return math.inf
        left = np.arange(len(sizes), 0, -1, dtype=np.float64)
        exact = float(np.max(2.0 * self.clip / (sizes * np.sqrt(left))))
        largest = 2.0 * LARGEST_NORMAL * self.noise_multiplier * exact * math.sqrt(public.d)
        length = steps.length(float(np.linalg.norm(np.asarray(self.start))), len(sizes), largest)
        slack = 2.0 * self._slack(steps, length + steps.step_size * largest)
        stated = float(np.max(np.sqrt(left) * (2.0 * self.clip / (sizes * left) + slack)))
        if not stated <= 2.0 * exact:
            raise ValueError(
                "so many steps of this size are too long for double precision: their rounding would need as much noise "
                "as a record does. Take a smaller step_size, or a ball as constraint."
            )
        return stated

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

    def mechanism(self, public: Public) -> PassNoise:
        """The mechanism that fits this query."""
        return PassNoise(noise_multiplier=self.noise_multiplier, places=public.n, size=public.d, inside=True)

    def require_mechanism(self, mechanism: Mechanism | StreamMechanism, public: Public) -> None:
        """Refuse every mechanism but the one made by `mechanism` for these data."""
        _require(self, mechanism, self.mechanism(public))

    def follow(
        self, public: Public, private_features: Any, private_targets: Vector, order: Any, draw: Draw
    ) -> Vector:
        """The last iterate."""
        visited = order[: len(self.batches.ends)]
        return self._steps(public).run(
            (private_features, private_targets), visited, np.asarray(self.start), self.batches.ends, draw
        )[0]

    def moved(
        self, public: Public, private_left: Records, private_right: Records, order: Any, draw: Draw
    ) -> float:
        """How far the right data's noise must be moved to end where the left data do.

        From the first step at which the iterates differ, the shift of each step takes an equal part of the distance, as
        the proof does it, and the last one all that is left.
        """
        steps, sizes = self._steps(public), self.batches.sizes
        left = right = np.asarray(self.start, np.float64)
        part, squares, first = 0.0, 0.0, 0
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            for t, size in enumerate(sizes):
                places, noise = order[first : first + size], self.step_size * draw(1)[0]
                left, right = (
                    steps.before_noise(side, places, at)
                    for side, at in ((private_left, left), (private_right, right))
                )
                gap = (left - right) / self.step_size
                distance = float(np.linalg.norm(gap))
                if part == 0.0 and distance > 0.0:
                    part = distance / (len(sizes) - t)
                allowed = distance if t == len(sizes) - 1 else min(part, distance)
                shift = gap * (allowed / distance) if distance > 0.0 else np.zeros_like(gap)
                squares, first = squares + allowed**2, first + int(size)
                left = steps.after_noise(left - noise)
                right = steps.after_noise(right + self.step_size * shift - noise)
        return math.sqrt(squares)

    def _slack(self, steps: PassSteps, length: float) -> float:
        return steps.rounding(length, int(np.max(self.batches.sizes))) / self.step_size

    def _steps(self, public: Public) -> PassSteps:
        return PassSteps(problem=self.problem, public=public, clip=self.clip, step_size=self.step_size)


def _require(
    asked: PassAverage | NoisyPass,
    mechanism: Mechanism | StreamMechanism,
    right: PassNoise,
) -> None:
    if mechanism != right:
        raise ValueError(
            f"{asked.name} cannot be released by {mechanism!r}: its order and noise are drawn by the mechanism that "
            "the query makes, `query.mechanism(...)`, for the same data."
        )
