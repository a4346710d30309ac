"""Defaults, predicted excess, notices and findings of Continuous Spider.

With s the noise of one gradient bought with the whole budget, p parameters, eta the step size, over 1 - b with momentum
b, and `distance` a guess of how far the optimum is:

    horizon     h = distance / (2 sqrt(p) s), the sum of step sizes beyond which more steps mostly fit noise
    steps       h / eta, and no more than a ridge needs to shrink the start's excess below that of the noise s, or than
                a prediction from a known growth gains by
    prediction  dw = eta (min(L_0, sqrt(2 L1 Phi)) + sqrt(p V)), the length of a step
                Phi <- max(Phi - (eta / 2) Phi^(2 / kappa) / gamma^2, 0) + (eta / 2) p V
                V by the recursion of `gradient_certificate`, for a change clipped to c L1 dw

The prediction overestimates the noise of long paths, is never more than the start's excess, and is no bound.

Source: ours. Utility only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.gradient_certificate import EstimateError, certificate, mixed
from privopt.planning.instance import Instance
from privopt.planning.kl_theory import horizon
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.plan import Finding
from privopt.problems.constraints import Unconstrained
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public

DISTANCE = 10.0  # over R: how far the optimum is guessed to be
WHITENED_DISTANCE = 5.0  # in coordinates in which predictions vary as much as parameters
WHITENED_STEPS = 100  # whitened problems are well conditioned
LEAST_WORK = 500.0  # L1 h below which noise decides and scheduled descent is better
FEWEST_STEPS = 10
FLAT = 1.05  # more steps are not worth a gain of less than this factor


@dataclass(frozen=True, kw_only=True)
class SpiderFacts:
    """What plans need.

    Attributes:
        step_size: eta, over 1 - b with momentum b: about how far a gradient moves the parameters in the end.
        curvature: L1.
        steepest: L_0, the largest gradient norm.
        slope_ratio: c L1 / C, the change's clip over the gradient's for a step of length 1.
        strong: strong convexity of the penalty.
        parameters: p.
        noise: s; 0 without privacy.
        distance: from the start to the optimum, a guess.
        gap: a bound on the start's excess; infinite if not known.
    """

    step_size: float
    curvature: float
    steepest: float
    slope_ratio: float
    strong: float
    parameters: int
    noise: float
    distance: float
    gap: float

    @property
    def horizon(self) -> float:
        """h; infinite without noise."""
        return horizon(self.distance, self.parameters, self.noise)

    def steps(self, growth: KL | None, most: int) -> int:
        """T of the module's table, at most `most`."""
        if self.noise == 0.0:
            needed = 40.0 / (self.step_size * self.strong) if self.strong > 0 else math.inf
            return math.ceil(min(needed, most))
        found = min(max(FEWEST_STEPS, math.ceil(min(self.horizon / self.step_size, most))), most)
        if self.strong > 0:
            found = min(found, self._steps_to_the_floor(most))
        return found if growth is None or growth.kappa > 2.0 else self._steps_that_gain(growth, found)

    def _steps_to_the_floor(self, most: int) -> int:
        """Steps after which a ridge alone has shrunk the start's excess below that of one gradient's noise."""
        floor = 0.5 * self.parameters * self.noise**2 * self.step_size
        ratio = min(self.gap, 1e6 * floor) / floor
        pull = 2.0 * self.step_size * self.strong
        return max(FEWEST_STEPS, math.ceil(min(math.log(max(ratio, math.e)) / pull, most)))

    def _steps_that_gain(self, growth: KL, most: int) -> int:
        """The fewest steps whose predicted excess is within `FLAT` of the least up to `most`."""
        counts = sorted({min(most, math.ceil(FEWEST_STEPS * 1.5**k)) for k in range(20)})
        predicted = [self.predicted_excess(growth, steps) for steps in counts]
        if not min(predicted) < 0.5 * growth.gap_within(self.steepest):
            return most  # constants that promise nothing say nothing about the steps either
        flat = FLAT * min(predicted)
        return next(steps for steps, excess in zip(counts, predicted, strict=True) if excess <= flat)

    def predicted_excess(self, growth: KL, steps: int) -> float:
        """The recursion of the module's table."""
        fresh = self.noise * math.sqrt(steps)
        gap = growth.gap_within(self.steepest)
        error, excess, change = EstimateError(), gap, math.inf
        for _ in range(steps):
            gain = error.optimal_gain(fresh, change)
            error = error.after(gain, mixed(gain, fresh, change))
            wobble = self.parameters * error.variance
            pull = min(self.steepest, math.sqrt(2.0 * self.curvature * excess))
            change = fresh * min(2.0, self.slope_ratio * self.step_size * (pull + math.sqrt(wobble)))
            descent = 0.5 * self.step_size * growth.gradient_at(excess) ** 2
            excess = max(excess - descent, 0.0) + 0.5 * self.step_size * wobble
        return min(excess, gap)


