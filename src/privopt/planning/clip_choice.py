"""How a budget is split around a private choice of the clip, and the lengths that are tried.

    C_k = C_max 2^(-k / 2),  k = 0, ..., 30;  C_max = 32 guessed clips

The choice has a share of rho = mu^2 / 2: with an exponential mechanism of range e it costs e^2 / 8. The clip of
gradients is the length below which a tenth of them are at the start, where most are long: one too small costs next to
nothing, as long as steps do not scale with it, and one too large costs noise. Estimates from values are hardly ever
longer than a gradient can be, so most of them fit: eight tenths. Utility only.

A clip that stays keeps its bias however large the budget is, so it is the chosen length times max(1, sqrt(0.01 / x)),
x = factor sqrt(p) / (n mu), where the method does not follow the lengths of gradients itself.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_budget
from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import Loss

SHARE = 0.05
LENGTHS = 31
WIDEST = 32.0  # guessed clips
QUANTILE, VALUE_QUANTILE = 0.1, 0.8
QUIET = 0.01  # x
BONUS = (
    0.02  # of the units, for a length that is sqrt(2) times as long: decides where lengths have equal counts
)


def remainder(solver: Any, instance: Instance) -> float:
    """The noise multiplier of the release that pays for the rest, before both parts are calibrated together."""
    return 1.0 / (instance.mu * math.sqrt(1.0 - solver.share)) if instance.is_private else 0.0


def choice_range(solver: Any, instance: Instance) -> float:
    """e of the exponential mechanism: rho = e^2 / 8 = share mu^2 / 2; infinite without noise."""
    return 2.0 * instance.mu * math.sqrt(solver.share) if instance.is_private else math.inf


def stretch(solver: Any, instance: Instance) -> float:
    """The clip over the chosen length."""
    follows = hasattr(solver.inner, "quantile") or isinstance(instance.problem.loss, BlackBox)
    if follows or not instance.is_private:
        return 1.0
    return max(1.0, math.sqrt(QUIET / descent_defaults.relative_noise(instance)))


def longest(solver: Any, instance: Instance) -> float:
    """C_max; of values as long as an estimate along one direction can be."""
    loss = instance.problem.loss
    if isinstance(loss, BlackBox):
        return (loss.high - loss.low) / (2.0 * smoothing(solver, instance))
    return WIDEST * descent_defaults.guess(instance).slope * instance.public.row_bound


def smoothing(solver: Any, instance: Instance) -> float:
    """r of the estimates from values that the inner solver makes."""
    inner = solver.inner
    if not inner.is_set("smoothing"):
        inner = inner.with_(clip=1.0, noise_multiplier=1.0).filled(instance)
    return float(inner.smoothing)


def guessed_clip(solver: Any, instance: Instance) -> float:
    """The clip that the plan supposes: a guess, of values a tenth of the longest."""
    if isinstance(instance.problem.loss, BlackBox):
        return 0.1 * solver.longest
    return descent_defaults.guess(instance).slope * instance.public.row_bound


DEFAULTS = {
    "quantile": lambda solver, instance: (
        VALUE_QUANTILE if isinstance(instance.problem.loss, BlackBox) else QUANTILE
    ),
    "delta": lambda solver, instance: instance.budget.delta,
    "longest": longest,
    "stretch": stretch,
    "remainder": remainder,
    "choice_range": choice_range,
    # As if the guessed clip were chosen.
    "planned": lambda solver, instance: solver.configured_inner(
        instance.problem, instance.public, guessed_clip(solver, instance)
    ),
}


def lengths(longest: float) -> NDArray[np.float64]:
    """C_0 > ... > C_30."""
    return longest * 2.0 ** (-np.arange(LENGTHS) / 2.0)


def bonuses(loss: Loss) -> NDArray[np.float64]:
    """What is added to the scores: less for shorter lengths of gradients, of which many may be equal; else nothing."""
    each = 0.0 if isinstance(loss, BlackBox) else BONUS
    return np.asarray(-each * np.arange(LENGTHS), np.float64)


def rest(solver: Any) -> Budget:
    """The remainder as an (epsilon, delta); where epsilon would be 0 at this delta, at a smaller one."""
    if solver.remainder == 0.0:
        return Budget(math.inf, solver.delta)
    return gaussian_budget(1.0 / solver.remainder, solver.delta)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The inner solver's, as if the guessed clip were chosen."""
    found = solver.planned.forecast(replace(instance, budget=rest(solver)))
    return replace(found, bound=None)
