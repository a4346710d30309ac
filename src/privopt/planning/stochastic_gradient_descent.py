"""Defaults and forecast of sampled gradient descent.

Clip and step count are those of full-batch descent, but at least 200 steps, since each is cheap; steps have size
1 / (L + lam), and the rate is the smallest of 256 / n, 512 / n, ... that keeps the noise at 1.5 C or more: below it,
sampling amplifies little. Utility only.
"""

import bisect
import math
from typing import Any

from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Repeated
from privopt.ledger.sampling import EveryUnit, FixedSize, Poisson, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.public import Public

FEWEST_STEPS = 200
SMALLEST_BATCH = 256.0
LEAST_NOISE = 1.5  # standard deviation of a step's noise over its clip


def steps(solver: Any, instance: Instance) -> int:
    """Those of full-batch descent, and more where they are few."""
    return max(descent_defaults.descent_setting(instance, clip=solver.clip).steps, FEWEST_STEPS)


def rate(solver: Any, instance: Instance) -> float:
    """q."""
    if not instance.is_private:
        return 1.0
    public = instance.public
    doublings = max(0, math.ceil(math.log2(public.n / SMALLEST_BATCH)))
    rates = [SMALLEST_BATCH * 2.0**k / public.n for k in range(doublings)]

    def noise(tried: float) -> float:
        sampling = sampling_of(tried, solver.sampler, public)
        needed = calibrate(
            lambda z: Repeated(sampling.event(Gaussian(z).event()), solver.steps),
            instance.budget,
            public.relation,
        )
        return needed * public.relation.factor

    # A larger sample needs more noise, so the first of the rates that need enough is found by halving.
    found = bisect.bisect_left(rates, LEAST_NOISE, key=noise)
    return rates[found] if found < len(rates) else 1.0


def step_size(solver: Any, instance: Instance) -> float:
    """1 / (L + lam)."""
    del solver
    return descent_defaults.descent_setting(instance).step_size / descent_defaults.STEP_FACTOR


DEFAULTS = {
    "steps": steps,
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "rate": rate,
    "step_size": step_size,
}


def sampling_of(rate: float, sampler: str, public: Public) -> Sampling:
    """Who takes part in a step: a rate of 1 or more is everybody."""
    if rate >= 1.0:
        return EveryUnit()
    if sampler == "fixed-size":
        return FixedSize(max(1, round(rate * public.n)), public.n)
    return Poisson(rate)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """No prediction; a notice where the step size is too large."""
    smoothness = solver.smoothness
    if smoothness is None:
        smoothness = descent_defaults.smoothness(instance) + instance.penalty_smoothness
    limit = 2.0 * (1.0 + solver.momentum) / smoothness
    if solver.step_size <= limit:
        return Forecast()
    return Forecast().noting(
        f"step_size {solver.step_size:.3g} exceeds {limit:.3g}, the stability limit 2 (1 + momentum) / L of heavy "
        "ball, L the curvature of the objective: descent may diverge. A step size of 1 / L is safe."
    )


def in_coordinates(coordinates: Coordinates) -> dict[str, float]:
    """Clip and step size of other coordinates; heavy ball stays as it is."""
    smoothness = coordinates.smoothness + coordinates.ridge_smoothness
    return {"clip": coordinates.clip, "step_size": 1.0 / smoothness, "smoothness": smoothness}
