"""Defaults, stability and forecast of variance-reduced descent, from public quantities.

With n units, p parameters, rows of norm at most R, sensitivity factor S, budget mu (Gaussian DP), L the curvature of
one record's loss, lam the ridge, and kappa = 1 + L / lam:

    kappa      momentum b   step size eta      inner steps m               snapshot share f   output of an epoch
    <= 50      0            1 / (L + lam)      2 kappa, within [50, 100]   0.9                mean of all iterates
    > 50       0.9          0.2 / (L + lam)    100; 200 if kappa > 1000    0.8                mean of the last half
    doubling   0.9          0.2 / (L + lam)    25                          0.5                mean of the last half

6 epochs, snapshot budgets growing by 3 from epoch to epoch (epochs that double: 4, by 2), differences clipped to
c L |x - x~|, c = 0.3, batches of q = max(0.01, 256 / n) of the units, doubled until the noise multiplier over the
clip is 1.2: below it, sampling amplifies little. Where the ridge leaves a coordinate free, its strength on the others
stands for lam.

Stability. The noise of a difference is proportional to |x - x~|, so too much of it makes |x - x~| grow exponentially.
With M inner steps in all and m of them in the longest epoch,

    nu = c S sqrt(m M p / (1 - f)) / (n mu)

is how far the noise of an epoch's differences moves x, in units of |x - x~|. It must not exceed 0.4, or 0.2 with
momentum (measured: at those values the excess is still that of the snapshots; at 0.6 it is three times, at 2 all is
lost). Fewer inner steps, then a smaller snapshot share, are tried first.

Source: ours; the shape of the schedule is that of Wang, Ye, Xu 2017, Algorithms 1 and 2. Utility only.
"""

import functools
import math
from dataclasses import replace
from typing import Any

from privopt.errors import NotPriceable
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, repeat, sequence
from privopt.ledger.sampling import EveryUnit, Poisson, Sampling
from privopt.mechanisms.gaussian import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.public import Relation

EPOCHS, NOISELESS_EPOCHS, GROWTH = 6, 40, 3.0
DOUBLING_EPOCHS, DOUBLING_NOISELESS_EPOCHS, DOUBLING_GROWTH = 4, 8, 2.0
DIFFERENCE_CLIP = 0.3  # c
SMALLEST_RATE, SMALLEST_BATCH = 0.01, 256.0
LEAST_NOISE = 1.2  # standard deviation of a difference's noise over its clip
WELL_CONDITIONED, BADLY_CONDITIONED = 50.0, 1000.0
DOUBLING_STEPS, DOUBLING_FEWEST_STEPS, FEWEST_STEPS = 25, 5, 30
MOMENTUM, MOMENTUM_STEP = 0.9, 0.2
NU_PLAIN, NU_MOMENTUM = 0.4, 0.2
LEAST_SHARE = 0.5
RADIUS = 20.0  # over R: twice the distance at which an optimum is guessed


def condition_number(instance: Instance) -> float:
    """kappa = 1 + L / lam, infinite without a ridge; one that leaves a coordinate free counts by its strength."""
    ridge = instance.ridge or instance.penalty_smoothness
    return 1.0 + descent_defaults.smoothness(instance) / ridge if ridge > 0 else math.inf


def is_doubling(solver: Any) -> bool:
    """Whether epochs double in length."""
    return solver.schedule == "doubling"


def is_plain(solver: Any, instance: Instance) -> bool:
    """Whether it needs no momentum: well conditioned, as whitened coordinates are (only they give the curvature)."""
    well = solver.is_set("curvature") or condition_number(instance) <= WELL_CONDITIONED
    return well and not is_doubling(solver)


def epochs(solver: Any, instance: Instance) -> int:
    """E."""
    if is_doubling(solver):
        return DOUBLING_EPOCHS if instance.is_private else DOUBLING_NOISELESS_EPOCHS
    return EPOCHS if instance.is_private else NOISELESS_EPOCHS


def step_size(solver: Any, instance: Instance) -> float:
    """eta."""
    smoothness = descent_defaults.smoothness(instance) + instance.penalty_smoothness
    if is_doubling(solver):
        return MOMENTUM_STEP / smoothness
    step = 1.0 / smoothness
    return step if is_plain(solver, instance) else MOMENTUM_STEP * step


def most_inner_steps(solver: Any, instance: Instance) -> int:
    """m, if it is stable."""
    if is_doubling(solver):
        return DOUBLING_STEPS
    kappa = 1.0 if solver.is_set("curvature") else condition_number(instance)
    if kappa <= WELL_CONDITIONED:
        return math.ceil(min(max(2.0 * kappa, 50.0), 100.0))
    return 200 if kappa > BADLY_CONDITIONED else 100


