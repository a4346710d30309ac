"""Ends of an optimisation over all the records: a minimiser, and the last of a number of proximal gradient steps."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jax
from privopt.ledger.events import EveryUnit, Sampling
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.objective_perturbation import LARGEST_NORMAL, ObjectiveNoise, PassNoise
from privopt.problems.problem import Problem
from privopt.proofs.contraction import geometric_sum, largest_step
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.proofs.one_pass import GrowingBatches, PassSteps, Records
from privopt.public import Public
from privopt.queries.base import ArgminQuery, ObjectiveQuery, PassQuery, RowShaped, query, static


@query
class HuberisedMinimiser(RowShaped, ObjectiveQuery):
    """The minimiser of the regularised sum of Huberised losses, see `proofs.huberised_objective`.

    Attributes:
        problem: a convex generalised-linear loss of the library, with penalty and set.
        clip: C, the largest norm of one record's gradient; infinite only when privacy is switched off.
        ridge: the least ridge weight on the scale of the mean; coordinates with less get it.
    Privacy:
        J is strongly convex with modulus Lam, and neighbours' gradients differ by at most factor * C at any point, so
        the exact minimisers are within factor * C / Lam. Each computed one has a subgradient of at most tau, hence
        lies within tau / Lam of its own: l2 sensitivity (factor * C + 2 tau) / Lam.
    Source:
        Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1 and Lemma 7; the residual's part is ours.
    """

    problem: Problem = static()
    clip: float = static()
    ridge: float = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> float:
        """(factor * C + 2 tau) / Lam."""
        del sampling
        objective = self.objective(public)
        if not objective.modulus > 0.0:
            raise ValueError(
                "the minimiser needs a ridge on every coordinate: give the problem one, or raise `ridge`."
            )
        if math.isinf(self.clip):
            return math.inf
        return (public.relation.factor * self.clip + 2.0 * objective.tolerance(0.0)) / objective.modulus

    def objective(self, public: Public) -> HuberisedObjective:
        """J."""
        return _objective(self, public, self.ridge)

    def value(self, public: Public, private_sum: LossSum) -> NDArray[np.float64]:
        """The minimiser; unless privacy is switched off, it is computed until its certificate holds."""
        objective, clipped = self.objective(public), math.isfinite(self.clip)
        tolerance = objective.tolerance(0.0) if clipped else 0.0
        rounds = None if clipped else ROUNDS_WITHOUT_PRIVACY
        return objective.minimiser(private_sum, np.zeros(public.d), tolerance, rounds)


@query
class DescentEnd(RowShaped, ObjectiveQuery):
    """The last iterate of proximal gradient steps on the mean of Huberised losses plus penalty, within the set.

        w <- P( prox_{eta r}( w - eta (mean of clipped gradients + ridge gradient) ) )

    Attributes:
        problem: a convex generalised-linear loss of the library, with penalty and set.
        clip: C, the largest norm of one record's gradient; infinite only when privacy is switched off.
        start: public first iterate.
        step_size: eta, at most 2 / (L + mu); L includes the ridge.
        steps: T.
    Privacy:
        The mean of Huberised losses plus the ridge is L-smooth and mu-strongly convex, L = sup phi'' R^2 + the largest
        ridge weight, by its formula and the row bound. A gradient step with eta <= 2 / (L + mu) then contracts
        distances by 1 - eta mu, proximal maps and projections do not expand them, and one record moves a mean gradient
        by at most factor * C / n: after T steps by at most the geometric sum, l2 sensitivity
        `(factor C eta / n) (1 - (1 - eta mu)^T) / (eta mu)`, or `factor C eta T / n` for mu = 0. The rounding of T
        steps on both sides is added.
        A block drawn under add-or-remove-one may hold m > n records, and the mean over n of them would not contract;
        it is the mean over max(m, n). One more record g then moves it by (g - mean) / (m + 1), at most 2 C / (n + 1).
    Source:
        Zhang, Zheng, Mou, Wang 2017, Algorithm 1; Hardt, Recht, Singer 2016, Lemma 3.7 (contraction).
    """

    problem: Problem = static()
    clip: float = static()
    start: Float[Array, " d"]
    step_size: float = static()
    steps: int = static()

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> float:
        """The geometric sum, and the rounding of both sides.

        Raises:
            ValueError: the step size is too large for the argument.
        """
        del sampling
        objective = self.objective(public)
        largest = largest_step(self.problem, public)
        if not 0.0 < self.step_size <= largest * (1.0 + 1e-12):
            raise ValueError(
                f"step_size must be positive and at most 2 / (L + mu) = {largest:.6g}, got {self.step_size!r}: beyond "
                "it a step may push neighbouring iterates apart."
            )
        if self.steps == 0:
            return 0.0
        if math.isinf(self.clip):
            return math.inf
        stay = geometric_sum(self.step_size * objective.strength, self.steps)
        one = 2.0 / (public.n + 1) if public.drawn else public.relation.factor / public.n
        moved = one * self.clip * self.step_size * stay
        return moved + 2.0 * self.steps * self._rounding(objective)

    def objective(self, public: Public) -> HuberisedObjective:
        """J, with the ridges of the problem alone."""
        return _objective(self, public, 0.0)

    def value(self, public: Public, private_sum: LossSum) -> NDArray[np.float64]:
        """T steps over all the records."""
        objective = self.objective(public)
        # A block drawn at random may hold more than its public number; the mean must still contract.
        private_share = 1.0 / max(public.n, private_sum.private_rows)
        private_params = np.asarray(self.start, np.float64)
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            for _ in range(self.steps):
                private_mean = private_share * private_sum.gradient(private_params)
                private_slope = private_mean + objective.ridge_gradient(private_params) / public.n
                private_moved = private_params - self.step_size * private_slope
                private_params = np.asarray(_prox(self.problem, private_moved, self.step_size))
        return private_params

    def _rounding(self, objective: HuberisedObjective) -> float:
        """A bound on what rounding adds to one step: gradient, subtraction, proximal map and projection."""
        pull = self.step_size * objective.gradient_bound
        home = float(np.linalg.norm(np.asarray(self.problem.constraint.project(0.0 * self.start))))
        first = float(np.linalg.norm(np.asarray(self.start)))
        length = first + self.steps * (pull + home)
        gradient = self.step_size * objective.rounding(length) / objective.units
        return gradient + 2.0**-53 * (4.0 * objective.width + 64.0) * (length + pull)


def _objective(of: HuberisedMinimiser | DescentEnd, public: Public, ridge: float) -> HuberisedObjective:
    return HuberisedObjective(
        problem=of.problem,
        ridge=ridge,
        clip=of.clip,
        units=public.n,
        width=public.d,
        row_bound=public.row_bound,
    )


@partial(jax.jit, static_argnames=("problem",))
def _prox(problem: Problem, params: Float[Array, " d"], step: float) -> Float[Array, " d"]:
    return problem.prox(params, step)


# ---- The minimiser of a convex objective with noise in its linear term -------------------------------------


ROUNDS_WITHOUT_PRIVACY = 200


@query
class PerturbedMinimiser(RowShaped, ArgminQuery):
    """The minimiser of `J(w) + <b, w>` as a function of the noise, J as in `proofs.huberised_objective`.

    Attributes:
        problem: a convex generalised-linear loss of the library, with penalty and set.
        clip: C, the largest norm of one record's gradient by v; infinite only when privacy is switched off.
        ridge: the least ridge weight on the scale of the mean; coordinates with less get it.
        matrix: B of w = B v, (d, d), public or released; None for the identity. The noise is isotropic in v: the
            linear term by w is B^-T times it.
    Privacy:
        A solution w belongs to exactly one v-noise up to the subgradients of r, which no record enters:
        `b(w) = -B^T (sum of clipped gradients at w + n ridges w)`. At a fixed w it moves by the difference of two
        clipped gradients, or by one: l2 sensitivity factor * C. The change of volume is the mechanism's business: for
        rows of norm at most R, `det(I + h a a^T M^-1)` with `h <= sup phi''` and `M >= Lam I` lies within
        `[1, 1 + beta / Lam]`, `beta = sup phi'' R^2`, in the coordinates w and hence in all others.
    Source:
        Kifer, Smith, Thakurta 2012; Redberg, Koskela, Wang 2023. Huberised losses: Song, Steinke, Thakurta, Thakurta
        2021.
    """

    problem: Problem = static()
    clip: float = static()
    ridge: float = static()
    matrix: Float[Array, "d d"] | None = None

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> float:
        """factor * C, of the implied noise on the scale of the sum."""
        del sampling
        return public.relation.factor * self.clip

    def objective(self, public: Public) -> HuberisedObjective:
        """J, from public numbers.

        Raises:
            ValueError: the proof does not cover the problem.
        """
        matrix = None if self.matrix is None else np.asarray(self.matrix, np.float64)
        return HuberisedObjective(
            problem=self.problem,
            ridge=self.ridge,
            clip=self.clip,
            units=public.n,
            width=public.d,
            row_bound=public.row_bound,
            matrix=matrix,
        )

    def mechanism(
        self, noise_multiplier: float, public: Public, *, output_share: float = 0.05
    ) -> ObjectiveNoise:
        """The mechanism that fits this query: its shift, tolerance and modulus come from here and nowhere else.

        Raises:
            ValueError: the proof does not cover the problem, or nothing makes it strongly convex.
        """
        objective = self.objective(public)
        if not objective.modulus > 0.0:
            raise ValueError(
                "objective perturbation needs a ridge on every coordinate: give the problem one, or raise `ridge`."
            )
        stddev = noise_multiplier * self.sensitivity(public) if noise_multiplier > 0 else 0.0
        if noise_multiplier > 0 and math.isinf(self.clip):
            raise ValueError(
                "clip must be finite where there is noise: no noise hides an unbounded gradient."
            )
        tilt = LARGEST_NORMAL * stddev * math.sqrt(public.d) * objective.outward
        return ObjectiveNoise(
            noise_multiplier=noise_multiplier,
            shift=objective.volume_shift,
            two_signed=not objective.loss.monotone,
            size=public.d,
            tolerance=objective.tolerance(tilt) if noise_multiplier > 0 else 0.0,
            modulus=objective.modulus,
            output_share=output_share,
        )

    def require_mechanism(self, mechanism: Mechanism | StreamMechanism, public: Public) -> None:
        """Refuse every mechanism but the one made by `mechanism` for these data."""
        if isinstance(mechanism, ObjectiveNoise):
            right = self.mechanism(mechanism.noise_multiplier, public, output_share=mechanism.output_share)
            if mechanism == right:
                return
            raise ValueError(
                f"the mechanism was made for another objective: it has shift {mechanism.shift:.6g} and modulus "
                f"{mechanism.modulus:.6g}, this one needs {right.shift:.6g} and {right.modulus:.6g}. Make it by "
                "`query.mechanism(noise_multiplier, public)`."
            )
        super().require_mechanism(mechanism, public)

    def minimise(
        self, public: Public, private_sum: LossSum, noise: NDArray[np.float64], tolerance: float
    ) -> NDArray[np.float64]:
        """The minimiser, to a subgradient of norm at most `tolerance` by w.

        It never gives up, unless privacy is switched off: a cap on the rounds would be an event that depends on data.
        """
        objective = self.objective(public)
        tilt = noise
        if objective.matrix is not None:
            tilt = np.asarray(np.linalg.solve(objective.matrix.T, noise), np.float64)
        rounds = None if tolerance > 0.0 else ROUNDS_WITHOUT_PRIVACY
        return objective.minimiser(private_sum, tilt, tolerance, rounds)

    def implied_noise(
        self, public: Public, private_sum: LossSum, solution: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The v-noise whose minimiser is `solution`, up to the subgradients of r, which no record enters."""
        objective, solution = self.objective(public), np.asarray(solution, np.float64)
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            private_noise = -(private_sum.gradient(solution) + objective.ridge_gradient(solution))
            return private_noise if objective.matrix is None else objective.matrix.T @ private_noise


# ------------------------------------------------------------------------------------------------------------
# Ends of one pass over the records: the average of its iterates, and its last iterate with noise at every
# step.


Vector = NDArray[np.float64]
Draw = Callable[[int], Vector]


@query
class PassAverage(RowShaped, PassQuery):
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
class NoisyPass(RowShaped, PassQuery):
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
