"""Objective perturbation: one release, the minimiser of the objective with noise in its linear term.

    J(w) = sum_i phi_c(<a_i, w>, y_i) + n sum_j max(own_j, lam) w_j^2 / 2 + n r(w) + <b, w>,   b ~ N(0, sigma^2 I)

Source: Kifer, Smith, Thakurta 2012, Algorithm 1; Iyengar, Near, Song, Thakkar, Thakurta, Wang 2019, Algorithm 1
(approximate minima); Redberg, Koskela, Wang 2023 (privacy profile).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger.events import Event
from privopt.mechanisms.objective_perturbation import LARGEST_NORMAL, objective_event
from privopt.planning import descent_theory, huberised
from privopt.planning.coordinates import Coordinates
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.minimisers import PerturbedMinimiser
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived

# ---- Defaults and forecast of objective perturbation: the ridge, the two noises, and what they cost --------
# Utility only. What the guarantee rests on, the shift c and the sign of the slopes, is read off the query that will be
# released.
LEAST_SHARE, LARGEST_SHARE = 1e-3, 0.3
ROUNDING_LIMITS = (
    "the ridge is so small for this many units that rounding limits the accuracy of the minimiser, and much of the "
    "noise hides that: a larger `ridge_total` may be more accurate."
)


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Solver):
    """Objective perturbation with approximate minima, for convex generalised-linear losses.

    Attributes:
        clip: C, the largest norm of one record's gradient; by default the largest that the loss and the row bound
            allow, and the row bound for a loss without one.
        ridge_total: lam, the least ridge weight of the mean objective; coordinates with less get it.
        output_share: mu of the noise that hides the residual, over mu of the noise inside the objective.
        shift: c = ln(1 + beta / (n lam)); always derived, whatever is given.
        two_signed: whether a record's slope can have either sign; always derived.
    Guarantee:
        The minimiser satisfies `delta(eps) = GaussianDelta(mu, eps - c)` with mu = factor C / sigma for eps >= c (the
        folded curve for slopes of either sign) under the curator's relation, and it is released through a second
        Gaussian of 2 tau / (n lam), tau the certified residual: for any records, of losses, penalties and sets of this
        library. The running time depends on the data and is not protected.
    Differs from the paper:
        losses are Huberised instead of assumed Lipschitz; the noise is set from the exact profile instead of
        `sqrt(8 ln(2/delta) + 4 eps) C / eps`; slopes of one sign cost no more than one Gaussian release; the ridge is
        set by the noise instead of by `2 beta / eps`; the residual's noise gets the share of the budget that its size
        calls for.
    Source:
        Kifer, Smith, Thakurta 2012; Iyengar et al. 2019; Redberg, Koskela, Wang 2023.
    """

    name: ClassVar[str] = "objective-perturbation"
    for_convex: ClassVar[str] = "its privacy and its bound"
    preconditions: ClassVar[bool] = True

    clip: float = derived(above=0)
    ridge_total: float = derived(at_least=0, below=math.inf)
    output_share: float = derived(above=0, below=math.inf)
    shift: float = derived(at_least=0)
    two_signed: bool = derived()

    def default_clip(self, instance: Instance) -> float:
        return huberised.default_clip(instance)

    def default_ridge_total(self, instance: Instance) -> float:
        return huberised.default_ridge(instance, self.clip)

    def default_shift(self, instance: Instance) -> float:
        """c = ln(1 + beta / (n lam)).

        Raises:
            ValueError: the ridge is too small, for the proof or for the budget.
        """
        public, epsilon = instance.public, instance.budget.epsilon
        objective = self.query(instance.problem).objective(public)
        if not objective.modulus > 0.0:
            raise ValueError(
                f"ridge_total must be positive where the penalty leaves coordinates without a ridge, got "
                f"{self.ridge_total!r}: the proof needs strong convexity in every direction."
            )
        if objective.volume_shift >= epsilon:
            least = objective.curvature / (public.n * math.expm1(epsilon))
            raise ValueError(
                f"ridge_total {self.ridge_total:.3g} is too small for epsilon {epsilon:g}: it must exceed {least:.3g}, "
                "and ten times that leaves most of the budget to the noise. Leave it out to have it chosen."
            )
        return objective.volume_shift

    def default_two_signed(self, instance: Instance) -> bool:
        """Whether a record's slope can have either sign."""
        return not self.query(instance.problem).objective(instance.public).loss.monotone

    def default_output_share(self, instance: Instance) -> float:
        """f: mu of the second noise over mu of the first.

        The second noise has standard deviation 2 tau / (Lam f mu) and costs `tr(H) / 2` times its square, the first
        costs at least `s^2 d^2 / (2 tr(H))`; with a^2 the ratio of the two at f = 1, the excess is `1 + f^2 + a^2 /
        f^2` times the first's alone, least at f = sqrt(a).
        """
        if not instance.is_private:
            return LEAST_SHARE
        public, query = instance.public, self.query(instance.problem)
        objective, sensitivity = query.objective(public), query.sensitivity(public)
        multiplier = 1.0 / instance.mu
        tilt = LARGEST_NORMAL * multiplier * sensitivity * math.sqrt(public.d)
        trace = objective.curvature + public.d * objective.strength
        ratio = 2.0 * objective.tolerance(tilt) * trace / (objective.strength * sensitivity * public.d)
        return min(LARGEST_SHARE, max(LEAST_SHARE, math.sqrt(ratio)))

    def event(self, public: Public) -> Event:
        """One release: the noise inside the objective, and the one that hides the residual."""
        del public
        return objective_event(
            self.noise_multiplier, self.shift, two_signed=self.two_signed, output_share=self.output_share
        )

    def releases(self) -> int:
        return 1

    def passes(self) -> float:
        """A typical number of Newton steps, with two passes each; the true one depends on the data."""
        return huberised.TYPICAL_PASSES

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records, and formulas that the proof covers."""
        return huberised.obstacle(problem, public)

    def filled(self, instance: Instance) -> Self:
        """As for every solver; what the price rests on follows from the instance and is never taken over.

        Raises:
            ValueError: the problem is not covered, or the ridge is too small for the budget.
        """
        fresh = self.with_(shift=None, two_signed=None)
        return super(ObjectivePerturbation, fresh).filled(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """The leading term at the least curvature, the added ridge's cost of a far optimum, the second noise."""
        notices = huberised.added_ridge(instance, self.ridge_total, needed_by="objective perturbation")
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=(*notices, NOISE_IS_OFF))
        excess = self._predicted_excess(instance)
        notices += large_delta(instance)
        if self.output_share >= LARGEST_SHARE:
            notices += (ROUNDING_LIMITS,)
        return Forecast(
            excess=excess, meaning=huberised.meaning(instance), notices=(*notices, huberised.RUNNING_TIME)
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same event with the clip of v: shift and ridge are those of w."""
        return self.with_(clip=coordinates.clip)

    def query(self, problem: Problem, matrix: Array | None = None) -> PerturbedMinimiser:
        """What is released; `matrix` is B of the coordinates in which the noise is isotropic."""
        return PerturbedMinimiser(
            problem=problem, clip=float(self.clip), ridge=self.ridge_total, matrix=matrix
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """One release; the start does not matter."""
        del start
        return self._released(curator, self.query(problem))

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Noise that is isotropic in v, on the original rows and with the original ridge: `b = B^-T N(0, sigma^2 I)`.

        The determinant term stays what it is in w, so the event does not change.
        """
        del start
        return self._released(curator, self.query(problem, jnp.asarray(coordinates.matrix)))

    def _released(self, curator: Curator, query: PerturbedMinimiser) -> Outcome:
        mechanism = query.mechanism(self.noise_multiplier, curator.public, output_share=self.output_share)
        return Outcome(curator.release(query, mechanism), Status.FINISHED)

    def _predicted_excess(self, instance: Instance) -> float:
        own = huberised.least_ridge(instance)
        strength = max(self.ridge_total, own)
        noise = descent_theory.noise_of_one(instance, self.clip)
        excess = 0.5 * noise**2 * instance.public.d / strength
        excess += 0.5 * max(0.0, strength - own) * huberised.distance(instance) ** 2
        second = self.query(instance.problem).mechanism(
            1.0 / instance.mu, instance.public, output_share=self.output_share
        )
        return excess + 0.5 * second.output_stddev**2 * huberised.hessian_trace(instance, strength)
