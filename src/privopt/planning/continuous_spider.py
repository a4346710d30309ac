"""Steps and predicted excess of `ContinuousSpider`, from public numbers.

With s the noise of one gradient bought with the whole budget, p parameters, eta the step size and reach a guess of how
far the optimum is:

    horizon     h = reach / (2 sqrt(p) s), the sum of step sizes beyond which more steps mostly fit noise
    steps       h / eta, and no more than a ridge needs to shrink the start's excess below that of the noise s, or than
                a prediction from a known growth gains by
    prediction  dw = eta (min(L_0, sqrt(2 L1 Phi)) + sqrt(p V)), the length of a step
                Phi <- max(Phi - (eta / 2) Phi^(2 / kappa) / gamma^2, 0) + (eta / 2) p V
                V by the recursion of `gradient_certificate`, for a change clipped to c L1 dw

The prediction overestimates the noise of long paths, is never more than the start's excess, and is no bound.

Source: ours. Utility only.
"""

import math
from dataclasses import dataclass

from privopt.planning.gradient_certificate import EstimateError, mixed
from privopt.planning.kl_theory import horizon
from privopt.problems.growth import KL

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
        reach: from the start to the optimum, a guess.
        gap: a bound on the start's excess; infinite if not known.
    """

    step_size: float
    curvature: float
    steepest: float
    slope_ratio: float
    strong: float
    parameters: int
    noise: float
    reach: float
    gap: float

    @property
    def horizon(self) -> float:
        """h; infinite without noise."""
        return horizon(self.reach, self.parameters, self.noise)

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