def inner_steps(solver: Any, instance: Instance) -> int:
    """m, lowered by the factor by which nu is too large (nu is proportional to it)."""
    most, fewest = most_inner_steps(solver, instance), FEWEST_STEPS
    if is_doubling(solver):
        fewest = DOUBLING_FEWEST_STEPS
    share = solver.snapshot_share if solver.is_set("snapshot_share") else largest_share(solver, instance)
    too_large = strain(solver.with_(inner_steps=most, snapshot_share=share), instance)
    return min(most, max(fewest, math.floor(most / too_large))) if too_large > 1 else most


def largest_share(solver: Any, instance: Instance) -> float:
    """f, if it is stable."""
    if is_doubling(solver):
        return LEAST_SHARE
    return 0.9 if is_plain(solver, instance) else 0.8


def snapshot_share(solver: Any, instance: Instance) -> float:
    """f, lowered as far as nu asks (nu^2 is proportional to 1 / (1 - f)), at most to one half."""
    share = largest_share(solver, instance)
    too_large = strain(solver.with_(snapshot_share=share), instance)
    return min(share, max(LEAST_SHARE, 1.0 - (1.0 - share) * too_large**2)) if too_large > 1 else share


def snapshot_multipliers(solver: Any, instance: Instance) -> tuple[float, ...] | None:
    """z0: a fraction f of mu^2 together, growing by gamma an epoch; None where the solver falls back."""
    counts = snapshot_counts(solver)
    if falls_back(solver, instance):
        return None
    if not instance.is_private:
        return (0.0,) * len(counts)
    if instance.mu == 0:
        raise NotPriceable(
            "Gaussian noise is never private at delta = 0: choose delta well below 1 / n, such as 1 / n**2."
        )
    share = solver.snapshot_share if sum(epoch_lengths(solver)) else 1.0
    growth = solver.snapshot_growth if solver.variant == "once" else 1.0
    total = math.fsum(count * growth**s for s, count in enumerate(counts))
    return tuple(
        1.0 / (instance.mu * math.sqrt(share * growth**s / total)) if total else 1.0 / instance.mu
        for s in range(len(counts))
    )


def rate(solver: Any, instance: Instance) -> float | None:
    """The smallest of a few rates at which sampling still amplifies well; None where the solver falls back."""
    if falls_back(solver, instance):
        return None
    tried = min(1.0, max(SMALLEST_RATE, SMALLEST_BATCH / instance.public.n))
    if sum(epoch_lengths(solver)) == 0 or not instance.is_private:
        return tried
    relation = instance.public.relation
    while tried < 1.0:
        needed = difference_multiplier(solver.with_(rate=tried), instance.budget, relation)
        if needed * relation.factor >= LEAST_NOISE:
            return tried
        tried = min(1.0, 2.0 * tried)
    return tried


DEFAULTS = {
    "epochs": epochs,
    "snapshot_growth": lambda solver, instance: DOUBLING_GROWTH if is_doubling(solver) else GROWTH,
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "difference_clip": lambda solver, instance: DIFFERENCE_CLIP if instance.is_private else math.inf,
    "radius": lambda solver, instance: (
        RADIUS / instance.public.row_bound if instance.is_private else math.inf
    ),
    "step_size": step_size,
    "momentum": lambda solver, instance: 0.0 if is_plain(solver, instance) else MOMENTUM,
    "tail": lambda solver, instance: 1.0 if is_plain(solver, instance) else 0.5,
    "inner_steps": inner_steps,
    "snapshot_share": snapshot_share,
    "curvature": lambda solver, instance: descent_defaults.smoothness(instance),
    "snapshot_multipliers": snapshot_multipliers,
    "rate": rate,
}


def epoch_lengths(solver: Any) -> tuple[int, ...]:
    """Inner steps of every epoch: m each, or 2 m, 4 m, 8 m, ..."""
    doubling = is_doubling(solver)
    return tuple(solver.inner_steps * (2 ** (s + 1) if doubling else 1) for s in range(solver.epochs))


def snapshot_counts(solver: Any) -> tuple[int, ...]:
    """How often each epoch releases its snapshot's gradient."""
    lengths = epoch_lengths(solver)
    return lengths if solver.variant == "paper" else (1,) * len(lengths)


def sampling_of(rate: float) -> Sampling:
    """Poisson batches; a rate of 1 is everybody."""
    return EveryUnit() if rate >= 1 else Poisson(rate)


def event(solver: Any) -> Event:
    """The snapshots, and the differences on sampled units."""
    noises = zip(solver.snapshot_multipliers, snapshot_counts(solver), strict=True)
    events = [repeat(Gaussian(z).event(), count) for z, count in noises if count]
    steps = sum(epoch_lengths(solver))
    if steps:
        difference = sampling_of(solver.rate).event(Gaussian(solver.noise_multiplier).event())
        events.append(repeat(difference, steps))
    return sequence(events)


