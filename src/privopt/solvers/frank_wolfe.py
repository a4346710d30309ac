"""Private Frank-Wolfe: each step moves towards a vertex of the constraint set that was chosen privately.

Minimises F(w) + ridge over an l1 ball, a simplex, a polytope given by its vertices, or a product of l1 balls, simplexes
and boxes; F = (1/n) sum_i f(w, xi_i) convex and smooth. On an l1 ball T steps give at most T non-zero parameters, and
what privacy costs grows with the logarithm of their number only.
Source: Talwar, Thakurta, Zhang 2015.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Repeated, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import frank_wolfe as planning
from privopt.planning import frank_wolfe_refit as refitting
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.constraints import L1Ball, Polytope, Product
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.part_scores import PartScores
from privopt.queries.polytope_scores import PolytopeScores
from privopt.queries.vertex_scores import VertexScores
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults
from privopt.solvers.fields import derived, number, optional
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stepwise import StepwiseSolver


@dataclass(frozen=True, kw_only=True)
class FrankWolfe(StepwiseSolver):
    """Private Frank-Wolfe by the exponential mechanism, and on request a refit of what it selects.

    In a product each part has a choice of its own at every step, all from one mean gradient that stays with the
    curator. A box counts as an interval a coordinate; the intercept beside an l1 ball is such an interval. Its
    parameter goes to and fro by 2 R / (t + 2), so the mean of its last half of iterates is returned.

    Attributes:
        noise_multiplier: z; a choice is epsilon_0-bounded-range with epsilon_0 = 2 / z, which costs the zCDP of a
            Gaussian release of noise multiplier z: rho = epsilon_0^2 / 8 = 1 / (2 z^2). A step of several choices costs
            the same, divided by `shares`, and steps with a refit the same together. 0 takes the best vertices.
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run forgets the start: the first step
            goes all the way to a vertex, so fewer than 10 are hardly useful.
        clip: C_inf, the largest entry of one unit's gradient, or half of its largest range over the vertices of a
            polytope; enforced by scaling the gradient.
        shares: what each part's choice takes of a step's cost, for parts that have more than one vertex; default in
            proportion to (radius times log of vertices)^(2/3), which makes the predicted gap least. None for one part.
        entry_bound: public bound on the entries of a feature row, from which the clip and the number of steps are
            derived; default what is public about the data. Smaller is better, and a wrong one costs utility, never
            privacy.
        refit: whether the parameters are fitted anew on the features that the steps selected, from zero, by 20 steps of
            private gradient descent within the set. It wins where few features matter and they are weakly correlated,
            and can lose much where they are correlated.
        selection_share: of the cost (of its rho), what the steps take where a refit follows.
    Guarantee:
        Choices of bounded range and Gaussian releases, all of them fixed beforehand: (epsilon, delta)-DP by the best
        accountant for their composition, under the curator's relation, for any data, loss and parameters. See
        `VertexScores`, `PartScores` and `PolytopeScores` for the sensitivity. The refit computes on columns that
        released parameters name. Utility, for convex F: a gap of about 8 L_B / (T + 2) + R (factor C_inf / n) z log(2
        p) on an l1 ball.
    Differs from the paper:
        selections are priced by bounded range, epsilon_0^2 / 8 each, in place of advanced composition; gradients are
        clipped, so that privacy does not rest on the loss's Lipschitz constant; products and the refit are ours.
    Source:
        Talwar, Thakurta, Zhang 2015, Algorithm 2; Dong, Durfee, Rogers 2020 (bounded range).
    """

    name: ClassVar[str] = "frank-wolfe"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    clip: float = derived(above=0)
    shares: tuple[float, ...] | None = None
    entry_bound: float | None = optional(above=0, below=math.inf)
    refit: bool = False
    selection_share: float = number(0.4, above=0, below=1)

    def check(self) -> None:
        """Shares are positive and sum to 1."""
        shares = self.shares
        if shares is not None and not (all(share > 0 for share in shares) and abs(sum(shares) - 1.0) < 1e-9):
            raise ValueError(
                f"shares must be positive and sum to 1, got {shares!r}: they divide the cost of a step."
            )

    @property
    def selection_multiplier(self) -> float:
        """The noise multiplier of a step's choice, if there were one: larger where a refit takes a part of the cost."""
        return (
            self.noise_multiplier / math.sqrt(self.selection_share) if self.refit else self.noise_multiplier
        )

    @property
    def refit_mechanism(self) -> Gaussian:
        """The mechanism of each step of the refit: T / (2 z^2) times its share of that, over so many steps."""
        ratio = refitting.STEPS / (self.steps * (1.0 - self.selection_share))
        return Gaussian(self.noise_multiplier * math.sqrt(ratio))

    def mechanisms(self) -> tuple[ExponentialMechanism, ...]:
        """The mechanism of each choice of a step."""
        multipliers = [self.selection_multiplier / math.sqrt(share) for share in self.shares or (1.0,)]
        return tuple(ExponentialMechanism(2.0 / z if z > 0 else math.inf) for z in multipliers)

    def step_event(self, public: Public) -> Event:
        """One choice a part."""
        del public
        return sequence(mechanism.event() for mechanism in self.mechanisms())

    def event(self, public: Public) -> Event:
        """The choices of every step, then the releases of the refit."""
        choices = super().event(public)
        if not (self.refit and self.steps):
            return choices
        return sequence((choices, Repeated(self.refit_mechanism.event(), refitting.STEPS)))

    def releases(self) -> int:
        """One a choice, and one a step of the refit."""
        return self.steps * len(self.shares or (1.0,)) + (refitting.STEPS if self.refit and self.steps else 0)

    def passes(self) -> float:
        """One a step: its choices share a mean gradient."""
        return float(self.steps + (refitting.STEPS if self.refit and self.steps else 0))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A set with vertices, and a smooth penalty."""
        obstacle = planning.obstacle(problem, math.prod(problem.parameter_shape(public)))
        return refitting.obstacle(problem) if obstacle is None and self.refit else obstacle

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Move towards one chosen vertex of every part a step; then fit anew what is not zero."""
        params, constraint, late = start, problem.constraint, start
        for t in range(self.steps):
            if isinstance(constraint, Polytope):
                params = self._polytope_step(curator, problem, constraint, params, ratio=2.0 / (t + 2))
            else:
                params = self._step(curator, problem, params, ratio=2.0 / (t + 2))
            late = late + (params - late) / max(1, t + 1 - self.steps // 2)
        if isinstance(constraint, Product):
            params = jnp.where(planning.intervals(constraint, params), late, params)
        if self.refit and self.steps:
            params = self._refitted(curator, problem, params)
        return Outcome(params, Status.FINISHED)

    def _step(self, curator: Curator, problem: Problem, params: Array, *, ratio: float) -> Array:
        """One choice a part, and a move towards the vertex of the product that they make."""
        scores = VertexScores(
            loss=problem.loss, at=params, clip=self.clip, offset=problem.regulariser.gradient(params)
        )
        mechanisms, parts = self.mechanisms(), planning.parts_of(problem, params.size)
        if isinstance(problem.constraint, L1Ball):
            chosen = [curator.release(scores, mechanisms[0])]
        else:
            mean = curator.hold_mean(scores)
            open_parts = [part for part in parts if part.vertices > 1]
            chosen = [
                curator.release(PartScores(mean=mean, places=part.scores(params.size)), mechanism)
                for part, mechanism in zip(open_parts, mechanisms, strict=True)
            ]
        # A rehearsal without data answers zeros in the shape of the scores: the first vertex.
        return _towards(params, chosen, parts=parts, ratio=ratio)

    def _polytope_step(
        self, curator: Curator, problem: Problem, polytope: Polytope, params: Array, *, ratio: float
    ) -> Array:
        """One choice among the vertices of a polytope, and a move towards it."""
        vertices = jnp.asarray(polytope.matrix)
        scores = PolytopeScores(
            loss=problem.loss,
            at=params,
            vertices=vertices,
            clip=self.clip,
            offset=problem.regulariser.gradient(params),
        )
        chosen = curator.release(scores, self.mechanisms()[0])
        vertex = vertices[chosen.astype(jnp.int64)]
        return (1.0 - ratio) * params + ratio * jnp.reshape(vertex, params.shape)

    def _refitted(self, curator: Curator, problem: Problem, params: Array) -> Array:
        """Gradient descent from zero on the features with a parameter that is not zero."""
        inner = refitting.restricted(problem, curator.public, params)
        descent = GradientDescent(
            noise_multiplier=self.refit_mechanism.noise_multiplier,
            steps=refitting.STEPS,
            step_size=inner.step_size,
            clip=inner.clip if self.noise_multiplier > 0 else math.inf,
            momentum=0.0,
            balanced=inner.balanced,
            returns="weighted",
        )
        curator.announce("refit of the selected features")
        view = curator.view(inner.matrix, inner.row_bound)
        start = inner.problem.constraint.project(jnp.zeros((len(inner.features), *params.shape[1:])))
        found = descent.run(view, inner.problem, start)
        return jnp.zeros_like(params).at[inner.features].set(found.params)


@partial(jax.jit, static_argnames=("parts",))
def _towards(params: Array, chosen: list[Array], *, parts: tuple[planning.Part, ...], ratio: float) -> Array:
    """(1 - g) w + g v, v the vertex of the product with these choices; parts of one vertex were not asked about.

    Of a signed part the first half of the indices is centre + R e_j, the second centre - R e_j.
    """
    flat = jnp.ravel(params)
    moved = (1.0 - ratio) * flat
    remaining = iter(chosen)
    for part in parts:
        if part.centre != 0:
            moved = moved.at[part.start].add(ratio * part.centre)
        if part.radius == 0:
            continue
        index = next(remaining).astype(jnp.int64) if part.vertices > 1 else 0
        entry, sign = part.start + index % part.size, jnp.where(index < part.size, 1.0, -1.0)
        moved = moved.at[entry].add(ratio * part.radius * sign)
    return jnp.reshape(moved, params.shape)
