"""Ends of an optimisation over all the records: a minimiser, and the last of a number of proximal gradient steps."""

import math
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.problem import Problem
from privopt.proofs.contraction import geometric_sum, largest_step
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import query, static
from privopt.queries.of_records import ObjectiveQuery
from privopt.queries.perturbed_minimiser import ROUNDS_WITHOUT_PRIVACY


@query
class HuberisedMinimiser(ObjectiveQuery):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

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
class DescentEnd(ObjectiveQuery):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """(d,)."""
        return (public.d,)

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
