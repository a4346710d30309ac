"""The minimiser of a convex objective with noise in its linear term."""

import math

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.objective_perturbation import LARGEST_NORMAL, ObjectiveNoise
from privopt.problems.problem import Problem
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import query, static
from privopt.queries.of_records import ArgminQuery

ROUNDS_WITHOUT_PRIVACY = 200


@query
class PerturbedMinimiser(ArgminQuery):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

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
