"""Settings of variance-reduced descent from public quantities, and the test that it does not blow up its own noise.

With n units, p parameters, rows of norm at most R, sensitivity factor S, budget mu (Gaussian DP), L the curvature of
one record's loss, lam the ridge, and kappa = 1 + L / lam:

    kappa      momentum b   step size eta      inner steps m               snapshot share f   output of an epoch
    <= 50      0            1 / (L + lam)      2 kappa, within [50, 100]   0.9                mean of all iterates
    > 50       0.9          0.2 / (L + lam)    100; 200 if kappa > 1000    0.8                mean of the last half

and 6 epochs, snapshot budgets growing by 3 from epoch to epoch, differences clipped to 0.3 L |x - x~|, batches of
q = max(0.01, 256 / n) of the units, doubled until the noise multiplier over the clip is 1.2: below it, sampling
amplifies little. Where the ridge leaves a coordinate free, its strength on the others stands for lam.

Stability. The noise of a difference is proportional to |x - x~|, so too much of it makes |x - x~| grow exponentially.
With M inner steps in all, m of them in the longest epoch, and zeta the slope clip over L,

    nu = zeta S sqrt(m M p / (1 - f)) / (n mu)

is how far the noise of an epoch's differences moves x, in units of |x - x~|. It must not exceed 0.4, or 0.2 with
momentum (measured: at those values the excess is still that of the snapshots; at 0.6 it is three times, at 2 all is
lost). Fewer inner steps, then a smaller snapshot share, are tried first.

Source: ours; the shape of the schedule is that of Wang, Ye, Xu 2017, Algorithms 1 and 2. Utility only.
"""

import functools
import math
from dataclasses import dataclass

from privopt.errors import NotPriceable
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, repeat, sequence
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.ledger.sampling import EveryUnit, Poisson, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.problems.problem import Problem
from privopt.public import Public, Relation

EPOCHS, NOISELESS_EPOCHS = 6, 40
SLOPE_FRACTION = 0.3  # zeta
SMALLEST_RATE, SMALLEST_BATCH = 0.01, 256.0
LEAST_NOISE = 1.2  # standard deviation of a difference's noise over its clip
WELL_CONDITIONED, BADLY_CONDITIONED = 50.0, 1000.0
MOMENTUM, MOMENTUM_STEP = 0.9, 0.2
NU_PLAIN, NU_MOMENTUM = 0.4, 0.2
LEAST_SHARE = 0.5
PLUS_PLUS_EPOCHS, PLUS_PLUS_NOISELESS_EPOCHS, PLUS_PLUS_STEPS = 4, 8, 25
REACH = 20.0  # over R: twice the distance at which an optimum is guessed


@dataclass(frozen=True, kw_only=True)
class SVRGSetting:
    """Derived parameters of a variance-reduced solver; see the module's table."""

    epochs: int
    inner_steps: int
    step_size: float
    momentum: float
    tail: float
    clip: float
    curvature: float
    slope_clip: float
    snapshot_share: float
    reach: float


def epoch_lengths(epochs: int, inner_steps: int, *, doubling: bool) -> tuple[int, ...]:
    """Inner steps of every epoch: m each, or 2 m, 4 m, 8 m, ..."""
    return tuple(inner_steps * (2 ** (s + 1) if doubling else 1) for s in range(epochs))


def sampling_of(rate: float) -> Sampling:
    """Poisson batches; a rate of 1 is everybody."""
    return EveryUnit() if rate >= 1 else Poisson(rate)


def penalty_curvature(problem: Problem) -> float:
    """lam: the ridge's strong convexity, or its strength where it leaves a coordinate free."""
    return problem.regulariser.strong_convexity or problem.regulariser.smoothness


def condition_number(problem: Problem, public: Public) -> float:
    """kappa = 1 + L / lam, infinite without a ridge."""
    ridge = penalty_curvature(problem)
    return 1.0 + descent_defaults.smoothness(problem, public) / ridge if ridge > 0 else math.inf


def svrg_setting(
    problem: Problem, public: Public, budget: Budget, *, clip: float | None, whitened: bool
) -> SVRGSetting:
    """The setting for epochs of equal length; whitened coordinates count as well conditioned."""
    kappa = 1.0 if whitened else condition_number(problem, public)
    curvature = descent_defaults.smoothness(problem, public)
    plain = kappa <= WELL_CONDITIONED
    longest = 200 if kappa > BADLY_CONDITIONED else 100
    step_size = 1.0 / (curvature + problem.regulariser.smoothness)
    return SVRGSetting(
        epochs=EPOCHS if budget.is_private else NOISELESS_EPOCHS,
        inner_steps=math.ceil(min(max(2.0 * kappa, 50.0), 100.0)) if plain else longest,
        step_size=step_size if plain else MOMENTUM_STEP * step_size,
        momentum=0.0 if plain else MOMENTUM,
        tail=1.0 if plain else 0.5,
        clip=descent_defaults.default_clip(problem, public, budget) if clip is None else clip,
        curvature=curvature,
        slope_clip=SLOPE_FRACTION * curvature if budget.is_private else math.inf,
        snapshot_share=0.9 if plain else 0.8,
        reach=REACH / public.row_bound if budget.is_private else math.inf,
    )