@functools.lru_cache(maxsize=256)
def difference_multiplier(solver: Any, budget: Budget, relation: Relation) -> float:
    """The smallest noise multiplier of the differences with which the whole run fits the budget."""
    if not budget.is_private:
        return 0.0
    if sum(epoch_lengths(solver)) == 0:
        return 1.0  # nothing is released with it
    return calibrate(lambda z: event(solver.with_(noise_multiplier=z)), budget, relation)


def instability(solver: Any, instance: Instance) -> float:
    """nu, see above; 0 with the noise off or without inner steps."""
    lengths = epoch_lengths(solver)
    if not instance.is_private or sum(lengths) == 0:
        return 0.0
    if instance.mu == 0 or solver.snapshot_share >= 1:
        return math.inf
    spread = math.sqrt(max(lengths) * sum(lengths) * instance.parameters / (1.0 - solver.snapshot_share))
    public = instance.public
    return solver.difference_clip * public.relation.factor * spread / (public.n * instance.mu)


def largest_instability(solver: Any) -> float:
    """The largest nu that is run."""
    return NU_PLAIN if solver.momentum == 0 else NU_MOMENTUM


def strain(solver: Any, instance: Instance) -> float:
    """nu over the largest that is run."""
    return instability(solver, instance) / largest_instability(solver)


def is_stable(solver: Any, instance: Instance) -> bool:
    """Whether the differences' noise stays small against the distance it is proportional to."""
    return instability(solver, instance) <= largest_instability(solver) * (1 + 1e-9)


def falls_back(solver: Any, instance: Instance) -> bool:
    """Whether gradient descent runs instead."""
    return solver.fall_back and not is_stable(solver, instance)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The excess that the last snapshot's noise leaves, and whether the stability test is passed."""
    nu, largest = instability(solver, instance), largest_instability(solver)
    if solver.fallback is not None:
        found = solver.fallback.forecast(instance)
        why = (
            f"{solver.title} would be unstable here, so gradient descent runs instead: with {solver.inner_steps} inner "
            f"steps and a snapshot share of {solver.snapshot_share:.2g} the noise of the differences comes to nu = "
            f"{nu:.3g}, and it must not exceed {largest:g}. More units or a larger epsilon would help."
        )
        return replace(found, notices=(why, *found.notices))
    passes = descent_defaults.descent_setting(instance, clip=solver.clip).steps
    notices = [*descent_defaults.forecast(instance, steps=passes, clip=solver.clip).notices]
    if solver.variant == "paper":
        notices.append(
            "variant='paper' releases a fresh gradient in every inner step: it reproduces the published algorithm, "
            "at a correct price, and is less accurate than variant='once'."
        )
    if instance.ridge == 0:
        notices.append(
            "the penalty is not strongly convex in every coordinate: variance reduction loses its advantage there, "
            "and gradient descent may do better."
        )
    if not is_stable(solver, instance):
        notices.append(
            f"the stability test fails (nu = {nu:.3g}, at most {largest:g}): the noise of the differences may grow "
            "without bound."
        )
    excess, meaning = _predicted_excess(solver, instance)
    return Forecast(excess=excess, meaning=meaning, notices=tuple(notices))


def in_coordinates(coordinates: Coordinates) -> dict[str, float]:
    """Clips and step size of whitened coordinates.

    There a unit's gradient changes by up to its row's length more than the mean's, so differences are clipped at
    `clip` times what the curvature allows; the mean loss is well conditioned, and momentum is not needed.
    """
    return {
        "clip": coordinates.clip,
        "curvature": coordinates.smoothness,
        "difference_clip": max(1.0, coordinates.clip),
        "step_size": 1.0 / (coordinates.smoothness + coordinates.ridge_smoothness),
        "momentum": 0.0,
        "tail": 1.0,
    }


def _predicted_excess(solver: Any, instance: Instance) -> tuple[float | None, str]:
    """The excess that the last snapshot's noise leaves, at most: 0.5 s^2 p / (lam f share_last)."""
    count, growth = solver.epochs, solver.snapshot_growth
    if not instance.is_private:
        return 0.0, "the noise is off"
    if instance.ridge == 0 or count == 0 or solver.variant == "paper":
        return None, "no formula without a ridge on every coordinate"
    noise = descent_defaults.noise_of_one(instance, solver.clip)
    share = solver.snapshot_share * (growth ** (count - 1) / sum(growth**s for s in range(count)))
    excess = 0.5 * noise**2 * instance.parameters / (instance.ridge * share)
    return instance.capped(excess), "an upper estimate: the ridge's curvature only"
