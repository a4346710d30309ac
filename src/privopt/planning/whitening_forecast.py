"""What to expect of a whitened descent, from public numbers: fitted to measurements on the panel.

With n units of d columns, the constant included, factor 2 (replace-one) or 1, and budget mu (Gaussian DP):

    noise       x = factor d / (2 kappa n mu)
    excess      C x / (1 + x)             above the best model without privacy; C: the constant's excess, typically
    share       1 / (1 + x)               of the achievable improvement over a constant prediction

kappa, C and how far tables lie apart stand in `FITTED`, by loss; targets to predict are scaled to [-1, 1]. They were
fitted on the half of the panel that there is to choose on (`python -m benchmarks.panel_forecast`), so that tables, not
cells, weigh alike. Two tables with the same public numbers can differ much in how far the optimum is and in how many
directions carry it, and no public number tells which; so the prediction is a range.
"""

import math
from dataclasses import dataclass
from typing import Any

from privopt.planning import quantile_level
from privopt.planning.counts import RELATIVE_TO_THE_MEAN
from privopt.planning.forecast import Forecast
from privopt.planning.improvement_words import expected
from privopt.planning.instance import Instance
from privopt.planning.plan import IMPROVEMENT_SHARE, Finding
from privopt.planning.whitening import WhiteningRule
from privopt.problems.losses import Huber, Logistic, Loss, Quantile, SmoothedHinge, Softmax, Squared

FITTED_ON = "fitted on other tables; about eight of ten end in this range"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was fitted for a loss.

    Attributes:
        learnable: C, units of the loss.
        signal: kappa.
        spread: the range is the excess divided by this to the excess times this.
        shares: whether its share holds well enough to be said.
    """

    learnable: float
    signal: float
    spread: float
    shares: bool = True

    def noise(self, instance: Instance) -> float:
        """x."""
        public = instance.public
        return public.relation.factor * public.d / (2.0 * self.signal * public.n * instance.mu)

    def excess(self, noise: float) -> float:
        """C x / (1 + x)."""
        return self.learnable * noise / (1.0 + noise)


FITTED: dict[type[Loss], Fitted] = {
    Logistic: Fitted(learnable=0.321, signal=0.832, spread=4.4),
    Softmax: Fitted(learnable=2.1, signal=1.26, spread=3.7),
    SmoothedHinge: Fitted(learnable=0.133, signal=0.274, spread=7.2, shares=False),
    Squared: Fitted(learnable=0.0306, signal=0.651, spread=6.2),
    Huber: Fitted(learnable=0.0186, signal=1.19, spread=3.7),
    Quantile: Fitted(learnable=0.0555, signal=1.19, spread=4.8),
}


def fitted(loss: Loss) -> Fitted | None:
    """What was fitted for a loss; None where nothing was."""
    return FITTED.get(type(loss))


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The range of the excess and the expected share; of other losses what noise leaves at the rule's clip.

    The notices are those of the inner solver, for counts with what the planned clip and step size are relative to.
    """
    notices = solver.inner.forecast(instance).notices
    if solver.quantile_share:
        public, ratio = instance.public, solver.share / solver.quantile_share
        steps = quantile_level.steps(is_private=instance.is_private)
        noise = solver.noise_multiplier * math.sqrt(ratio * steps) / public.n
        notices += quantile_level.level_notice(instance.problem.loss, noise)
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=notices)
    if solver.level_share:
        meaning = "no formula for counts: it would be relative to their mean, which is released first"
        return Forecast(excess=None, meaning=meaning, notices=(*notices, RELATIVE_TO_THE_MEAN))
    found = fitted(instance.problem.loss)
    if found is None:
        rule = WhiteningRule.of(instance, solver.share)
        excess = rule.cap(rule.most_signal) ** 2 * rule.noise_excess(rule.most_signal)
        return Forecast(
            excess=instance.capped(excess), meaning="what noise alone would leave", notices=notices
        )
    noise = found.noise(instance)
    excess = instance.capped(found.excess(noise))
    indicators: dict[str, Finding] = {}
    if found.shares:
        said = expected(noise, found.spread, instance.public, instance.budget)
        indicators[IMPROVEMENT_SHARE] = Finding(1.0 / (1.0 + noise), said)
    return Forecast(
        excess=excess,
        excess_range=(excess / found.spread, instance.capped(excess * found.spread)),
        meaning=FITTED_ON,
        indicators=indicators,
        notices=notices,
    )