def facts(solver: Any, instance: Instance) -> SpiderFacts:
    """What plans need of a solver whose lengths are set."""
    steepest = instance.gradient_bound
    gap = instance.loss_at_zero
    return SpiderFacts(
        step_size=solver.step_size / (1.0 - solver.momentum),
        curvature=solver.curvature,
        steepest=steepest if math.isfinite(steepest) else solver.clip,
        slope_ratio=solver.slope_clip / solver.clip,
        strong=instance.ridge,
        parameters=instance.parameters,
        noise=descent_defaults.noise_of_one(instance, solver.clip),
        distance=solver.distance,
        gap=math.inf if gap is None else gap,
    )


def difference_clip(solver: Any, instance: Instance) -> float:
    """c: small where rows of many features seldom lie along a step; 1 where L1 is known for sure."""
    del solver
    if not instance.has_own_loss:
        return 0.15
    return 1.0 if math.isfinite(instance.problem.loss.curvature) else 0.5


def steps(solver: Any, instance: Instance) -> int:
    """T; a change clipped on purpose biases the estimate, which the prediction from a growth knows nothing of."""
    growth = solver.growth if solver.difference_clip >= 1.0 else None
    return facts(solver, instance).steps(growth, solver.most_steps)


DEFAULTS = {
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "curvature": lambda solver, instance: descent_defaults.smoothness(instance),
    "difference_clip": difference_clip,
    "step_size": lambda solver, instance: 1.0 / (solver.curvature + instance.penalty_smoothness),
    "momentum": lambda solver, instance: 0.0 if instance.has_own_loss else 0.8,  # a fifth of the passes
    "distance": lambda solver, instance: DISTANCE / instance.public.row_bound,
    "growth": lambda solver, instance: instance.growth,
    "steps": steps,
}


def in_coordinates(solver: Any, coordinates: Coordinates) -> dict[str, Any]:
    """Lengths of other coordinates; gradients are clipped, never balanced.

    A row there is at most about sqrt(d) long, so one record's loss is at most about d times as curved as the mean.
    """
    smoothness = coordinates.smoothness + coordinates.ridge_smoothness
    return {
        "clip": coordinates.clip,
        "curvature": coordinates.smoothness * len(coordinates.matrix),
        "smoothness": smoothness,
        "step_size": 1.0 / smoothness,
        "distance": solver.distance if solver.is_set("steps") else WHITENED_DISTANCE,
        "growth": None,  # that of the problem is in other units
        "momentum": solver.momentum if solver.is_set("momentum") else coordinates.momentum,
        "most_steps": min(solver.most_steps, WHITENED_STEPS),
    }


def forecast(solver: Any, instance: Instance) -> Forecast:
    """A predicted excess, and notices: a budget too small for this method, steps too long, guessed lengths."""
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
    known = facts(solver, instance)
    excess, meaning = _predicted_excess(solver, instance, known)
    found = Forecast(excess=excess, meaning=meaning, notices=large_delta(instance), for_convex=False)
    work = known.curvature * known.horizon
    if work < LEAST_WORK:
        found = found.noting(
            f"curvature times horizon is {work:.3g}, below {LEAST_WORK:g}: noise decides before a running estimate "
            "pays. Gradient descent, scheduled or not, is recommended for a budget this small."
        )
    smoothness = solver.smoothness
    if smoothness is None:
        smoothness = solver.curvature + instance.penalty_smoothness
    found = found.noting(*long_steps(solver.step_size, smoothness))
    if instance.has_own_loss:
        return found.noting(
            "clip and curvature of a user-written loss are guesses where neither it nor you state them."
        )
    return found


def _predicted_excess(solver: Any, instance: Instance, known: SpiderFacts) -> tuple[float | None, str]:
    """The least of the predictions from what is known: a growth, a ridge, a convex loss with an optimum near."""
    growths: list[tuple[KL, str]] = []
    if solver.growth is not None and solver.growth.kappa <= 2.0:  # above, nothing is smooth
        growths.append((solver.growth, "a prediction, not a bound, from the known growth"))
    if isinstance(instance.problem.loss, GLMLoss) and instance.problem.loss.convex:
        near = KL(gamma=known.distance, kappa=1.0, gap=known.gap)  # convex: excess <= |gradient| distance
        growths.append((near, f"an upper estimate for an optimum within {known.distance:.3g} of the start"))
        if known.strong > 0:
            growths.append(
                (KL.of_strong_convexity(known.strong, known.gap), "an upper estimate, from the ridge")
            )
    if not growths or not solver.steps:
        return None, "no formula where the growth of the objective is not known"
    return min((known.predicted_excess(growth, solver.steps), meaning) for growth, meaning in growths)


def findings(
    solver: Any,
    problem: Problem,
    public: Public,
    *,
    point: Float[Array, " *shape"],
    estimate: Float[Array, " *shape"],
    slope: float,
    error: EstimateError,
) -> Mapping[str, Finding]:
    """The estimate, its variance, and what they prove where no change is clipped on purpose; see `certificate`."""
    plain = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
    allowed = solver.slope_clip * (1.0 + 1e-9)
    return certificate(
        point=point,
        estimate=estimate,
        slope=slope,
        error=error,
        failure=solver.failure,
        clips_changes=solver.difference_clip < 1.0,
        never_clipped=solver.clip >= problem.gradient_bound(public)
        and allowed >= problem.loss_smoothness(public),
        growth=solver.growth if plain else None,
        of="gradient of the objective" if plain else "proximal gradient map of the objective",
    )
