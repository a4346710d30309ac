"""The private proximal point method for objectives with a sharp minimum: non-smooth losses, kappa >= 2.

Solves min_x F(x) + r(x) over a constraint set by T proximal steps, each an approximate minimum of

    F_t(x) = F(x) + r(x) + lam |x - x_(t-1)|^2,

found by m noisy subgradient steps that need no smoothness. A sharp minimum (gradients that stay large near it) makes
the proximal steps contract fast, and each gets `ratio` times the budget of the one before.

    strong convexity  mu = 2 lam - (weak convexity of F)
    weight            lam = max(weak convexity, 1 / (2 gamma^2 F_0^((kappa - 2) / kappa)))
    ball              where the subproblem's solution lies: |x - prox(x_(t-1))| <= C / (2 lam), prox that of
                      (r + the set) / (2 lam)
    prediction        with sigma_t the noise, tau_t = 2 (4 C^2 + p sigma_t^2) / (mu (m + 1)):
                      Phi_t = max(Phi_(t-1) / (1 + mu / (4 lam)), E) + tau_t,
                      E + (mu / 2) (E / 2)^(2 / kappa) / (4 gamma^2 lam^2) = Phi_(t-1)

The prediction follows the excess through E_t = F_t(x_t*) - F*, x_t* the exact proximal step. With a = |x_t* - x_(t-1)|
and psi = F(x_t*) - F*, strong convexity gives E_t = psi + lam a^2 <= Phi_(t-1) - mu a^2 / 2; stationarity and the KL
condition give 2 lam a >= psi^(1/kappa) / gamma; and either lam a^2 or psi is at least E_t / 2.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray
from scipy.optimize import brentq

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, Repeated, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound
from privopt.problems.constraints import Constraint
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.averaging import halted_at_divergence
from privopt.solvers.base import Solver, required

_root = cast(Any, brentq)  # its type information is incomplete
FAILURE = 0.1  # of the bound, by Markov's inequality


class ProximalState(NamedTuple):
    """Where the inner method stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    average: Float[Array, " *shape"]  # mean of the points whose gradients were released, weights 1, 2, 3, ...
    finite: Bool[Array, ""]  # whether every iterate so far was finite


def proximal_subproblem(
    curator: Curator,
    problem: Problem,
    centre: Array,
    noise: Gaussian,
    *,
    weight: float,
    convexity: float,
    steps: int,
    clip: float,
) -> ProximalState:
    """Approximately minimise `F(x) + r(x) + weight |x - centre|^2` over the constraint set by noisy subgradient steps.

    Args:
        curator: answers `steps` releases by `noise`.
        problem: F, r and the set.
        centre: public point, where it starts.
        noise: of each release.
        weight: lam.
        convexity: mu, the strong convexity of the subproblem.
        steps: m, at least 1.
        clip: C, the largest norm of one unit's gradient.
    Returns:
        The last state; its `average` is the answer. Each step is `x <- x - 2 g / (mu (t + 1))`, t = 1, 2, ...
    Differs from the paper:
        The gradient is taken at the iterate, not at a fixed point; steps 2 / (mu (t + 1)), which the weights 1, 2, ...
        of the average ask for; all m gradients are used, so the average weighs exactly the points that were released.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 4; Lacoste-Julien, Schmidt, Bach 2012 (steps and weights).
    """
    shrunk = problem.constraint.project(problem.regulariser.full_prox(centre, 1.0 / (2.0 * weight)))
    state = ProximalState(params=centre, average=centre, finite=jnp.asarray(True))
    step = partial(
        _step,
        centre=centre,
        shrunk=shrunk,
        weight=weight,
        radius=clip / (2.0 * weight),
        regulariser=problem.regulariser,
        constraint=problem.constraint,
    )
    for t in range(1, steps + 1):
        at_iterate = ClippedGradient(loss=problem.loss, at=state.params, clip=clip)
        gradient = curator.release(at_iterate, noise)
        state = step(state, gradient, step_size=2.0 / (convexity * (t + 1)), ratio=2.0 / (t + 1))
    return state


