"""Weight, budgets, prediction and bound of the private proximal point method.

T proximal steps, each an approximate minimum of `F_t(x) = F(x) + r(x) + lam |x - x_(t-1)|^2` by m noisy subgradient
steps, with gradients of norm at most C:

    strong convexity  mu = 2 lam - (weak convexity of F)
    weight            lam = max(weak convexity, 1 / (2 gamma^2 F_0^((kappa - 2) / kappa)))
    prediction        with sigma_t the noise, tau_t = 2 (4 C^2 + p sigma_t^2) / (mu (m + 1)):
                      Phi_t = max(Phi_(t-1) / (1 + mu / (4 lam)), E) + tau_t,
                      E + (mu / 2) (E / 2)^(2 / kappa) / (4 gamma^2 lam^2) = Phi_(t-1)

The prediction follows the excess through E_t = F_t(x_t*) - F*, x_t* the exact proximal step. With a = |x_t* - x_(t-1)|
and psi = F(x_t*) - F*, strong convexity gives E_t = psi + lam a^2 <= Phi_(t-1) - mu a^2 / 2; stationarity and the KL
condition give 2 lam a >= psi^(1/kappa) / gamma; and either lam a^2 or psi is at least E_t / 2.

The excess after a proximal step is a convex function of the one before, so following the mean through it is no bound.
The bound follows the mean through the function's chord over all excesses that gradients of norm C allow, and then uses
Markov's inequality.
"""

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound
from privopt.problems.growth import KL

_root = cast(Any, brentq)  # its type information is incomplete
FAILURE = 0.1  # of the bound, by Markov's inequality


def weight(solver: Any, instance: Instance) -> float:
    """lam for a solver whose clip and growth are set; see the module.

    Raises:
        ValueError: nothing bounds the excess of the start.
    """
    growth = solver.growth
    power = (growth.kappa - 2.0) / growth.kappa
    gap = growth.gap_within(steepest(solver, instance)) if power > 0.0 else 1.0
    if not math.isfinite(gap):
        raise ValueError(
            "the default weight needs a bound on the excess of the start: give `weight`, a `growth` with a finite gap, "
            "or a finite clip."
        )
    return max(solver.weak_convexity, 0.5 / (growth.gamma**2 * gap**power))


def within_most_steps(solver: Any) -> dict[str, int]:
    """T and m, lowered where T m would be more than `most_steps`: m first, then T."""
    outer = min(solver.outer_steps, solver.most_steps)
    return {"outer_steps": outer, "inner_steps": min(solver.inner_steps, solver.most_steps // max(outer, 1))}


DEFAULTS = {
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "growth": lambda solver, instance: instance.growth,
    "weight": weight,
}


def noise_factors(ratio: float, steps: int) -> NDArray[np.float64]:
    """What each proximal step's noise multiplier is over that of equal budgets at the same price.

    Args:
        ratio: the budget of a proximal step over that of the one before it.
        steps: T.
    """
    logs = math.log(ratio) * np.arange(steps)
    shares = np.exp(np.maximum(logs - logs[-1:], -100.0))  # a step that buys nothing would have no multiplier
    return np.sqrt(shares.sum() / (steps * shares)) if steps else shares


def steepest(solver: Any, instance: Instance) -> float:
    """The largest norm of a clipped gradient."""
    return min(solver.clip, instance.gradient_bound)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The prediction and the bound of the module, from a growth and a bound on the excess of the start."""
    notices = () if instance.is_private else (NOISE_IS_OFF,)
    gap = _start_gap(solver, instance)
    if gap is None:
        return Forecast(
            meaning="no formula but for a KL condition, a finite clip and no penalty", notices=notices
        )
    worst = solver.growth.excess_at(steepest(solver, instance))
    excess = gap
    for left in _left_by_noise(solver, instance):
        excess = min(_contracted(solver, solver.growth, excess) + left, worst)
    meaning = (
        "a loose estimate of the mean under the KL condition, while no gradient is clipped: even without noise the "
        f"worst case of the inner steps keeps it above {_floor(solver, instance):.3g}"
    )
    return Forecast(
        excess=excess,
        meaning=meaning,
        bound=_bound(solver, instance, gap, worst),
        notices=notices,
        for_convex=False,
    )


def _bound(solver: Any, instance: Instance, gap: float, worst: float) -> Bound | None:
    """What Markov's inequality makes of a mean; only where it says more than the bound on the start's excess."""
    factor = _contracted(solver, solver.growth, worst) / worst
    mean = gap
    for left in _left_by_noise(solver, instance):
        mean = min(factor * mean + left, worst)
    if not mean / FAILURE < gap:
        return None
    return Bound(
        value=mean / FAILURE,
        probability=1.0 - FAILURE,
        condition="if the KL condition holds wherever the run goes, no gradient is longer than the clip, and the "
        "constraint set does not bind",
    )


def _start_gap(solver: Any, instance: Instance) -> float | None:
    """F_0, or None where nothing can be predicted: no growth, no finite clip, or a penalty with gradients."""
    penalised = instance.penalty_smoothness > 0.0 or not instance.problem.regulariser.is_smooth
    if solver.growth is None or not math.isfinite(solver.clip) or penalised:
        return None
    return solver.growth.gap_within(steepest(solver, instance))


def _left_by_noise(solver: Any, instance: Instance) -> list[float]:
    """tau_t of every proximal step."""
    per_mean = 2.0 / (solver.convexity * (solver.inner_steps + 1))
    longest = steepest(solver, instance) + solver.clip  # the penalty pulls as far as the ball's radius allows
    scale = instance.public.relation.factor * solver.clip / instance.public.n
    spreads = [instance.parameters * (noise.noise_multiplier * scale) ** 2 for noise in solver.mechanisms()]
    return [per_mean * (longest**2 + spread) for spread in spreads]


def _floor(solver: Any, instance: Instance) -> float:
    """Where the prediction would settle without noise."""
    longest = steepest(solver, instance) + solver.clip
    left = 2.0 * longest**2 / (solver.convexity * (solver.inner_steps + 1))
    return left * (1.0 + 4.0 * solver.weight / solver.convexity)


def _contracted(solver: Any, growth: KL, excess: float) -> float:
    """What an exact proximal step leaves of an excess."""
    gain = solver.convexity / (8.0 * growth.gamma**2 * solver.weight**2)

    def surplus(left: float) -> float:
        return left + gain * (left / 2.0) ** (2.0 / growth.kappa) - excess

    return max(
        excess / (1.0 + solver.convexity / (4.0 * solver.weight)),
        float(_root(surplus, 0.0, excess, xtol=1e-300, rtol=1e-14)),
    )
