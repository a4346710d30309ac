"""Objective perturbation: one release, the minimiser of the objective with noise in its linear term.

    J(w) = sum_i phi_c(<a_i, w>, y_i) + n sum_j max(own_j, lam) w_j^2 / 2 + n r(w) + <b, w>,   b ~ N(0, sigma^2 I)

Source: Kifer, Smith, Thakurta 2012, Algorithm 1; Iyengar, Near, Song, Thakkar, Thakurta, Wang 2019, Algorithm 1
(approximate minima); Redberg, Koskela, Wang 2023 (privacy profile).
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.objective_perturbation import objective_event
from privopt.planning import descent_defaults, huberised, notices
from privopt.planning.coordinates import Coordinates
from privopt.problems.problem import Problem
from privopt.proofs.huberised_objective import own_ridge
from privopt.public import Public
from privopt.queries.perturbed_minimiser import LARGEST_NORMAL, PerturbedMinimiser, volume_shift
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver, required

LEAST_SHARE, LARGEST_SHARE = 1e-3, 0.3


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Solver):
    """Objective perturbation with approximate minima, for convex generalised-linear losses.

    Attributes:
        clip: C, the largest norm of one record's gradient; by default the largest that the loss and the row bound
            allow, and the row bound for a loss without one.
        ridge_total: lam, the least ridge weight of the mean objective; coordinates with less get it.
        output_share: mu of the noise that hides the residual, over mu of the noise inside the objective.
        shift: c = ln(1 + beta / (n lam)), derived.
        two_signed: whether a record's slope can have either sign, derived.
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

    clip: float | None = None
    ridge_total: float | None = None
    output_share: float | None = None
    shift: float | None = None
    two_signed: bool | None = None

    preconditions: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The solver's name."""
        return "objective-perturbation"

    def event(self, public: Public) -> Event:
        """One release: the noise inside the objective, and the one that hides the residual."""
        del public
        return objective_event(
            required(self.noise_multiplier, "noise_multiplier"),
            required(self.shift, "shift"),
            two_signed=required(self.two_signed, "two_signed"),
            output_share=required(self.output_share, "output_share"),
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records, and formulas that the proof covers."""
        return huberised.obstacle(problem, public)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Clip, ridge and share from public quantities.

        Raises:
            ValueError: the problem is not covered, or the given ridge is too small for the budget.
        """
        self.check_applicable(problem, public)
        clip = huberised.default_clip(problem, public, budget) if self.clip is None else self.clip
        ridge = self.ridge_total
        if ridge is None:
            ridge = huberised.default_ridge(problem, public, budget, clip)
        query = PerturbedMinimiser(problem=problem, clip=clip, ridge=ridge)
        objective = query.objective(public)
        if not objective.modulus > 0.0:
            raise ValueError(
                "ridge_total must be positive where the penalty leaves coordinates without a ridge: the proof needs "
                "strong convexity in every direction."
            )
        shift = volume_shift(objective)
        if shift >= budget.epsilon:
            least = objective.curvature / (public.n * math.expm1(budget.epsilon))
            raise ValueError(
                f"ridge_total {ridge:.3g} is too small for epsilon {budget.epsilon:g}: it must exceed {least:.3g}, and "
                "ten times that leaves most of the budget to the noise. Leave it out to have it chosen."
            )
        share = self.output_share
        if share is None:
            share = default_share(query, public, budget)
        return replace(
            self,
            clip=clip,
            ridge_total=ridge,
            output_share=share,
            shift=shift,
            two_signed=not objective.loss.monotone,
        )

    def releases(self) -> int:
        """One."""
        return 1

    def passes(self) -> float:
        """A typical number of Newton steps, with two passes each; the true one depends on the data."""
        return huberised.TYPICAL_PASSES

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The leading term at the least curvature, plus what the added ridge costs a far optimum."""
        if not budget.is_private:
            return 0.0, "the noise is off"
        strength = self._strength(problem, public)
        noise = descent_defaults.noise_of_one(public, budget, required(self.clip, "clip"))
        added = strength - float(min(own_ridge(problem, public.d)))
        radius = 10.0 / public.row_bound
        excess = 0.5 * noise**2 * public.d / strength + 0.5 * max(0.0, added) * radius**2
        excess += 0.5 * self._residual_noise(problem, public, budget) ** 2 * self._trace(problem, public)
        return excess, f"an upper estimate for an optimum within {radius:.3g} of zero"

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What was added to the objective, and what is not protected."""
        ridge = required(self.ridge_total, "ridge_total")
        found = huberised.added_ridge(problem, public, ridge, needed_by="objective perturbation")
        if not budget.is_private:
            return (*found, notices.NOISE_IS_OFF)
        found += notices.large_delta(public, budget)
        if required(self.output_share, "output_share") >= LARGEST_SHARE:
            found += (
                "the ridge is so small for this many units that rounding limits the accuracy of the minimiser, and "
                "much of the noise hides that: a larger `ridge_total` may be more accurate.",
            )
        return (*found, huberised.RUNNING_TIME)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same event with the clip of v: shift and ridge are those of w."""
        return replace(self, clip=coordinates.clip)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """One release; the start does not matter."""
        del start
        return Outcome(
            self._released(curator, self._query(problem, required(self.clip, "clip"), None)), Status.FINISHED
        )

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Noise that is isotropic in v, on the original rows and with the original ridge: `b = B^-T N(0, sigma^2 I)`.

        The determinant term stays what it is in w, so the event does not change.
        """
        del start
        query = self._query(problem, coordinates.clip, jnp.asarray(coordinates.matrix))
        return Outcome(self._released(curator, query), Status.FINISHED)

    def _query(self, problem: Problem, clip: float, matrix: Array | None) -> PerturbedMinimiser:
        ridge = required(self.ridge_total, "ridge_total")
        return PerturbedMinimiser(problem=problem, clip=float(clip), ridge=ridge, matrix=matrix)

    def _released(self, curator: Curator, query: PerturbedMinimiser) -> Array:
        mechanism = query.mechanism(
            required(self.noise_multiplier, "noise_multiplier"),
            curator.public,
            output_share=required(self.output_share, "output_share"),
        )
        return curator.release(query, mechanism)

    def _residual_noise(self, problem: Problem, public: Public, budget: Budget) -> float:
        """The standard deviation of the second noise."""
        query = self._query(problem, required(self.clip, "clip"), None)
        multiplier = 1.0 / gaussian_mu(budget.epsilon, budget.delta)
        share = required(self.output_share, "output_share")
        return query.mechanism(multiplier, public, output_share=share).output_stddev

    def _trace(self, problem: Problem, public: Public) -> float:
        """A bound on the trace of the Hessian of the mean."""
        curvature = problem.loss.curvature * public.row_bound**2
        return curvature + public.d * self._strength(problem, public)

    def _strength(self, problem: Problem, public: Public) -> float:
        own = own_ridge(problem, public.d)
        return max(required(self.ridge_total, "ridge_total"), float(min(own)))


def default_share(query: PerturbedMinimiser, public: Public, budget: Budget) -> float:
    """f: mu of the second noise over mu of the first.

    The second noise has standard deviation 2 tau / (Lam f mu) and costs `tr(H) / 2` times its square, the first costs
    at least `s^2 d^2 / (2 tr(H))`; with a^2 the ratio of the two at f = 1, the excess is `1 + f^2 + a^2 / f^2` times
    the first's alone, least at f = sqrt(a).
    """
    if not budget.is_private:
        return LEAST_SHARE
    objective = query.objective(public)
    sensitivity = query.sensitivity(public)
    multiplier = 1.0 / gaussian_mu(budget.epsilon, budget.delta)
    tilt = LARGEST_NORMAL * multiplier * sensitivity * math.sqrt(public.d)
    trace = objective.curvature + public.d * objective.strength
    ratio = 2.0 * objective.tolerance(tilt) * trace / (objective.strength * sensitivity * public.d)
    return min(LARGEST_SHARE, max(LEAST_SHARE, math.sqrt(ratio)))
