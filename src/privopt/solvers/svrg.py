"""Private variance-reduced descent: one released gradient an epoch, then many cheap steps on released differences.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i), for F + r strongly convex.
Source: Wang, Ye, Xu 2017, Algorithm 1 (DP-SVRG), repaired; Xiao, Zhang 2014 (Prox-SVRG).
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults, svrg
from privopt.planning.coordinates import Coordinates
from privopt.planning.svrg import SVRGSetting
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver, required
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.svrg_step import SVRGState, SVRGStep, barzilai_borwein


@dataclass(frozen=True, kw_only=True)
class SVRG(Solver):
    """Private stochastic variance-reduced gradient descent.

    Each epoch releases the clipped gradient G at a snapshot x~ once, and every inner step only the clipped difference
    between the gradients at x and at x~ on a secret sample. The difference of one unit is at most
    h = min(2 C, slope_clip |x - x~|), which is public and shrinks as the run settles, and so does its noise: what is
    left is the noise of the last snapshot, which gets two thirds of the snapshots' budget.

    Attributes:
        noise_multiplier: z1, of the differences, over the sensitivity S h / (q n).
        epochs: E, at least 0; 0 returns the start and spends nothing.
        inner_steps: m, steps in an epoch; 0 releases the snapshots and leaves x~ where it is.
        rate: q, expected fraction of the units in a step's batch, in (0, 1]; 1 is everybody, unsampled.
        step_size: eta.
        momentum: heavy-ball b in [0, 1).
        clip: C, the largest norm of one unit's gradient.
        curvature: L, a guess of the smoothness of the mean loss; utility only.
        slope_clip: zeta L, the largest change of one unit's gradient for each unit of distance.
        snapshot_share: f in (0, 1), the part of mu^2 that the snapshots get.
        snapshot_growth: gamma, by which their budget grows from epoch to epoch.
        snapshot_multipliers: z0, one an epoch, over the sensitivity S C / n; derived from the two above.
        tail: fraction of an epoch's iterates whose mean is its output, in (0, 1].
        reach: x stays within this distance of x~.
        barzilai_borwein: set each epoch's step size from the change between snapshots, in [0.1, 1] step_size.
        design: "once", or "paper", which releases the snapshot's gradient anew in each inner step; only to reproduce.
        fall_back: whether to run gradient descent instead where the stability test fails; else it runs all the same.
        fallback: the gradient descent that runs instead, set by `configure`.
    Guarantee:
        E Gaussian releases and sum(m) Gaussian releases on Poisson samples, priced as one tree by numerical
        accounting, (epsilon, delta)-DP under the curator's relation for any data, loss and parameters. h, eta, averages
        and the projection are functions of releases.
    Differs from the paper:
        The noise of its Algorithm 1 is not private: the proof needs T m >= n^2 epsilon, the experiments have far
        fewer steps, and at them delta is 0.31 for the stated 0.001. Here the noise is calibrated. Its single-record
        batches are Poisson samples of many units, the snapshot is released once an epoch instead of in every step,
        differences are clipped by distance, and momentum serves ill-conditioned problems.
    Source:
        Wang, Ye, Xu 2017, Algorithm 1.
    """

    epochs: int | None = None
    inner_steps: int | None = None
    rate: float | None = None
    step_size: float | None = None
    momentum: float | None = None
    clip: float | None = None
    curvature: float | None = None
    slope_clip: float | None = None
    snapshot_share: float | None = None
    snapshot_growth: float = 3.0
    snapshot_multipliers: tuple[float, ...] | None = None
    tail: float | None = None
    reach: float | None = None
    barzilai_borwein: bool = False
    design: Literal["once", "paper"] = "once"
    fall_back: bool = True
    fallback: GradientDescent | None = None

    preconditions: ClassVar[bool] = True
    doubling: ClassVar[bool] = False  # whether epochs double in length
    carry_last: ClassVar[bool] = (
        False  # whether an epoch starts from the last iterate instead of the snapshot
    )
    fewest_steps: ClassVar[int] = 30  # inner steps the stability test may go down to

    def __post_init__(self) -> None:
        _check(self)

    @property
    def name(self) -> str:
        """The solver's name."""
        return "svrg"

    def lengths(self) -> tuple[int, ...]:
        """Inner steps of every epoch."""
        epochs, steps = required(self.epochs, "epochs"), required(self.inner_steps, "inner_steps")
        return svrg.epoch_lengths(epochs, steps, doubling=self.doubling)

    def snapshots(self) -> tuple[int, ...]:
        """How often each epoch releases its snapshot's gradient."""
        lengths = self.lengths()
        return lengths if self.design == "paper" else (1,) * len(lengths)

    def event(self, public: Public) -> Event:
        """The snapshots, and the differences on sampled units."""
        if self.fallback is not None:
            return self.fallback.event(public)
        return svrg.svrg_event(
            required(self.snapshot_multipliers, "snapshot_multipliers"),
            self.snapshots(),
            required(self.rate, "rate"),
            sum(self.lengths()),
            required(self.noise_multiplier, "noise_multiplier"),
        )

    def releases(self) -> int:
        """One an epoch and one an inner step (two in the paper's design)."""
        if self.fallback is not None:
            return self.fallback.releases()
        return sum(self.snapshots()) + sum(self.lengths())

    def passes(self) -> float:
        """One for each snapshot; an inner step takes gradients at two points of a fraction `rate` of the units."""
        if self.fallback is not None:
            return self.fallback.passes()
        return sum(self.snapshots()) + 2.0 * required(self.rate, "rate") * sum(self.lengths())

    def setting(self, problem: Problem, public: Public, budget: Budget) -> SVRGSetting:
        """The practical setting for what was left open."""
        whitened = self.curvature is not None
        return svrg.svrg_setting(problem, public, budget, clip=self.clip, whitened=whitened)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The setting of `svrg_settings` where a field was left open, or gradient descent where that is unstable."""
        if self.fallback is not None:
            return replace(self, fallback=self.fallback.derived(problem, public, budget))
        setting = self.setting(problem, public, budget)
        open_fields = {name: value for name, value in vars(setting).items() if getattr(self, name) is None}
        solver = replace(self, **open_fields)
        if "inner_steps" in open_fields:
            excess = solver.instability(problem, public, budget) / solver.largest_instability()
            fewer = svrg.fewer_steps(setting.inner_steps, excess, self.fewest_steps)
            solver = replace(solver, inner_steps=fewer)
        if "snapshot_share" in open_fields:
            excess = solver.instability(problem, public, budget) / solver.largest_instability()
            share = svrg.smaller_share(setting.snapshot_share, excess)
            solver = replace(solver, snapshot_share=share)
        if self.fall_back and not solver.is_stable(problem, public, budget):
            descent = GradientDescent(clip=self.clip, step_size=self.step_size if self.curvature else None)
            return replace(solver, fallback=descent.derived(problem, public, budget))
        return solver._with_budgets(public, budget)

    def _with_budgets(self, public: Public, budget: Budget) -> Self:
        """With the snapshots' noise by formula and the batches' rate, where they were left open."""
        snapshots, counts, steps = self.snapshot_multipliers, self.snapshots(), sum(self.lengths())
        if snapshots is None:
            share = required(self.snapshot_share, "snapshot_share") if steps else 1.0
            growth = self.snapshot_growth if self.design == "once" else 1.0
            snapshots = svrg.snapshot_multipliers(budget, share, growth, counts)
        rate = self.rate
        if rate is None:
            rate = svrg.smallest_rate(public, budget, snapshots, counts, steps)
        return replace(self, snapshot_multipliers=snapshots, rate=rate)

    def configure(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Derive what was left open, then calibrate the differences' noise to what the snapshots leave.

        Returns:
            A solver whose whole plan costs at most the budget, and at least 0.999 of its epsilon.
        """
        solver = self.derived(problem, public, budget)
        if solver.fallback is not None:
            descent = solver.fallback.configure(problem, public, budget)
            return replace(solver, fallback=descent, noise_multiplier=descent.noise_multiplier)
        if solver.noise_multiplier is not None:
            return solver
        multiplier = svrg.difference_multiplier(
            budget,
            public.relation,
            required(solver.snapshot_multipliers, "snapshot_multipliers"),
            solver.snapshots(),
            required(solver.rate, "rate"),
            sum(solver.lengths()),
        )
        return replace(solver, noise_multiplier=multiplier)

    def scaled(self, factor: float) -> Self:
        """The same configured solver with the noise of snapshots and differences times `factor`."""
        if self.fallback is not None:
            descent = self.fallback.scaled(factor)
            return replace(self, fallback=descent, noise_multiplier=descent.noise_multiplier)
        snapshots = required(self.snapshot_multipliers, "snapshot_multipliers")
        return replace(
            self,
            noise_multiplier=required(self.noise_multiplier, "noise_multiplier") * factor,
            snapshot_multipliers=tuple(z * factor for z in snapshots),
        )

    def instability(self, problem: Problem, public: Public, budget: Budget) -> float:
        """nu of `svrg_settings`, from public quantities."""
        return svrg.instability(
            problem,
            public,
            budget,
            lengths=self.lengths(),
            slope_fraction=required(self.slope_clip, "slope_clip") / required(self.curvature, "curvature"),
            snapshot_share=required(self.snapshot_share, "snapshot_share"),
        )

    def largest_instability(self) -> float:
        """The largest nu that is run."""
        return svrg.largest_instability(required(self.momentum, "momentum"))

    def is_stable(self, problem: Problem, public: Public, budget: Budget) -> bool:
        """Whether the differences' noise stays small against the distance it is proportional to."""
        return self.instability(problem, public, budget) <= self.largest_instability() * (1 + 1e-9)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The excess that the last snapshot's noise leaves, at most: 0.5 s^2 p / (lam f share_last)."""
        if self.fallback is not None:
            return self.fallback.predicted_excess(problem, public, budget)
        ridge, epochs = problem.regulariser.strong_convexity, required(self.epochs, "epochs")
        if not budget.is_private:
            return 0.0, "the noise is off"
        if ridge == 0 or epochs == 0 or self.design == "paper":
            return None, "no formula without a ridge on every coordinate"
        noise = public.relation.factor * required(self.clip, "clip")
        noise /= public.n * gaussian_mu(budget.epsilon, budget.delta)
        last = self.snapshot_growth ** (epochs - 1) / sum(self.snapshot_growth**s for s in range(epochs))
        share = required(self.snapshot_share, "snapshot_share") * last
        excess = 0.5 * noise**2 * math.prod(problem.parameter_shape(public)) / (ridge * share)
        at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
        return excess if at_zero is None else min(
            excess, at_zero
        ), "an upper estimate: the ridge's curvature only"

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What a user should be told, from public quantities."""
        if self.fallback is not None:
            return (
                self._why_fallback(problem, public, budget),
                *self.fallback.notices(problem, public, budget),
            )
        found = list(descent_defaults.notices(problem, public, budget))
        if self.design == "paper":
            found.append(
                "design='paper' releases a fresh gradient in every inner step: it reproduces the published algorithm, "
                "at a correct price, and is less accurate than design='once'."
            )
        if problem.regulariser.strong_convexity == 0:
            found.append(
                "the penalty is not strongly convex in every coordinate: variance reduction loses its advantage there, "
                "and gradient descent may do better."
            )
        if not self.is_stable(problem, public, budget):
            found.append(
                f"the stability test fails (nu = {self.instability(problem, public, budget):.3g}, at most "
                f"{self.largest_instability():g}): the noise of the differences may grow without bound."
            )
        return tuple(found)

    def _why_fallback(self, problem: Problem, public: Public, budget: Budget) -> str:
        return (
            f"{self.name} would be unstable here, so gradient descent runs instead: with {self.inner_steps} inner "
            f"steps and a snapshot share of {self.snapshot_share:.2g} the noise of the differences comes to nu = "
            f"{self.instability(problem, public, budget):.3g}, and it must not exceed "
            f"{self.largest_instability():g}. More units or a larger epsilon would help."
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases with the clips and the step size of whitened coordinates.

        There a unit's gradient changes by up to its row's length more than the mean's, so the slope clip is
        `smoothness * clip`; the mean loss is well conditioned, and momentum is not needed.
        """
        if self.fallback is not None:
            return replace(self, fallback=self.fallback.in_coordinates(coordinates))
        return replace(
            self,
            clip=coordinates.clip,
            curvature=coordinates.smoothness,
            slope_clip=coordinates.smoothness * max(1.0, coordinates.clip),
            step_size=1.0 / (coordinates.smoothness + coordinates.ridge_smoothness),
            momentum=0.0,
            tail=1.0,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1; see the class for where it differs."""
        if self.fallback is not None:
            return self.fallback.run(curator, problem, start)
        multipliers = required(self.snapshot_multipliers, "snapshot_multipliers")
        lengths = self.lengths()
        block = max(1, math.gcd(*lengths))  # epochs of unequal length share one compiled loop
        state = self._start(problem, start)
        for length, multiplier in zip(lengths, multipliers, strict=True):
            previous = state
            state = state._replace(anchor=state.average)  # line 2
            if self.design == "once":
                at_anchor = ClippedGradient(loss=problem.loss, at=state.anchor, clip=state.clip)
                state = state._replace(snapshot=curator.release(at_anchor, Gaussian(multiplier)))  # line 3
            state = self._opened(state, previous, length)  # line 4
            step = self._step(problem, multiplier)
            for _ in range(length // block):
                state = curator.iterate(step, state, block)  # lines 5 to 9
        return Outcome(state.average, ending(state.finite))  # line 10: the last epoch's mean

    def _step(self, problem: Problem, snapshot_multiplier: float) -> SVRGStep:
        return SVRGStep(
            loss=problem.loss,
            constraint=problem.constraint,
            noise=Gaussian(required(self.noise_multiplier, "noise_multiplier")),
            sampling=svrg.sampling_of(required(self.rate, "rate")),
            momentum=required(self.momentum, "momentum"),
            snapshot_noise=Gaussian(snapshot_multiplier) if self.design == "paper" else None,
        )

    def _start(self, problem: Problem, start: Array) -> SVRGState:
        zero = jnp.zeros(())
        return SVRGState(
            params=start,
            anchor=start,
            snapshot=jnp.zeros_like(start),
            velocity=jnp.zeros_like(start),
            average=start,
            time=zero,
            tail_start=zero,
            step_size=jnp.asarray(required(self.step_size, "step_size"), jnp.float64),
            clip=jnp.asarray(required(self.clip, "clip"), jnp.float64),
            slope_clip=jnp.asarray(required(self.slope_clip, "slope_clip"), jnp.float64),
            reach=jnp.asarray(required(self.reach, "reach"), jnp.float64),
            regulariser=problem.regulariser,
            finite=jnp.asarray(True),
        )

    def _opened(self, state: SVRGState, previous: SVRGState, length: int) -> SVRGState:
        """The state at the first inner step of an epoch."""
        step_size = state.step_size
        if self.barzilai_borwein and self.design == "once":
            longest = jnp.asarray(required(self.step_size, "step_size"), jnp.float64)
            step_size = barzilai_borwein(state, previous, longest)
        return state._replace(
            params=state.params if self.carry_last else state.anchor,
            velocity=jnp.zeros_like(state.velocity),
            time=jnp.zeros(()),
            tail_start=jnp.asarray(length - math.ceil(required(self.tail, "tail") * length), jnp.float64),
            step_size=step_size,
        )


def _check(solver: SVRG) -> None:
    """Refuse settings that are out of range."""
    if solver.design not in ("once", "paper"):
        raise ValueError(f"design must be 'once' or 'paper', got {solver.design!r}.")
    for field in ("epochs", "inner_steps"):
        count = getattr(solver, field)
        if count is not None and count < 0:
            raise ValueError(f"{field} must be at least 0, got {count!r}.")
    for field in ("rate", "tail", "snapshot_share"):
        part = getattr(solver, field)
        if part is not None and not 0 < part <= 1:
            raise ValueError(f"{field} must be in (0, 1], got {part!r}: it is a fraction.")
    if not (solver.snapshot_growth > 0 and math.isfinite(solver.snapshot_growth)):
        raise ValueError(f"snapshot_growth must be positive and finite, got {solver.snapshot_growth!r}.")
