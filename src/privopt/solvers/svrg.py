"""Private variance-reduced descent: one released gradient per epoch, then many steps on released differences.

Minimises F(x) + r(x) over a closed convex set, F the mean loss of n units; F + r strongly convex, or for epochs that
double in length (SVRG++) convex. With the snapshot x~ and its released gradient G, an inner step releases on a sample

    D = mean_i clip(grad f(x, xi_i) - grad f(x~, xi_i), C') + noise,  C' = min(2 C, c L |x - x~|),   v = D + G,
    u <- b u + v + grad r(x),                                         x <- prox(x - eta u)  within the radius around x~

Source: Wang, Ye, Xu 2017, Algorithms 1 (DP-SVRG) and 2 (DP-SVRG++), repaired; Xiao, Zhang 2014 (Prox-SVRG); Allen-Zhu,
Yuan 2016 (SVRG++).
"""

import functools
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.errors import NotPriceable
from privopt.later import Array, Float, jax, jnp
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, EveryUnit, Poisson, Sampling, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.heavy_ball import HeavyBallState, heavy_ball_step

# ---- Defaults, stability and forecast of variance-reduced descent, from public quantities ------------------
# With n units, p parameters, rows of norm at most R, sensitivity factor S (2 under replace-one, else 1), budget mu
# (Gaussian DP), L the curvature of one record's loss, lam the ridge, and kappa = 1 + L / lam:
#
#     kappa      momentum b   step size eta      inner steps m               snapshot share f   output of an epoch
#     <= 50      0            1 / (L + lam)      2 kappa, within [50, 100]   0.9                mean of all iterates
#     > 50       0.9          0.2 / (L + lam)    100; 200 if kappa > 1000    0.8                mean of the last half
#     doubling   0.9          0.2 / (L + lam)    25                          0.5                mean of the last half
#
# 6 epochs, the snapshots' parts of mu^2 growing by the factor 3 from epoch to epoch (epochs that double: 4, factor 2);
# differences clipped to c L |x - x~|, c = 0.3; sampling rate q = max(0.01, 256 / n), doubled until the noise of a sum
# of differences has 1.2 times their clip as its standard deviation: with less, sampling amplifies little. If the ridge
# leaves a coordinate free (an intercept), lam is its strength on the others.
#
# Stability. The noise of a difference is proportional to |x - x~|, so too much of it makes |x - x~| grow exponentially.
# With M inner steps in all and m of them in the longest epoch,
#
#     nu = c S sqrt(m M p / (1 - f)) / (n mu)
#
# is how far the noise of an epoch's differences moves x, in units of |x - x~|. It must not exceed 0.4, or 0.2 with
# momentum (measured: at those values the excess is still that of the snapshots; at 0.6 it is three times that, at 2
# the run is useless). Where it does, fewer inner steps are tried first, then a smaller snapshot share; if neither
# helps, gradient descent runs instead.
#
# Source: ours; the shape of the schedule is that of Wang, Ye, Xu 2017, Algorithms 1 and 2. Utility only.
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
RADIUS = 20.0  # times 1 / R: twice the guessed distance of the optimum from the start


def condition_number(instance: Instance) -> float:
    """kappa = 1 + L / lam, infinite without a ridge; for one that leaves a coordinate free, lam is its strength."""
    ridge = instance.ridge or instance.penalty_smoothness
    return 1.0 + descent_theory.smoothness(instance) / ridge if ridge > 0 else math.inf


def sampling_of(rate: float) -> Sampling:
    """Poisson sampling at a rate in (0, 1); all units at rate 1."""
    return EveryUnit() if rate >= 1 else Poisson(rate)