def plus_plus_setting(problem: Problem, public: Public, budget: Budget, *, clip: float | None) -> SVRGSetting:
    """The setting for epochs that double: few of them, momentum, half of the budget on snapshots."""
    curvature = descent_defaults.smoothness(problem, public)
    return SVRGSetting(
        epochs=PLUS_PLUS_EPOCHS if budget.is_private else PLUS_PLUS_NOISELESS_EPOCHS,
        inner_steps=PLUS_PLUS_STEPS,
        step_size=MOMENTUM_STEP / (curvature + problem.regulariser.smoothness),
        momentum=MOMENTUM,
        tail=0.5,
        clip=descent_defaults.default_clip(problem, public, budget) if clip is None else clip,
        curvature=curvature,
        slope_clip=SLOPE_FRACTION * curvature if budget.is_private else math.inf,
        snapshot_share=LEAST_SHARE,
        reach=REACH / public.row_bound if budget.is_private else math.inf,
    )


def instability(
    problem: Problem,
    public: Public,
    budget: Budget,
    *,
    lengths: tuple[int, ...],
    slope_fraction: float,
    snapshot_share: float,
) -> float:
    """nu, see above; 0 with the noise off or without inner steps.

    Args:
        problem: for the number of parameters.
        public: n and the relation.
        budget: of the whole run.
        lengths: inner steps of every epoch.
        slope_fraction: zeta.
        snapshot_share: f.
    """
    if not budget.is_private or sum(lengths) == 0:
        return 0.0
    mu = gaussian_mu(budget.epsilon, budget.delta)
    if mu == 0 or snapshot_share >= 1:
        return math.inf
    parameters = math.prod(problem.parameter_shape(public))
    spread = math.sqrt(max(lengths) * sum(lengths) * parameters / (1.0 - snapshot_share))
    return slope_fraction * public.relation.factor * spread / (public.n * mu)


def largest_instability(momentum: float) -> float:
    """The largest nu that is run."""
    return NU_PLAIN if momentum == 0 else NU_MOMENTUM


def fewer_steps(inner_steps: int, excess: float, fewest: int) -> int:
    """Inner steps lowered by the factor `excess` by which nu is too large (nu is proportional to them)."""
    return min(inner_steps, max(fewest, math.floor(inner_steps / excess))) if excess > 1 else inner_steps


def smaller_share(share: float, excess: float) -> float:
    """The snapshot share lowered as far as nu asks (nu^2 is proportional to 1 / (1 - share)), at most to one half."""
    return min(share, max(LEAST_SHARE, 1.0 - (1.0 - share) * excess**2)) if excess > 1 else share


def snapshot_multipliers(
    budget: Budget, share: float, growth: float, releases: tuple[int, ...]
) -> tuple[float, ...]:
    """Noise multipliers of the snapshots: together a fraction `share` of mu^2, growing by `growth` an epoch.

    Args:
        budget: of the whole run.
        share: f in (0, 1).
        growth: gamma, the factor between the budgets of one epoch's release and the next epoch's.
        releases: how many releases an epoch makes with its multiplier.
    """
    if not budget.is_private:
        return (0.0,) * len(releases)
    mu = gaussian_mu(budget.epsilon, budget.delta)
    if mu == 0:
        raise NotPriceable(
            "Gaussian noise is never private at delta = 0: choose delta well below 1 / n, such as 1 / n**2."
        )
    total = math.fsum(count * growth**s for s, count in enumerate(releases))
    return tuple(
        1.0 / (mu * math.sqrt(share * growth**s / total)) if total else 1.0 / mu for s in range(len(releases))
    )


def svrg_event(
    snapshots: tuple[float, ...], releases: tuple[int, ...], rate: float, steps: int, noise_multiplier: float
) -> Event:
    """`releases[s]` Gaussian releases of multiplier `snapshots[s]`, and `steps` sampled ones of `noise_multiplier`.

    Args:
        snapshots: noise multipliers of the snapshots, one an epoch.
        releases: how often an epoch releases its snapshot.
        rate: q of the differences' batches.
        steps: number of differences.
        noise_multiplier: of the differences.
    """
    events = [
        repeat(Gaussian(z).event(), count) for z, count in zip(snapshots, releases, strict=True) if count
    ]
    if steps:
        events.append(repeat(sampling_of(rate).event(Gaussian(noise_multiplier).event()), steps))
    return sequence(events)


@functools.lru_cache(maxsize=256)
def difference_multiplier(
    budget: Budget,
    relation: Relation,
    snapshots: tuple[float, ...],
    releases: tuple[int, ...],
    rate: float,
    steps: int,
) -> float:
    """The smallest noise multiplier of the differences with which the whole run fits the budget."""
    if not budget.is_private:
        return 0.0
    if steps == 0:
        return 1.0  # nothing is released with it
    return calibrate(lambda z: svrg_event(snapshots, releases, rate, steps, z), budget, relation)


def smallest_rate(
    public: Public, budget: Budget, snapshots: tuple[float, ...], releases: tuple[int, ...], steps: int
) -> float:
    """The smallest of a few rates at which sampling still amplifies well."""
    rate = min(1.0, max(SMALLEST_RATE, SMALLEST_BATCH / public.n))
    if steps == 0 or not budget.is_private:
        return rate
    while rate < 1.0:
        needed = difference_multiplier(budget, public.relation, snapshots, releases, rate, steps)
        if needed * public.relation.factor >= LEAST_NOISE:
            return rate
        rate = min(1.0, 2.0 * rate)
    return rate
