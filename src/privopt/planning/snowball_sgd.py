"""Batches, defaults and forecast of snowball SGD.

The noise of a step is `noise_ratio` times the clip; the batches are as small as the price allows under that noise, so a
larger ratio buys more and noisier steps. Steps of constant size eta leave

    W^2 / (2 eta T) + eta (1 + ln T) (C^2 + d sigma^2) / 2

at the last iterate (Shamir, Zhang 2013). The default eta is four times the least point of that, as in
`planning.phased_sgd`, or the largest step that is private; the prediction is the bound at a quarter of eta.
"""

import math
from typing import Any

from privopt.planning import huberised
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.phased_sgd import STEP_FACTOR
from privopt.proofs.contraction import largest_step
from privopt.proofs.one_pass import GrowingBatches


def growing_batches(n: int, noise_multiplier: float, noise_ratio: float) -> GrowingBatches:
    """B_t = ceil(2 z C / (sigma sqrt(T - t + 1))), sigma = noise_ratio C.

    With rho = 1 / (2 z^2) that is ceil(C sqrt(2) / (sigma sqrt(rho (T - t + 1)))).
    """
    return GrowingBatches(places=n, scale=2.0 * noise_multiplier / noise_ratio)


def default_ratio(solver: Any, instance: Instance) -> float:
    """1 / sqrt(d): the noise of a step is about as long as a gradient."""
    del solver
    return 1.0 / math.sqrt(instance.public.d)


def default_step_size(solver: Any, instance: Instance) -> float:
    """eta."""
    far, second = huberised.distance(instance), _second_moment(solver, instance)
    steps = _steps(solver, instance)
    balanced = far / math.sqrt(second * steps * (1.0 + math.log(steps)))
    return min(largest_step(instance.problem, instance.public), STEP_FACTOR * balanced)


DEFAULTS = {
    "clip": lambda solver, instance: huberised.default_clip(instance),
    "noise_ratio": default_ratio,
    "step_size": default_step_size,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The bound on the last iterate."""
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
    far, eta, steps = huberised.distance(instance), solver.step_size / STEP_FACTOR, _steps(solver, instance)
    excess = far**2 / (2.0 * eta * steps)
    excess += 0.5 * eta * (1.0 + math.log(steps)) * _second_moment(solver, instance)
    return Forecast(
        excess=instance.capped(excess), meaning=huberised.meaning(instance), notices=large_delta(instance)
    )


def _steps(solver: Any, instance: Instance) -> int:
    multiplier = 1.0 / instance.mu if instance.is_private else 0.0
    return len(growing_batches(instance.public.n, multiplier, solver.noise_ratio).sizes)


def _second_moment(solver: Any, instance: Instance) -> float:
    """C^2 + d sigma^2; without noise what the formula says of the gradient."""
    clip = solver.clip
    if not math.isfinite(clip):
        bound = instance.gradient_bound
        return (bound if math.isfinite(bound) else instance.public.row_bound) ** 2
    noisy = instance.public.d * solver.noise_ratio**2 if instance.is_private else 0.0
    return clip**2 * (1.0 + noisy)