# ---- One inner step of variance-reduced descent and its state; post-processing of releases -----------------
class SVRGState(NamedTuple):
    """The iterates of an epoch, and the settings that may differ between calls of one compiled loop; all public."""

    descent: HeavyBallState  # x; its average is over this epoch's iterates, its time counts the epoch's steps
    anchor: Float[Array, " *shape"]  # x~, where the snapshot was taken
    snapshot: Float[Array, " *shape"]  # G, the released gradient at x~
    tail_start: Float[Array, ""]  # the first step of the epoch whose iterate counts in its average
    step_size: Float[Array, ""]  # eta, params^2 / objective units
    clip: Float[Array, ""]  # C, gradient units
    slope_clip: Float[Array, ""]  # c L, gradient units per parameter unit
    radius: Float[Array, ""]  # of the ball around x~ that x stays in, parameter units
    problem: Problem


@dataclass(frozen=True, kw_only=True)
class SVRGStep:
    """One inner step, hashable by value so that equal configurations share one compiled loop.

    Attributes:
        noise: of the released difference.
        sampling: of the units that the difference is computed on.
        momentum: b.
        snapshot_noise: of the snapshot that every step of the paper's variant releases anew; None where it is reused.
    """

    noise: Gaussian
    sampling: Sampling
    momentum: float
    snapshot_noise: Gaussian | None = None

    def __call__(self, state: SVRGState, release: ReleaseCall) -> SVRGState:
        """v = released difference + snapshot; heavy ball; proximal step."""
        snapshot, loss = state.snapshot, state.problem.loss
        if self.snapshot_noise is not None:
            at_anchor = ClippedGradient(loss=loss, at=state.anchor, clip=state.clip)
            snapshot = release(at_anchor, self.snapshot_noise)
        difference = ClippedGradientDifference(
            loss=loss,
            at=state.descent.params,
            anchor=state.anchor,
            slope_clip=state.slope_clip,
            gradient_clip=state.clip,
        )
        change = release(difference, self.noise, self.sampling)
        return state._replace(descent=_step(state, change + snapshot, momentum=self.momentum))


@partial(jax.jit, static_argnames=("momentum",))
def _step(state: SVRGState, gradient: Array, *, momentum: float) -> HeavyBallState:
    """Algorithm 1, lines 7 and 8, with momentum: u = b u + v + grad r(x), x = prox(x - eta u), projected around x~."""
    descent, problem = state.descent, state.problem
    velocity = momentum * descent.velocity + gradient + problem.regulariser.gradient(descent.params)
    return heavy_ball_step(
        descent,
        velocity,
        problem=problem,
        step_size=state.step_size,
        momentum=momentum,
        tail_start=state.tail_start,
        keep=lambda params: _within(params, state.anchor, state.radius),
    )


def _within(params: Array, anchor: Array, radius: Array) -> Array:
    """Project `params` onto the ball of `radius` around the anchor; a convex set that holds both holds the result."""
    away = params - anchor
    distance = jnp.sqrt(jnp.sum(away * away))
    inside = ~(distance > radius)
    return jnp.where(inside, params, anchor + away * (radius / jnp.where(inside, 1.0, distance)))


def barzilai_borwein(state: SVRGState, previous: SVRGState, longest: float) -> Array:
    """The Barzilai-Borwein step |dx|^2 / <dx, dG + d grad r>, d the change between snapshots, in [0.1, 1] `longest`."""
    regulariser = state.problem.regulariser
    moved = state.anchor - previous.anchor
    slope = regulariser.gradient(state.anchor) - regulariser.gradient(previous.anchor)
    curved = jnp.sum(moved * (state.snapshot - previous.snapshot + slope))
    ratio = jnp.sum(moved * moved) / jnp.where(curved > 0, curved, 1.0)
    return jnp.where(curved > 0, jnp.clip(ratio, 0.1 * longest, longest), longest)


