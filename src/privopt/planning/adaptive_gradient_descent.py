"""Defaults of adaptive gradient descent, and what it can be expected to reach.

With exact norms, noise of a / sqrt(d_eff) times the norm in each coordinate and step size 1 / (L (1 + a^2)), a step
gains |grad F|^2 / (2 L (1 + a^2)) and costs rho = factor^2 L0^2 d_eff / (2 n^2 a^2 |grad F|^2). Integrating one over
the other, with q = factor^2 (1 + 1 / a^2) L0^2 L d_eff / (n^2 rho):

    (gamma, kappa)-KL, kappa < 4:   excess about [q gamma^4 kappa / (4 - kappa)]^(kappa / (4 - kappa))
    any smooth objective:           least |grad F| at most [q gap]^(1/4),
                                    or sqrt(2 L (1 + a^2) gap / T) where the steps run out first

Differs from the paper:
    Its theorem adds the noise of separate norm releases, which dominates for almost all n; here there is none, and the
    trace ratio d_eff of a record's Hessian stands in place of the dimension.
Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Theorems 4 and 5, with constants worked out.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privopt.planning.coordinates import Coordinates
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import ScalarLoss
from privopt.problems.growth import KL

if TYPE_CHECKING:
    from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent

WINDOW, SHORTEST, LONGEST = 300, 30, 500
ALIKE_WINDOW = 100  # where all directions look alike
ALIKE_RATIO = 0.5  # there, times sqrt(parameters)


@dataclass(frozen=True, kw_only=True)
class AdaptiveDescentFacts:
    """What the formulas of this module need.

    Attributes:
        factor: 2 for replace-one, 1 for add-or-remove-one.
        n: units.
        rho: the whole budget.
        clip: L0.
        curvature: L, the penalty included.
        trace_ratio: d_eff.
        noise_to_norm: a, the norm of the noise over that of the gradient, directions of no curvature left out.
    """

    factor: int
    n: int
    rho: float
    clip: float
    curvature: float
    trace_ratio: float
    noise_to_norm: float

    def excess(self, growth: KL) -> float:
        """The excess of the last iterate under the KL condition; at most that of the start."""
        kappa = growth.kappa
        if kappa >= 4.0:
            raise ValueError(f"kappa must be below 4, got {kappa!r}: otherwise the budget never runs out.")
        square = self.noise_to_norm**2
        reached = self.factor**2 * kappa / (4.0 - kappa) * (1.0 + square) / square * growth.gamma**4
        reached *= self._per_budget
        return min(reached ** (kappa / (4.0 - kappa)), growth.gap_within(self.clip))

    def stationarity(self, gap: float, steps: int) -> float:
        """The least gradient norm of an iterate, from a bound on the excess of the start."""
        square = self.noise_to_norm**2
        by_budget = (self.factor**2 * (1.0 + 1.0 / square) * gap * self._per_budget) ** 0.25
        return max(by_budget, math.sqrt(2.0 * self.curvature * (1.0 + square) * gap / steps))

    @property
    def _per_budget(self) -> float:
        """L0^2 L d_eff / (n^2 rho)."""
        return self.clip**2 * self.curvature * self.trace_ratio / (self.n**2 * self.rho)


def trace_ratio(solver: "AdaptiveGradientDescent", instance: Instance) -> float:
    """One for one output, since a record's Hessian has rank one; at most two for a softmax."""
    del solver
    if instance.has_own_loss:
        return float(instance.parameters)
    return 1.0 if isinstance(instance.problem.loss, ScalarLoss) else 2.0


def smoothness(solver: "AdaptiveGradientDescent", instance: Instance) -> float:
    """L, the penalty included."""
    return solver.curvature + instance.penalty_smoothness


def step_size(solver: "AdaptiveGradientDescent", instance: Instance) -> float:
    """1 / L, half of it in the paper's variant."""
    whole = 1.0 / smoothness(solver, instance)
    return 0.5 * whole if solver.variant == "paper" else whole


def window(solver: "AdaptiveGradientDescent", instance: Instance) -> int:
    """W: six condition numbers where there is one, within limits."""
    growth, ridge, curved = solver.growth, instance.ridge, smoothness(solver, instance)
    if growth is not None and growth.kappa == 2.0:
        return round(min(max(12.0 * growth.gamma**2 * curved, SHORTEST), LONGEST))
    if ridge > 0:
        return round(min(max(6.0 * curved / ridge, SHORTEST), WINDOW))
    return WINDOW


def in_coordinates(solver: "AdaptiveGradientDescent", coordinates: Coordinates) -> dict[str, Any]:
    """Lengths of other coordinates, where all directions should look alike."""
    alike = {
        "window": ALIKE_WINDOW,
        "noise_ratio": ALIKE_RATIO / math.sqrt(len(coordinates.matrix)),
        "returns": "average",
    }
    return {
        "clip": coordinates.clip,
        "step_size": 1.0 / (coordinates.smoothness + coordinates.ridge_smoothness),
        "curvature": coordinates.smoothness,
        "balanced": coordinates.balanced,
        **{field: value for field, value in alike.items() if not solver.is_set(field)},
    }


def facts(solver: "AdaptiveGradientDescent", instance: Instance) -> AdaptiveDescentFacts:
    """The constants of a configured solver."""
    multiplier = solver.noise_multiplier
    return AdaptiveDescentFacts(
        factor=instance.public.relation.factor,
        n=instance.public.n,
        rho=0.5 / multiplier**2 if multiplier else 0.5 * instance.mu**2,
        clip=solver.clip,
        curvature=smoothness(solver, instance),
        trace_ratio=solver.trace_ratio,
        noise_to_norm=solver.noise_ratio * math.sqrt(solver.trace_ratio),
    )


def forecast(solver: "AdaptiveGradientDescent", instance: Instance) -> Forecast:
    """The excess where the growth is known, and how flat the flattest iterate may become."""
    if not instance.is_private:
        return Forecast(meaning="the noise is off", notices=(NOISE_IS_OFF,))
    growth, excess = solver.growth, None
    meaning = "no formula unless the problem's growth is known, with an exponent of at most 2"
    if growth is not None and growth.kappa <= 2.0:
        excess, meaning = (
            facts(solver, instance).excess(growth),
            "in expectation, had norms been exact",
        )
    found = Forecast(
        excess=excess,
        meaning=meaning,
        indicators=_indicators(solver, instance),
        notices=large_delta(instance),
        for_convex=False,
    )
    if not instance.has_own_loss:
        return found
    return found.noting(
        "step size and clip of a user-written loss, where not given, are guesses: `clip_from` finds a better clip from "
        "made-up records."
    )


def _indicators(solver: "AdaptiveGradientDescent", instance: Instance) -> dict[str, Finding]:
    """How flat the flattest iterate can be expected to be, where the start's excess is bounded."""
    problem, at_zero = instance.problem, instance.loss_at_zero
    gap = math.inf if solver.growth is None else solver.growth.gap_within(solver.clip)
    gap = gap if at_zero is None else min(gap, at_zero)
    flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
    if not (math.isfinite(gap) and solver.most_steps and flows):
        return {}
    meaning = (
        "least gradient norm of an iterate, expected at steps of 1 / (L (1 + a^2)), with exact norms, from a start "
        "no worse than 0"
    )
    return {"stationarity": Finding(facts(solver, instance).stationarity(gap, solver.most_steps), meaning)}
