"""The private proximal point method for objectives with a sharp minimum: non-smooth losses, kappa >= 2.

Solves min_x F(x) + r(x) over a constraint set by T proximal steps, each an approximate minimum of

    F_t(x) = F(x) + r(x) + lam |x - x_(t-1)|^2,

found by m noisy subgradient steps that need no smoothness. A sharp minimum (gradients that stay large near it) makes
the proximal steps contract fast, and each gets `ratio` times the budget of the one before. The comment below has
the default weight lam, the prediction of the excess and its proof.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithms 2 and 4; Lacoste-Julien, Schmidt, Bach 2012.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, Repeated, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound
from privopt.planning.task import Forecast, Instance
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, guarded, number

# ---- Weight, budgets, prediction and bound of the private proximal point method ----------------------------
# With m noisy subgradient steps on each F_t, and gradients of norm at most C:
#
#     strong convexity  mu = 2 lam - (weak convexity of F)
#     weight            lam = max(weak convexity, 1 / (2 gamma^2 F_0^((kappa - 2) / kappa)))
#     prediction        with sigma_t the noise, tau_t = 2 (4 C^2 + p sigma_t^2) / (mu (m + 1)):
#                       Phi_t = max(Phi_(t-1) / (1 + mu / (4 lam)), E) + tau_t,
#                       E + (mu / 2) (E / 2)^(2 / kappa) / (4 gamma^2 lam^2) = Phi_(t-1)
#
# The prediction follows the excess through E_t = F_t(x_t*) - F*, x_t* the exact proximal step. With a = |x_t* -
# x_(t-1)| and psi = F(x_t*) - F*, strong convexity gives E_t = psi + lam a^2 <= Phi_(t-1) - mu a^2 / 2; stationarity
# and the KL condition give 2 lam a >= psi^(1/kappa) / gamma; and either lam a^2 or psi is at least E_t / 2.
#
# The excess after a proximal step is a convex function of the one before, so following the mean through it is no bound.
# The bound follows the mean through the function's chord over all excesses that gradients of norm C allow, and then
# uses Markov's inequality.
FAILURE = 0.1  # of the bound, by Markov's inequality
_root = cast(Any, brentq)  # its type information is incomplete


class ProximalState(NamedTuple):
    """Where the inner method stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    average: Float[Array, " *shape"]  # mean of the points whose gradients were released, weights 1, 2, 3, ...
    finite: Bool[Array, ""]  # whether every iterate so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class KLProximalPoint(Solver):
    """Proximal steps, each taken by noisy subgradient steps, with budgets that grow by a fixed ratio.

    Attributes:
        outer_steps: T, proximal steps; 0 returns the start and spends nothing.
        inner_steps: m, releases of each proximal step.
        weight: lam, in objective / params^2; by default that of the comment above, which needs the growth.
        weak_convexity: wc >= 0 such that F + wc |x|^2 / 2 is convex; 0 for convex losses.
        ratio: the budget of a proximal step over that of the one before it, at least 1.
        clip: C, the largest norm of one unit's gradient.
        growth: the KL condition of the objective, with kappa >= 2; default that of the problem.
        most_steps: T m is at most this: m is lowered first, then T.
        noise_multiplier: that of every release if all had the same; they differ as `ratio` says, at the same price.
    Guarantee:
        T m Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less, with
        fixed multipliers: exactly (epsilon, delta)-DP by Gaussian-DP composition, for any data, loss and parameters.
    Differs from the paper:
        The weight is free instead of the smoothness, which a convex loss does not have; budgets double instead of being
        equal; the whole budget is spent, in a few thousand passes instead of n^2. The gradient is taken at the iterate,
        not at a fixed point; steps are 2 / (mu (t + 1)), which the weights 1, 2, ... of the average ask for; all m
        gradients are used, so the average weighs exactly the points that were released. The prediction replaces the
        theorem, whose proof compares F_t with F the wrong way round and applies the KL condition at another point than
        it contradicts.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithms 2 and 4, Theorem 2; Lacoste-Julien, Schmidt, Bach 2012
        (steps and weights).
    """

    name: ClassVar[str] = "kl-proximal-point"
    for_convex: ClassVar[str] = "its subproblems"

    outer_steps: int = number(12, at_least=0)
    inner_steps: int = number(300, at_least=1)
    weight: float = derived(above=0, below=math.inf)
    weak_convexity: float = number(0.0, at_least=0, below=math.inf)
    ratio: float = number(2.0, at_least=1, below=math.inf)
    clip: float = derived(above=0)
    growth: KL | None = None
    most_steps: int = number(5000, at_least=1)

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_growth(self, instance: Instance) -> KL | None:
        return instance.growth

    def default_weight(self, instance: Instance) -> float:
        """lam, see the comment above; clip and growth are set.

        Raises:
            ValueError: nothing bounds the excess of the start.
        """
        growth = self.growth
        assert growth is not None  # `applicable` asks for one where the weight is open
        power = (growth.kappa - 2.0) / growth.kappa
        gap = growth.gap_within(self._steepest(instance)) if power > 0.0 else 1.0
        if not math.isfinite(gap):
            raise ValueError(
                "the default weight needs a bound on the excess of the start: give `weight`, a `growth` with a finite "
                "gap, or a finite clip."
            )
        return max(self.weak_convexity, 0.5 / (growth.gamma**2 * gap**power))

    def check(self) -> None:
        if self.is_set("weight") and not self.weight > 0.5 * self.weak_convexity:
            raise ValueError(
                f"weight must be above half of weak_convexity = {self.weak_convexity:g}, got {self.weight!r}: the "
                "subproblems must be strongly convex."
            )

    def filled(self, instance: Instance) -> Self:
        """As for every solver; where T m would be more than `most_steps`, m is lowered first, then T."""
        solver = super().filled(instance)
        outer = min(solver.outer_steps, solver.most_steps)
        inner = min(solver.inner_steps, solver.most_steps // max(outer, 1))
        return solver.with_(outer_steps=outer, inner_steps=inner)

    def forecast(self, instance: Instance) -> Forecast:
        """The prediction and the bound of the comment above, from a growth and a bound on the excess of the start."""
        notices = () if instance.is_private else (NOISE_IS_OFF,)
        gap = self._start_gap(instance)
        if gap is None:
            return Forecast(
                meaning="no formula but for a KL condition, a finite clip and no penalty", notices=notices
            )
        assert self.growth is not None  # else nothing bounds the start
        worst = self.growth.excess_at(self._steepest(instance))
        excess = gap
        for left in self._left_by_noise(instance):
            excess = min(self._contracted(self.growth, excess) + left, worst)
        meaning = (
            "a loose estimate of the mean under the KL condition, while no gradient is clipped: even without noise the "
            f"worst case of the inner steps keeps it above {self._floor(instance):.3g}"
        )
        return Forecast(
            excess=excess,
            meaning=meaning,
            bound=self._bound(instance, gap, worst),
            notices=notices,
            for_convex=False,
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A sharp minimum, or a weight of the user's own."""
        del public
        growth = problem.growth if self.growth is None else self.growth
        if growth is None:
            if self.is_set("weight"):
                return None
            return (
                "its weight follows from how sharp the minimum is: give `growth` (a KL condition) or `weight`"
            )
        if growth.kappa < 2.0:
            return (
                f"it needs a sharp minimum (kappa at least 2), and this objective has kappa = {growth.kappa:.4g}: use "
                "geometric or adaptive gradient descent, or the variance-reduced solvers for smooth losses"
            )
        return None

    @property
    def rests_on_convexity(self) -> str:
        """Nothing where `weak_convexity` is given."""
        return "" if self.weak_convexity > 0.0 else self.for_convex

    @property
    def convexity(self) -> float:
        """mu, the strong convexity of a subproblem."""
        return 2.0 * self.weight - self.weak_convexity

    def mechanisms(self) -> tuple[Gaussian, ...]:
        """The noise of each proximal step's releases."""
        factors = _noise_factors(self.ratio, self.outer_steps)
        return tuple(Gaussian(float(self.noise_multiplier * factor)) for factor in factors)

    def event(self, public: Public) -> Event:
        """T times m Gaussian releases."""
        del public
        return Sequence(tuple(Repeated(noise.event(), self.inner_steps) for noise in self.mechanisms()))

    def releases(self) -> int:
        """T m."""
        return self.outer_steps * self.inner_steps

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2: each proximal step starts from the answer of the last."""
        state = ProximalState(start, start, jnp.asarray(True))
        for noise in self.mechanisms():
            state = self.proximal_step(curator, problem, state, noise)
        return Outcome(state.average, ending(state.finite))

    def proximal_step(
        self, curator: Curator, problem: Problem, state: ProximalState, noise: Gaussian
    ) -> ProximalState:
        """Algorithm 4: minimise `F(x) + r(x) + lam |x - centre|^2` over the set, the centre the answer of the last.

        Args:
            curator: answers m releases by `noise`.
            problem: F, r and the set.
            state: its `average` is the centre.
            noise: of each release.
        Returns:
            The last state; its `average` is the answer. Each step is `x <- x - 2 g / (mu (t + 1))`, t = 1, 2, ...
        """
        centre = state.average
        shrunk = problem.constraint.project(problem.regulariser.full_prox(centre, 1.0 / (2.0 * self.weight)))
        step = partial(
            _step,
            problem=problem,
            centre=centre,
            shrunk=shrunk,
            weight=self.weight,
            radius=self.clip / (2.0 * self.weight),
        )
        state = state._replace(params=centre)
        for t in range(1, self.inner_steps + 1):
            at_iterate = ClippedGradient(loss=problem.loss, at=state.params, clip=self.clip)
            gradient = curator.release(at_iterate, noise)
            state = step(state, gradient, step_size=2.0 / (self.convexity * (t + 1)), ratio=2.0 / (t + 1))
        return state

    def _steepest(self, instance: Instance) -> float:
        """The largest norm of a clipped gradient."""
        return min(self.clip, instance.gradient_bound)

    def _bound(self, instance: Instance, gap: float, worst: float) -> Bound | None:
        """What Markov's inequality makes of a mean; only where it says more than the bound on the start's excess."""
        assert self.growth is not None  # `forecast` has asked
        factor = self._contracted(self.growth, worst) / worst
        mean = gap
        for left in self._left_by_noise(instance):
            mean = min(factor * mean + left, worst)
        if not mean / FAILURE < gap:
            return None
        return Bound(
            value=mean / FAILURE,
            probability=1.0 - FAILURE,
            condition="if the KL condition holds wherever the run goes, no gradient is longer than the clip, and the "
            "constraint set does not bind",
        )

    def _start_gap(self, instance: Instance) -> float | None:
        """F_0, or None where nothing can be predicted: no growth, no finite clip, or a penalty with gradients."""
        penalised = instance.penalty_smoothness > 0.0 or not instance.problem.regulariser.is_smooth
        if self.growth is None or not math.isfinite(self.clip) or penalised:
            return None
        return self.growth.gap_within(self._steepest(instance))

    def _left_by_noise(self, instance: Instance) -> list[float]:
        """tau_t of every proximal step."""
        per_mean = 2.0 / (self.convexity * (self.inner_steps + 1))
        longest = self._steepest(instance) + self.clip  # the penalty pulls as far as the ball's radius allows
        scale = instance.public.relation.factor * self.clip / instance.public.n
        spreads = [instance.parameters * (noise.noise_multiplier * scale) ** 2 for noise in self.mechanisms()]
        return [per_mean * (longest**2 + spread) for spread in spreads]

    def _floor(self, instance: Instance) -> float:
        """Where the prediction would settle without noise."""
        longest = self._steepest(instance) + self.clip
        left = 2.0 * longest**2 / (self.convexity * (self.inner_steps + 1))
        return left * (1.0 + 4.0 * self.weight / self.convexity)

    def _contracted(self, growth: KL, excess: float) -> float:
        """What an exact proximal step leaves of an excess."""
        gain = self.convexity / (8.0 * growth.gamma**2 * self.weight**2)

        def surplus(left: float) -> float:
            return left + gain * (left / 2.0) ** (2.0 / growth.kappa) - excess

        return max(
            excess / (1.0 + self.convexity / (4.0 * self.weight)),
            float(_root(surplus, 0.0, excess, xtol=1e-300, rtol=1e-14)),
        )


@jax.jit
@guarded
def _step(
    state: ProximalState,
    gradient: Array,
    *,
    step_size: float,
    ratio: float,
    problem: Problem,
    centre: Array,
    shrunk: Array,
    weight: float,
    radius: float,
) -> ProximalState:
    """One subgradient step on the subproblem, and the average with the point whose gradient it was.

    The set comes first and the ball last: the ball's centre is in the set, so moving towards it does not leave the set,
    and neither projection moves away from the subproblem's solution, which is in both. The solution is no farther from
    `shrunk`, the proximal map of (r + the set) / (2 lam) at the centre, than C / (2 lam).
    """
    slope = gradient + problem.regulariser.gradient(state.params) + 2.0 * weight * (state.params - centre)
    moved = problem.prox(state.params - step_size * slope, step_size)
    offset = moved - shrunk
    distance = jnp.sqrt(jnp.sum(offset * offset))
    inside = jnp.where(distance > radius, radius / jnp.where(distance > radius, distance, 1.0), 1.0)
    return ProximalState(
        params=jnp.where(inside < 1.0, shrunk + inside * offset, moved),
        average=state.average + ratio * (state.params - state.average),
        finite=state.finite,
    )


def _noise_factors(ratio: float, steps: int) -> NDArray[np.float64]:
    """What each proximal step's noise multiplier is over that of equal budgets at the same price.

    Args:
        ratio: the budget of a proximal step over that of the one before it.
        steps: T.
    """
    logs = math.log(ratio) * np.arange(steps)
    shares = np.exp(np.maximum(logs - logs[-1:], -100.0))  # a step that buys nothing would have no multiplier
    return np.sqrt(shares.sum() / (steps * shares)) if steps else shares