@dataclass(frozen=True, kw_only=True)
class SVRG(Solver):
    """Private stochastic variance-reduced gradient descent.

    Each epoch releases the clipped gradient G at a snapshot x~ once, and every inner step only the clipped difference
    between the gradients at x and at x~ on a secret sample. The difference of one unit is at most
    C' = min(2 C, c L |x - x~|), which is public and shrinks as the run settles, and so does its noise: what is
    left is the noise of the last snapshot, which by default gets two thirds of the snapshots' budget.

    Attributes:
        noise_multiplier: z1, of the differences, over the sensitivity S C' / (q n).
        schedule: "equal", or "doubling": epoch s has 2^(s+1) m inner steps and starts from the last iterate, not from
            the snapshot (SVRG++).
        epochs: E, at least 0; 0 returns the start and spends nothing.
        inner_steps: m, steps in an epoch; 0 releases the snapshots and leaves x~ where it is.
        rate: q, expected fraction of the units in a step's batch; 1 is everybody, unsampled.
        step_size: eta.
        momentum: heavy-ball b in [0, 1).
        clip: C, the largest norm of one unit's gradient.
        curvature: L, a guess of the smoothness of the mean loss; utility only.
        difference_clip: c, a fraction of the change L |x - x~| that the curvature allows; utility only.
        snapshot_share: f in (0, 1], the part of mu^2 that the snapshots get.
        snapshot_growth: gamma, by which their budget grows from epoch to epoch.
        snapshot_multipliers: z0, one an epoch, over the sensitivity S C / n; derived from the two above.
        tail: fraction of an epoch's iterates whose mean is its output.
        radius: x stays within this distance of x~.
        barzilai_borwein: set each epoch's step size from the change between snapshots, in [0.1, 1] step_size.
        variant: "once", or "paper", which releases the snapshot's gradient anew in each inner step; only to reproduce.
        fall_back: whether to run gradient descent instead where the stability test fails; else it runs all the same.
        fallback: the gradient descent that runs instead, set by `configure`.
    Guarantee:
        E Gaussian releases and sum(m) Gaussian releases on Poisson samples, priced as one tree by numerical
        accounting, (epsilon, delta)-DP under the curator's relation for any data, loss and parameters. C', eta,
        averages and the projection are functions of releases.
    Differs from the paper:
        The noise of its Algorithm 1 is not private: the proof needs T m >= n^2 epsilon, the experiments have far
        fewer steps, and at them delta is 0.31 for the stated 0.001. Here the noise is calibrated. Its single-record
        batches are Poisson samples of many units, the snapshot is released once an epoch instead of in every step,
        differences are clipped by distance, and momentum serves ill-conditioned problems. Its theorem on Algorithm 2
        counts 2^T m noisy steps where the algorithm makes (2^(T+1) - 2) m, and its m = Theta(L) is a count set to a
        curvature; here every step is counted, and m is a small number of steps.
    Source:
        Wang, Ye, Xu 2017, Algorithms 1 and 2.
    """

    name: ClassVar[str] = "svrg"
    for_convex: ClassVar[str] = "its epochs and its bound"
    preconditions: ClassVar[bool] = True

    schedule: Literal["equal", "doubling"] = choice("equal")
    epochs: int = derived(at_least=0)
    inner_steps: int = derived(at_least=0)
    rate: float = derived(above=0, at_most=1)
    step_size: float = derived(above=0)
    momentum: float = derived(at_least=0, below=1)
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    difference_clip: float = derived(above=0)
    snapshot_share: float = derived(above=0, at_most=1)
    snapshot_growth: float = derived(above=0, below=math.inf)
    snapshot_multipliers: tuple[float, ...] = derived()
    tail: float = derived(above=0, at_most=1)
    radius: float = derived(above=0)
    barzilai_borwein: bool = False
    variant: Literal["once", "paper"] = choice("once")
    fall_back: bool = True
    fallback: GradientDescent | None = None

    def default_epochs(self, instance: Instance) -> int:
        """E: 6, or 4 where epochs double in length; more with the noise off."""
        if self._is_doubling():
            return DOUBLING_EPOCHS if instance.is_private else DOUBLING_NOISELESS_EPOCHS
        return EPOCHS if instance.is_private else NOISELESS_EPOCHS

    def default_snapshot_growth(self, instance: Instance) -> float:
        del instance
        return DOUBLING_GROWTH if self._is_doubling() else GROWTH

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_difference_clip(self, instance: Instance) -> float:
        return DIFFERENCE_CLIP if instance.is_private else math.inf

    def default_radius(self, instance: Instance) -> float:
        return RADIUS / instance.public.row_bound if instance.is_private else math.inf

    def default_step_size(self, instance: Instance) -> float:
        """eta, by the table above the class."""
        smoothness = descent_theory.smoothness(instance) + instance.penalty_smoothness
        if self._is_doubling():
            return MOMENTUM_STEP / smoothness
        step = 1.0 / smoothness
        return step if self.is_plain(instance) else MOMENTUM_STEP * step

    def default_momentum(self, instance: Instance) -> float:
        return 0.0 if self.is_plain(instance) else MOMENTUM

    def default_tail(self, instance: Instance) -> float:
        return 1.0 if self.is_plain(instance) else 0.5

    def default_inner_steps(self, instance: Instance) -> int:
        """m, lowered by the factor by which nu exceeds its limit (nu is proportional to m), at most to the fewest."""
        most, fewest = self._tabulated_inner_steps(instance), FEWEST_STEPS
        if self._is_doubling():
            fewest = DOUBLING_FEWEST_STEPS
        share = self.snapshot_share if self.is_set("snapshot_share") else self.largest_share(instance)
        too_large = self.with_(inner_steps=most, snapshot_share=share)._stability_ratio(instance)
        return min(most, max(fewest, math.floor(most / too_large))) if too_large > 1 else most

    def default_snapshot_share(self, instance: Instance) -> float:
        """f, lowered until nu is at its limit (nu^2 is proportional to 1 / (1 - f)), at most to one half."""
        share = self.largest_share(instance)
        too_large = self.with_(snapshot_share=share)._stability_ratio(instance)
        return min(share, max(LEAST_SHARE, 1.0 - (1.0 - share) * too_large**2)) if too_large > 1 else share

    def default_curvature(self, instance: Instance) -> float:
        # Defined after the defaults that ask whether it was given: they are derived in this order.
        return descent_theory.smoothness(instance)

    def default_snapshot_multipliers(self, instance: Instance) -> tuple[float, ...] | None:
        """z0 per epoch: 1 / z0^2 adds up to f mu^2 and grows by gamma; None where the solver falls back."""
        counts = self._snapshot_counts()
        if self._falls_back(instance):
            return None
        if not instance.is_private:
            return (0.0,) * len(counts)
        if instance.mu == 0:
            raise NotPriceable(
                "Gaussian noise is never private at delta = 0: choose delta well below 1 / n, such as 1 / n**2."
            )
        share = self.snapshot_share if sum(self.lengths()) else 1.0
        growth = self.snapshot_growth if self.variant == "once" else 1.0
        total = math.fsum(count * growth**s for s, count in enumerate(counts))
        return tuple(
            1.0 / (instance.mu * math.sqrt(share * growth**s / total)) if total else 1.0 / instance.mu
            for s in range(len(counts))
        )

    def default_rate(self, instance: Instance) -> float | None:
        """q, doubled until z1 S, a sum's noise over the clip, is at least 1.2; None where the solver falls back."""
        if self._falls_back(instance):
            return None
        tried = min(1.0, max(SMALLEST_RATE, SMALLEST_BATCH / instance.public.n))
        if sum(self.lengths()) == 0 or not instance.is_private:
            return tried
        relation = instance.public.relation
        while tried < 1.0:
            needed = difference_multiplier(self.with_(rate=tried), instance.budget, relation)
            if needed * relation.factor >= LEAST_NOISE:
                return tried
            tried = min(1.0, 2.0 * tried)
        return tried

    @classmethod
    def plus_plus(cls, **fields: Any) -> Self:
        """SVRG++, Algorithm 2."""
        return cls(schedule="doubling", **fields)

    @property
    def title(self) -> str:
        """The name in plans: "svrg", or "svrg-plus-plus" with epochs that double in length."""
        return "svrg-plus-plus" if self._is_doubling() else self.name

    def filled(self, instance: Instance) -> Self:
        """The solver with its defaults, and with gradient descent as `fallback` where nu exceeds its limit."""
        if self.fallback is not None:
            return self.with_(fallback=self.fallback.filled(instance))
        solver = super().filled(instance)
        if not solver._falls_back(instance):
            return solver
        step_size = self.step_size if self.is_set("curvature") else None
        return solver.with_(
            fallback=GradientDescent().with_(clip=self.clip, step_size=step_size).filled(instance)
        )

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open, then calibrate the differences' noise to what the snapshots leave.

        Returns:
            A solver whose whole plan costs at most the budget, and at least 0.999 of its epsilon.
        """
        solver = self.filled(instance)
        if solver.fallback is not None:
            descent = solver.fallback.configure(instance)
            return solver.with_(fallback=descent, noise_multiplier=descent.noise_multiplier)
        if solver.is_set("noise_multiplier"):
            return solver
        multiplier = difference_multiplier(solver, instance.budget, instance.public.relation)
        return solver.with_(noise_multiplier=multiplier)

    def check_configured(self) -> None:
        if self.fallback is None:  # which leaves rate and snapshot multipliers open
            super().check_configured()

    def scaled(self, factor: float) -> Self:
        """The same configured solver with the noise of snapshots and differences times `factor`."""
        solver = super().scaled(factor)
        if self.fallback is not None:
            return solver.with_(fallback=self.fallback.scaled(factor))
        return solver.with_(snapshot_multipliers=tuple(z * factor for z in self.snapshot_multipliers))

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The solver with the clips and the step size of whitened coordinates.

        There one unit's gradient may change by up to its row's length times more than the mean gradient, so c is
        max(1, `clip`); the mean loss is well conditioned, and momentum is not needed.
        """
        if self.fallback is not None:
            return self.with_(fallback=self.fallback.in_coordinates(coordinates))
        return self.with_(
            clip=coordinates.clip,
            curvature=coordinates.smoothness,
            difference_clip=max(1.0, coordinates.clip),
            step_size=1.0 / (coordinates.smoothness + coordinates.ridge_smoothness),
            momentum=0.0,
            tail=1.0,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithms 1 and 2; see the class for where it differs."""
        if self.fallback is not None:
            return self.fallback.run(curator, problem, start)
        lengths = self.lengths()
        # All epochs run as repetitions of a loop of this many steps, so that unequal ones share one compiled loop.
        chunk = max(1, math.gcd(*lengths))
        state = self._initial_state(problem, start)
        for length, multiplier in zip(lengths, self.snapshot_multipliers, strict=True):
            previous = state
            state = state._replace(anchor=state.descent.average)  # line 2
            if self.variant == "once":
                at_anchor = ClippedGradient(loss=problem.loss, at=state.anchor, clip=state.clip)
                state = state._replace(snapshot=curator.release(at_anchor, Gaussian(multiplier)))  # line 3
            state = self._at_epoch_start(state, previous, length)  # line 4
            step = self._inner_step(multiplier)
            for _ in range(length // chunk):
                state = curator.iterate(step, state, chunk)  # lines 5 to 9
        return Outcome(state.descent.average, ending(state.descent.finite))  # line 10: the last epoch's mean

    def _inner_step(self, snapshot_multiplier: float) -> SVRGStep:
        return SVRGStep(
            noise=Gaussian(self.noise_multiplier),
            sampling=sampling_of(self.rate),
            momentum=self.momentum,
            snapshot_noise=Gaussian(snapshot_multiplier) if self.variant == "paper" else None,
        )

    def _initial_state(self, problem: Problem, start: Array) -> SVRGState:
        return SVRGState(
            descent=HeavyBallState.at(start),
            anchor=start,
            snapshot=jnp.zeros_like(start),
            tail_start=jnp.zeros(()),
            step_size=jnp.asarray(self.step_size, jnp.float64),
            clip=jnp.asarray(self.clip, jnp.float64),
            slope_clip=jnp.asarray(self.difference_clip * self.curvature, jnp.float64),
            radius=jnp.asarray(self.radius, jnp.float64),
            problem=problem,
        )

    def _at_epoch_start(self, state: SVRGState, previous: SVRGState, length: int) -> SVRGState:
        """The state at an epoch's first inner step: at rest, at the snapshot or (SVRG++) at the last iterate."""
        descent = state.descent
        if not self._is_doubling():
            descent = descent._replace(params=state.anchor)
        if self.barzilai_borwein and self.variant == "once":
            state = state._replace(step_size=barzilai_borwein(state, previous, self.step_size))
        return state._replace(
            descent=descent._replace(velocity=jnp.zeros_like(descent.velocity), time=jnp.zeros(())),
            tail_start=jnp.asarray(length - math.ceil(self.tail * length), jnp.float64),
        )

    def lengths(self) -> tuple[int, ...]:
        """The number of inner steps of each epoch, (E,): m each, or 2 m, 4 m, 8 m, ... where epochs double."""
        doubling = self._is_doubling()
        return tuple(self.inner_steps * (2 ** (s + 1) if doubling else 1) for s in range(self.epochs))

    def _is_doubling(self) -> bool:
        """Whether epochs double in length."""
        return self.schedule == "doubling"

    def _snapshot_counts(self) -> tuple[int, ...]:
        """How often each epoch releases its snapshot's gradient, (E,): once, or in each step of the paper's variant."""
        lengths = self.lengths()
        return lengths if self.variant == "paper" else (1,) * len(lengths)

    def event(self, public: Public) -> Event:
        """The event of the snapshots and of the differences on sampled units, or that of the fallback."""
        return self.own_event() if self.fallback is None else self.fallback.event(public)

    def own_event(self) -> Event:
        """The event of a run of variance reduction, whether or not a fallback runs instead."""
        noises = zip(self.snapshot_multipliers, self._snapshot_counts(), strict=True)
        events = [repeat(Gaussian(z).event(), count) for z, count in noises if count]
        steps = sum(self.lengths())
        if steps:
            difference = sampling_of(self.rate).event(Gaussian(self.noise_multiplier).event())
            events.append(repeat(difference, steps))
        return sequence(events)

    def releases(self) -> int:
        """One per epoch and one per inner step; in the paper's variant two per inner step."""
        if self.fallback is not None:
            return self.fallback.releases()
        return sum(self._snapshot_counts()) + sum(self.lengths())

    def passes(self) -> float:
        """One for each snapshot; an inner step takes gradients at two points of a fraction `rate` of the units."""
        if self.fallback is not None:
            return self.fallback.passes()
        return sum(self._snapshot_counts()) + 2.0 * self.rate * sum(self.lengths())

    # Stability and forecast, by the comment at the top of the file -------------------------------------------------
    def is_plain(self, instance: Instance) -> bool:
        """Whether the problem is well conditioned and needs no momentum, as in whitened coordinates.

        A `curvature` that is given counts as that: whitened coordinates give it.
        """
        well = self.is_set("curvature") or condition_number(instance) <= WELL_CONDITIONED
        return well and not self._is_doubling()

    def _tabulated_inner_steps(self, instance: Instance) -> int:
        """m by the table above, before it is lowered for stability."""
        if self._is_doubling():
            return DOUBLING_STEPS
        kappa = 1.0 if self.is_set("curvature") else condition_number(instance)
        if kappa <= WELL_CONDITIONED:
            return math.ceil(min(max(2.0 * kappa, 50.0), 100.0))
        return 200 if kappa > BADLY_CONDITIONED else 100

    def largest_share(self, instance: Instance) -> float:
        """f by the table above, before it is lowered for stability."""
        if self._is_doubling():
            return LEAST_SHARE
        return 0.9 if self.is_plain(instance) else 0.8

    def instability(self, instance: Instance) -> float:
        """nu of the comment at the top of the file; 0 with the noise off or without inner steps."""
        lengths = self.lengths()
        if not instance.is_private or sum(lengths) == 0:
            return 0.0
        if instance.mu == 0 or self.snapshot_share >= 1:
            return math.inf
        spread = math.sqrt(max(lengths) * sum(lengths) * instance.parameters / (1.0 - self.snapshot_share))
        public = instance.public
        return self.difference_clip * public.relation.factor * spread / (public.n * instance.mu)

    def _instability_limit(self) -> float:
        """The limit of nu, beyond which gradient descent runs instead."""
        return NU_PLAIN if self.momentum == 0 else NU_MOMENTUM

    def _stability_ratio(self, instance: Instance) -> float:
        """nu over its limit."""
        return self.instability(instance) / self._instability_limit()

    def _is_stable(self, instance: Instance) -> bool:
        """The stability test: nu is at most its limit, up to rounding."""
        return self.instability(instance) <= self._instability_limit() * (1 + 1e-9)

    def _falls_back(self, instance: Instance) -> bool:
        """Whether gradient descent runs instead: the stability test fails and `fall_back` allows it."""
        return self.fall_back and not self._is_stable(instance)

    def longest_step(self, instance: Instance) -> float:
        """The stability limit 2 (1 + b) / L of steps with heavy ball."""
        return self.gradient_limit(instance, momentum=self.momentum or 0.0)

    def forecast(self, instance: Instance) -> Forecast:
        """The excess that the last snapshot's noise leaves, and a notice where the stability test fails."""
        nu, largest = self.instability(instance), self._instability_limit()
        if self.fallback is not None:
            found = self.fallback.forecast(instance)
            why = (
                f"{self.title} would be unstable here, so gradient descent runs instead: with {self.inner_steps} inner "
                f"steps and a snapshot share of {self.snapshot_share:.2g} the noise of the differences comes to nu = "
                f"{nu:.3g}, and it must not exceed {largest:g}. More units or a larger epsilon would help."
            )
            return replace(found, notices=(why, *found.notices))
        passes = descent_theory.descent_setting(instance, clip=self.clip).steps
        notices = [*descent_theory.forecast(instance, steps=passes, clip=self.clip).notices]
        if self.variant == "paper":
            notices.append(
                "variant='paper' releases a fresh gradient in every inner step: it reproduces the published algorithm, "
                "at a correct price, and is less accurate than variant='once'."
            )
        if instance.ridge == 0:
            notices.append(
                "the penalty is not strongly convex in every coordinate: variance reduction loses its advantage there, "
                "and gradient descent may do better."
            )
        if not self._is_stable(instance):
            notices.append(
                f"the stability test fails (nu = {nu:.3g}, at most {largest:g}): the noise of the differences may grow "
                "without bound."
            )
        excess, meaning = self._predicted_excess(instance)
        return Forecast(excess=excess, meaning=meaning, notices=tuple(notices))

    def _predicted_excess(self, instance: Instance) -> tuple[float | None, str]:
        """0.5 s^2 p / (lam f share_last), an upper estimate of the excess by the last snapshot's noise, and in words.

        s is the noise of one gradient that spends the whole budget, share_last the last snapshot's part of f mu^2.
        """
        count, growth = self.epochs, self.snapshot_growth
        if not instance.is_private:
            return 0.0, "the noise is off"
        if instance.ridge == 0 or count == 0 or self.variant == "paper":
            return None, "no formula without a ridge on every coordinate"
        noise = descent_theory.noise_of_one(instance, self.clip)
        share = self.snapshot_share * (growth ** (count - 1) / sum(growth**s for s in range(count)))
        excess = 0.5 * noise**2 * instance.parameters / (instance.ridge * share)
        return instance.capped(excess), "an upper estimate: the ridge's curvature only"


@functools.lru_cache(maxsize=256)
def difference_multiplier(solver: "SVRG", budget: Budget, relation: Relation) -> float:
    """z1, the smallest noise multiplier of the differences with which snapshots and differences fit the budget."""
    if not budget.is_private:
        return 0.0
    if sum(solver.lengths()) == 0:
        return 1.0  # nothing is released with it
    return calibrate(lambda z: solver.with_(noise_multiplier=z).own_event(), budget, relation)
