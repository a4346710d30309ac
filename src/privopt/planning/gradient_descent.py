"""Defaults and forecast of full-batch gradient descent, and its settings for two theorems.

Source: `descent_defaults` for the defaults; `descent_theory` for the bounds that the two settings rest on. Utility
only.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.planning.descent_theory import SmoothObjective
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import long_steps
from privopt.planning.quantile_level import level_notice

SHARE_OF_STEP = 0.5  # what a given step size may take of a parameter for the ridge by a gradient step

HURRIED = 0.95  # momentum of the last half, where parameters still grow
GROWING = 2.5  # standard deviations
RARE = 10.0  # minus the logarithm of how often noise alone shows a curvature


def setting(solver: Any, instance: Instance) -> descent_defaults.Setting:
    """The practical setting for what is known of a solver's fields."""
    return descent_defaults.descent_setting(
        instance,
        clip=solver.clip,
        steps=solver.steps,
        curvature=solver.smoothness,
        shrinks=bool(solver.shrinks),
    )


def shrinks(solver: Any, instance: Instance) -> bool:
    """Whether the ridge enters by its proximal map: where that is exact, and gradient steps would be short for it."""
    if solver.smoothness is not None or not instance.problem.shrinks_exactly:
        return False
    penalty = instance.penalty_smoothness
    if solver.step_size is not None:
        return solver.step_size * penalty > SHARE_OF_STEP
    return penalty > descent_defaults.smoothness(instance)


def stepped_smoothness(solver: Any, instance: Instance) -> float:
    """The known curvature of what gradient steps descend on."""
    if solver.smoothness is not None:
        return solver.smoothness
    ridge = instance.penalty_smoothness if shrinks(solver, instance) else 0.0
    return instance.known_smoothness - ridge


def longest_step(solver: Any, instance: Instance) -> float:
    """The stability limit 2 (1 + b) / ((1 + 2 b) L) of momentum b; for any b where it is open."""
    curved = stepped_smoothness(solver, instance)
    momentum = 1.0 if solver.momentum is None else solver.momentum
    return 2.0 * (1.0 + momentum) / ((1.0 + 2.0 * momentum) * curved) if curved > 0 else math.inf


def contraction(solver: Any, instance: Instance) -> float | None:
    """a of the geometric shares: what one step leaves of the excess, by the ridge alone."""
    if solver.shares == "equal":
        return None
    return max(1.0 - solver.step_size * instance.ridge, 1e-12)


def chosen(solver: Any, instance: Instance) -> int | None:
    """The number of the iterate that "random" returns."""
    del instance
    return secrets.randbelow(solver.steps) if solver.returns == "random" and solver.steps else None