@dataclass(frozen=True, kw_only=True)
class KLProximalPoint(Solver):
    """The private proximal point method.

    Attributes:
        outer_steps: T, proximal steps; 0 returns the start and spends nothing.
        inner_steps: m, releases of each proximal step.
        weight: lam, in objective / params^2; default that of the module, which needs the growth.
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
        equal; the whole budget is spent, in a few thousand passes instead of n^2; see `proximal_subproblem` for the
        inner method. The prediction replaces the theorem, whose proof compares F_t with F the wrong way round and
        applies the KL condition at another point than it contradicts.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithms 2 and 4, Theorem 2.
    """

    outer_steps: int = 12
    inner_steps: int = 300
    weight: float | None = None
    weak_convexity: float = 0.0
    ratio: float = 2.0
    clip: float | None = None
    growth: KL | None = None
    most_steps: int = 5000

    def __post_init__(self) -> None:
        if self.outer_steps < 0 or self.inner_steps < 1 or self.most_steps < 1:
            raise ValueError(
                "outer_steps must be at least 0, inner_steps and most_steps at least 1, got "
                f"{self.outer_steps!r}, {self.inner_steps!r} and {self.most_steps!r}."
            )
        if not (1.0 <= self.ratio < math.inf):
            raise ValueError(
                f"ratio must be at least 1 and finite, got {self.ratio!r}: one proximal step's budget over the last's."
            )
        if not (0.0 <= self.weak_convexity < math.inf):
            raise ValueError(
                f"weak_convexity must be at least 0 and finite, got {self.weak_convexity!r}: 0 is convex."
            )
        if self.weight is not None and not (0.5 * self.weak_convexity < self.weight < math.inf):
            raise ValueError(
                f"weight must be finite and above half of weak_convexity = {self.weak_convexity:g}, got "
                f"{self.weight!r}: the subproblems must be strongly convex."
            )

    @property
    def name(self) -> str:
        """The solver's name."""
        return "kl-proximal-point"

    def mechanisms(self) -> tuple[Gaussian, ...]:
        """The noise of each proximal step's releases."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        return tuple(Gaussian(float(multiplier * factor)) for factor in self._noise_factors())

    def event(self, public: Public) -> Event:
        """T times m Gaussian releases."""
        del public
        return Sequence(tuple(Repeated(noise.event(), self.inner_steps) for noise in self.mechanisms()))

    def releases(self) -> int:
        """T m."""
        return self.outer_steps * self.inner_steps

    def passes(self) -> float:
        """T m."""
        return float(self.releases())

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The clip of `practical`, the weight of the module, and no more than `most_steps` releases."""
        self.check_applicable(problem, public)
        clip = descent_defaults.default_clip(problem, public, budget) if self.clip is None else self.clip
        growth = problem.growth if self.growth is None else self.growth
        weight = self.weight
        if weight is None:
            lipschitz = min(clip, problem.gradient_bound(public))
            weight = max(self.weak_convexity, _default_weight(required(growth, "growth"), lipschitz))
        outer = min(self.outer_steps, self.most_steps)
        inner = min(self.inner_steps, self.most_steps // max(outer, 1))
        return replace(self, clip=clip, growth=growth, weight=weight, outer_steps=outer, inner_steps=inner)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A sharp minimum, or a weight of the user's own."""
        del public
        growth = problem.growth if self.growth is None else self.growth
        if growth is None:
            if self.weight is not None:
                return None
            return (
                "its weight follows from how sharp the minimum is: give `growth` (a KL condition) or `weight`"
            )
        if growth.kappa < 2.0:
            return (
                f"it needs a sharp minimum (kappa at least 2), and this objective has kappa = {growth.kappa:.4g}: use "
                "scheduled or adaptive gradient descent, or the variance-reduced solvers for smooth losses"
            )
        return None

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The recursion of the module."""
        gap = self._gap(problem, public)
        if gap is None:
            return None, "no formula without a KL condition and a bound on the excess of the start"
        excess, worst = gap, required(self.growth, "growth").excess_at(self._lipschitz(problem, public))
        for left in self._left_by_noise(problem, public):
            excess = min(self._contracted(excess) + left, worst)
        return excess, (
            "a loose estimate of the mean under the KL condition, while no gradient is clipped: even without noise the "
            f"worst case of the inner steps keeps it above {self._floor(problem, public):.3g}"
        )

    def bound(self, problem: Problem, public: Public, budget: Budget) -> Bound | None:
        """What Markov's inequality makes of a mean; only where it says more than the bound on the start's excess.

        The excess of a proximal step is a convex function of the one before, so the mean is followed through its chord
        over all excesses that gradients of norm C allow.
        """
        gap = self._gap(problem, public)
        if gap is None or self.noise_multiplier is None:
            return None
        worst = required(self.growth, "growth").excess_at(self._lipschitz(problem, public))
        factor = self._contracted(worst) / worst
        mean = gap
        for left in self._left_by_noise(problem, public):
            mean = min(factor * mean + left, worst)
        if not mean / FAILURE < gap:
            return None
        return Bound(
            value=mean / FAILURE,
            probability=1.0 - FAILURE,
            condition="if the KL condition holds wherever the run goes, no gradient is longer than the clip, and the "
            "constraint set does not bind",
        )

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What the prediction rests on."""
        del problem, public
        if not budget.is_private:
            return (NOISE_IS_OFF,)
        return ()

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2."""
        params, finite = start, jnp.asarray(True)
        for noise in self.mechanisms():
            state = proximal_subproblem(
                curator,
                problem,
                params,
                noise,
                weight=required(self.weight, "weight"),
                convexity=self._convexity(),
                steps=self.inner_steps,
                clip=required(self.clip, "clip"),
            )
            params, finite = state.average, finite & state.finite
        return Outcome(params, ending(finite))

    def _convexity(self) -> float:
        """mu."""
        return 2.0 * required(self.weight, "weight") - self.weak_convexity

    def _noise_factors(self) -> NDArray[np.float64]:
        """What each proximal step's noise multiplier is over `noise_multiplier`."""
        logs = math.log(self.ratio) * np.arange(self.outer_steps)
        weights = np.exp(
            np.maximum(logs - logs[-1:], -100.0)
        )  # a step that buys nothing would have no multiplier
        return np.sqrt(weights.sum() / (self.outer_steps * weights)) if self.outer_steps else weights

    def _lipschitz(self, problem: Problem, public: Public) -> float:
        """The largest norm of a clipped gradient."""
        return min(required(self.clip, "clip"), problem.gradient_bound(public))

    def _gap(self, problem: Problem, public: Public) -> float | None:
        """F_0, or None where nothing can be predicted: no growth, unbounded gradients, a penalty."""
        lipschitz = self._lipschitz(problem, public)
        penalised = problem.regulariser.smoothness > 0.0 or not problem.regulariser.is_smooth
        if (
            self.growth is None or not math.isfinite(lipschitz) or penalised
        ):  # a penalty has gradients of its own
            return None
        return self.growth.gap_within(lipschitz)

    def _left_by_noise(self, problem: Problem, public: Public) -> list[float]:
        """tau_t of every proximal step."""
        parameters = math.prod(problem.parameter_shape(public))
        lipschitz, per_mean = (
            self._lipschitz(problem, public),
            2.0 / (self._convexity() * (self.inner_steps + 1)),
        )
        clip = required(self.clip, "clip")  # the penalty's pull is as long as the ball's radius allows
        scale = public.relation.factor * clip / public.n
        spreads = [parameters * (noise.noise_multiplier * scale) ** 2 for noise in self.mechanisms()]
        return [per_mean * ((lipschitz + clip) ** 2 + spread) for spread in spreads]

    def _floor(self, problem: Problem, public: Public) -> float:
        """Where the prediction would settle without noise."""
        convexity = self._convexity()
        longest = self._lipschitz(problem, public) + required(self.clip, "clip")
        left = 2.0 * longest**2 / (convexity * (self.inner_steps + 1))
        return left * (1.0 + 4.0 * required(self.weight, "weight") / convexity)

    def _contracted(self, excess: float) -> float:
        """What an exact proximal step leaves of an excess."""
        growth, weight, convexity = (
            required(self.growth, "growth"),
            required(self.weight, "weight"),
            self._convexity(),
        )
        gain = convexity / (8.0 * growth.gamma**2 * weight**2)

        def surplus(left: float) -> float:
            return left + gain * (left / 2.0) ** (2.0 / growth.kappa) - excess

        return max(
            excess / (1.0 + convexity / (4.0 * weight)),
            float(_root(surplus, 0.0, excess, xtol=1e-300, rtol=1e-14)),
        )


def _default_weight(growth: KL, lipschitz: float) -> float:
    """1 / (2 gamma^2 F_0^((kappa - 2) / kappa)).

    Raises:
        ValueError: nothing bounds the excess of the start.
    """
    power = (growth.kappa - 2.0) / growth.kappa
    gap = growth.gap_within(lipschitz) if power > 0.0 else 1.0
    if not math.isfinite(gap):
        raise ValueError(
            "the default weight needs a bound on the excess of the start: give `weight`, a `growth` with a finite gap, "
            "or a finite clip."
        )
    return 0.5 / (growth.gamma**2 * gap**power)


@partial(jax.jit, static_argnames=("constraint",))
def _step(
    state: ProximalState,
    gradient: Array,
    *,
    step_size: float,
    ratio: float,
    centre: Array,
    shrunk: Array,
    weight: float,
    radius: float,
    regulariser: Regulariser,
    constraint: Constraint,
) -> ProximalState:
    """One subgradient step on the subproblem, and the average with the point whose gradient it was.

    The set comes first and the ball last: the ball's centre is in the set, so moving towards it does not leave the set,
    and neither projection moves away from the subproblem's solution, which is in both.
    """
    slope = gradient + regulariser.gradient(state.params) + 2.0 * weight * (state.params - centre)
    moved = constraint.project(regulariser.prox(state.params - step_size * slope, step_size))
    offset = moved - shrunk
    distance = jnp.sqrt(jnp.sum(offset * offset))
    inside = jnp.where(distance > radius, radius / jnp.where(distance > radius, distance, 1.0), 1.0)
    params = jnp.where(inside < 1.0, shrunk + inside * offset, moved)
    return halted_at_divergence(
        ProximalState(
            params=params,
            average=state.average + ratio * (state.params - state.average),
            finite=state.finite & jnp.all(jnp.isfinite(params)),
        ),
        state,
    )