DEFAULTS = {
    "shrinks": shrinks,
    "restarts": lambda solver, instance: not instance.is_private and solver.momentum is None,
    "steps": lambda solver, instance: setting(solver, instance).steps,
    "clip": lambda solver, instance: setting(solver, instance).clip,
    "step_size": lambda solver, instance: setting(solver, instance).step_size,
    "momentum": lambda solver, instance: setting(solver, instance).momentum,
    # Without noise an average only lags.
    "returns": lambda solver, instance: "weighted" if instance.is_private else "last",
    "contraction": contraction,
    "chosen": chosen,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """That of `descent_defaults`, and a notice where the step size is too large."""
    found = descent_defaults.forecast(instance, steps=solver.steps, clip=solver.clip)
    smoothness = solver.smoothness
    if smoothness is None:
        smoothness = descent_defaults.smoothness(instance)
        smoothness += 0.0 if solver.shrinks else instance.penalty_smoothness
    if solver.rows is None:  # in whitened coordinates the level is set afterwards
        found = found.noting(*level_notice(instance.problem.loss, None))
    return found.noting(*long_steps(solver.step_size, smoothness))


@dataclass(frozen=True)
class ShownCurvature:
    """The largest curvature L that successive released gradients have shown, the part that noise explains taken out.

    Between points a distance s apart, gradients that differ by y and have independent noise of standard deviation d in
    each of p entries show `sqrt(|y|^2 - 2 d^2 (p + 2 sqrt(10 p) + 20)) / s`. Noise alone shows any with probability
    e^-10 at most. Post-processing.

    Attributes:
        largest: L.
        point: where the last gradient was taken, (p,); None before the first.
        gradient: the last gradient, penalty included, (p,).
    Source:
        Laurent, Massart 2000, Lemma 1, for the tail of a sum of squares; the rest is ours.
    """

    largest: float = 0.0
    point: NDArray[np.float64] | None = None
    gradient: NDArray[np.float64] | None = None

    def after(self, point: ArrayLike, gradient: ArrayLike, deviation: float) -> "ShownCurvature":
        """With one more gradient; one that is not finite is left out.

        Args:
            point: where it was taken.
            gradient: released, penalty included.
            deviation: d.
        """
        at, slope = (np.ravel(np.asarray(entries, np.float64)) for entries in (point, gradient))
        if not (np.all(np.isfinite(at)) and np.all(np.isfinite(slope))):
            return self
        if self.point is None or self.gradient is None:
            return ShownCurvature(self.largest, at, slope)
        distance = float(np.linalg.norm(at - self.point))
        noise = 2.0 * deviation**2 * (at.size + 2.0 * math.sqrt(RARE * at.size) + 2.0 * RARE)
        change = math.sqrt(max(float(np.sum((slope - self.gradient) ** 2)) - noise, 0.0))
        shown = change / distance if distance > 0.0 else 0.0
        return ShownCurvature(max(self.largest, shown) if math.isfinite(shown) else self.largest, at, slope)

    def step_size(self, longest: float) -> float:
        """1 / L, and no more than the longest step."""
        return min(longest, 1.0 / self.largest) if self.largest > 0.0 else longest


def still_grows(points: Sequence[ArrayLike], slopes: Sequence[ArrayLike], deviation: float) -> bool:
    """Whether the second half of some released gradients points away from 0, beyond 2.5 deviations of its noise.

    Classes that lie apart want long parameters, and a hinge is nearly flat in their length: it is the one direction in
    which steps that suit all others stop short. It is the direction of the point before these gradients, which has none
    of their noise. Post-processing.

    Args:
        points: where the gradients were taken, (p,) each.
        slopes: the gradients, penalty included, (p,) each.
        deviation: standard deviation of the noise in an entry of one.
    """
    half = len(points) // 2
    if not half:
        return False
    at = np.asarray(points[half - 1], np.float64)
    mean = np.mean(np.asarray(slopes[half:], np.float64), axis=0)
    noise = deviation * float(np.linalg.norm(at)) / math.sqrt(len(slopes) - half)
    return -float(mean @ at) > GROWING * noise > 0.0


def in_coordinates(coordinates: Coordinates) -> dict[str, Any]:
    """Clip, step size and momentum of other coordinates."""
    smoothness = coordinates.smoothness + coordinates.ridge_smoothness
    return {
        "clip": coordinates.clip,
        "step_size": 1.0 / smoothness,
        "momentum": coordinates.momentum,
        "restarts": math.isinf(coordinates.clip),  # no clip is infinite with noise
        "balanced": coordinates.balanced,
        "secant": coordinates.secant,
        "hurries": coordinates.hurries,
        "smoothness": smoothness,
        "rows": coordinates.rows,
    }


def for_pl(facts: SmoothObjective, constant: float) -> dict[str, Any]:
    """Fields for an objective with `|grad|^2 >= 2 constant excess`: no momentum, the last iterate."""
    return {
        "steps": facts.steps_to_contract(constant),
        "returns": "last",
        "contraction": max(1.0 - constant / facts.smoothness, 1e-12),
        **plain_steps(facts),
    }


def for_stationarity(facts: SmoothObjective) -> dict[str, Any]:
    """Fields that make the gradient of any smooth objective small."""
    return {"steps": facts.steps_to_flatten(), **plain_steps(facts)}


def plain_steps(facts: SmoothObjective) -> dict[str, Any]:
    """Steps of size 1 / L without momentum, as the bounds of `descent_theory` assume."""
    return {"step_size": 1.0 / facts.smoothness, "momentum": 0.0, "smoothness": facts.smoothness}


def objective_facts(
    instance: Instance, *, clip: float, smoothness: float | None = None, gap: float | None = None
) -> SmoothObjective:
    """The constants of the bounds in `descent_theory`, from public quantities.

    Args:
        instance: the problem and the budget.
        clip: C.
        smoothness: L, the ridge included; default that of the problem.
        gap: a bound on the excess of the start; default the bound on the loss at 0.
    Raises:
        ValueError: a constant is neither given nor known.
    """
    if smoothness is None:
        smoothness = instance.problem.smoothness(instance.public)
    if gap is None:
        gap = instance.loss_at_zero
    if gap is None or not math.isfinite(smoothness):
        raise ValueError(
            f"the {instance.problem.loss.name} loss has no known bound on its curvature or on its value at 0: give "
            "`smoothness` and `gap`."
        )
    noise = descent_defaults.noise_of_one(instance, clip)
    return SmoothObjective(smoothness=smoothness, gap=gap, noise=noise, parameters=instance.parameters)
