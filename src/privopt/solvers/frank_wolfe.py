"""Private Frank-Wolfe: each step moves towards a vertex of the constraint set that was chosen privately.

Minimises F(w) + ridge over an l1 ball, a simplex, a polytope given by its vertices, or a product of l1 balls, simplexes
and boxes; F = (1/n) sum_i f(w, xi_i) convex and smooth. On an l1 ball T steps give at most T non-zero parameters, and
what privacy costs grows with the logarithm of their number only.
Source: Talwar, Thakurta, Zhang 2015.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Float, jax, jnp
from privopt.ledger.curves import zcdp_rho_budget
from privopt.ledger.events import Event, Repeated, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning import mirror_geometry
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Box, Constraint, L1Ball, Polytope, Product, Simplex
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Regulariser, Ridge
from privopt.public import Public
from privopt.queries.scores import PartScores, PolytopeScores, VertexScores
from privopt.result import Outcome, Status
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import derived, number, optional
from privopt.solvers.gradient_descent import GradientDescent

# ---- Defaults and forecast of Frank-Wolfe ------------------------------------------------------------------
# A set is a product of parts, each with vertices of its own that are chosen among privately: an l1 ball of p parameters
# has 2 p, a simplex p, and a box two a coordinate. With radii R_k (half a side of a box) and m_k vertices the gap after
# T steps is about
#
#     8 L_B / (T + 2) + (S C / n) sum_k R_k z_k log m_k,
#
# z_k the noise multiplier of the choices of part k, which cost 1 / (2 z_k^2) each. At a given total cost the sum is
# least for costs in proportion to (R_k log m_k)^(2/3), which is how a step's cost is divided. Utility only.
#
# A refit leaves `selection_share` of the cost to the choices; the last section says what the rest pays for.
FEW_STEPS = 10
FEWEST_STEPS, MOST_STEPS = 20, 150
STEPS_SHARE = 0.05  # of the steps that minimise the bound, whose curvature is far above what data show
# Of data that state the bound on their entries. With an intercept beside the ball a clip at 0.3 of the slope is better
# where classes are balanced or lie apart; where they are unbalanced and overlap it moves the minimiser, on the parities
# of randhie to a loss above the constant's. Estimators know neither, so they take what fails nowhere; see
# docs/algorithms/frank-wolfe.md.
SAFE_SLOPE_SHARE, SAFE_STEPS_SHARE, SAFE_MOST_STEPS = 0.6, 0.1, 500
MOST_CHOICES = 20  # a step: each further one takes budget from the others


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive parameters among whose vertices one choice a step is made.

    Attributes:
        start: the first of the parameters.
        size: p, how many there are.
        signed: whether the vertices are centre + R e_j and centre - R e_j, 2 p of them; else R e_j, p of them.
        radius: R.
        centre: of an interval, 0 for balls and simplexes.
    """

    start: int
    size: int
    signed: bool
    radius: float
    centre: float = 0.0

    @property
    def vertices(self) -> int:
        """m, how many there are; 1 for an interval without length."""
        return max(1, (1 + self.signed) * self.size) if self.radius > 0 else 1

    @property
    def weight(self) -> float:
        """R log m: what noise of multiplier 1 on its choices costs, in units of S C / n."""
        return self.radius * math.log(self.vertices)

    def scores(self, parameters: int) -> tuple[tuple[int, int], ...]:
        """Where its vertices stand among the scores of +e_1, ..., +e_P, -e_1, ..., -e_P, as (first, end)."""
        ups = (self.start, self.start + self.size)
        downs = (parameters + ups[0], parameters + ups[1])
        return (ups, downs) if self.signed else (ups,)


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

    clip: float = derived(above=0)
    shares: tuple[float, ...] | None = None
    entry_bound: float | None = optional(above=0, below=math.inf)
    refit: bool = False
    selection_share: float = number(0.4, above=0, below=1)

    def default_clip(self, instance: Instance) -> float:
        """C_inf: the clipped slope times the largest entry of a row, or times half its range over a polytope."""
        if not instance.is_private:
            return math.inf
        constraint = instance.problem.constraint
        entries = mirror_geometry.largest_entry(instance, self.entry_bound)
        if isinstance(constraint, Polytope):
            entries *= mirror_geometry.half_width(constraint)
        unsure = _states_entries(instance) and not isinstance(constraint, L1Ball)
        share = SAFE_SLOPE_SHARE if unsure else mirror_geometry.SLOPE_SHARE
        return mirror_geometry.default_slope(instance, share) * entries

    def default_shares(self, instance: Instance) -> tuple[float, ...] | None:
        """How a step's cost is divided among the parts; None for one choice."""
        shares = shares_of(parts_of(instance.problem, instance.parameters))
        return shares if len(shares) > 1 else None

    def default_steps(self, instance: Instance) -> int:
        """A share of the T = (16 L_B / (k log 2p))^(2/3) that minimises 8 L_B / T + k sqrt(T) log 2p, within limits."""
        if not instance.is_private:
            return mirror_geometry.NOISELESS_STEPS
        rho = zcdp_rho_budget(instance.budget.epsilon, instance.budget.delta)
        rho *= self.selection_share if self.refit else 1.0
        public = instance.public
        noise = (
            public.relation.factor * self.clip * noise_weight(instance) / (public.n * math.sqrt(2.0 * rho))
        )
        curvature = mirror_geometry.smoothness(instance, self.entry_bound)
        best = (16.0 * curvature / noise) ** (2.0 / 3.0)
        share, most = (
            (SAFE_STEPS_SHARE, SAFE_MOST_STEPS) if _states_entries(instance) else (STEPS_SHARE, MOST_STEPS)
        )
        return mirror_geometry.clipped_steps(share * best, FEWEST_STEPS, most)

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
        ratio = REFIT_STEPS / (self.steps * (1.0 - self.selection_share))
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
        return sequence((choices, Repeated(self.refit_mechanism.event(), REFIT_STEPS)))

    def releases(self) -> int:
        """One a choice, and one a step of the refit."""
        return self.steps * len(self.shares or (1.0,)) + (REFIT_STEPS if self.refit and self.steps else 0)

    def passes(self) -> float:
        """One a step: its choices share a mean gradient."""
        return float(self.steps + (REFIT_STEPS if self.refit and self.steps else 0))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A set with vertices, and a smooth penalty."""
        obstacle = vertex_obstacle(problem, math.prod(problem.parameter_shape(public)))
        return refit_obstacle(problem) if obstacle is None and self.refit else obstacle

    def forecast(self, instance: Instance) -> Forecast:
        """The gap of the first comment, at most the loss at zero; notices of few steps and of a missing entry bound."""
        public = instance.public
        excess = 8.0 * mirror_geometry.smoothness(instance, self.entry_bound) / (self.steps + 2)
        if self.noise_multiplier > 0:
            score = public.relation.factor * self.clip / public.n
            excess += self.selection_multiplier * score * noise_weight(instance)
        notices: list[str] = []
        if 0 < self.steps < FEW_STEPS:
            notices.append(
                f"{self.steps} steps are few: the first goes all the way to a vertex, and {FEW_STEPS} or more are "
                "needed to come back."
            )
        if self.refit:
            notices.append(
                "a refit wins where few features matter and they are weakly correlated, and can lose much where they "
                "are correlated; the prediction is for the parameters before it."
            )
        if self.entry_bound is None and public.entry_bound is None and public.d > 1:
            notices.append(
                f"the entries of a row are bounded by the row bound {public.row_bound:.3g} only: state `entry_bound` "
                "if they are known to be smaller, since the noise is proportional to it."
            )
        return Forecast(
            excess=instance.capped(excess),
            meaning="a bound for convex losses, if few gradients are clipped; pessimistic",
            notices=tuple(notices),
        )

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
            params = jnp.where(intervals(constraint, params), late, params)
        if self.refit and self.steps:
            params = self._refitted(curator, problem, params)
        return Outcome(params, Status.FINISHED)

    def _step(self, curator: Curator, problem: Problem, params: Array, *, ratio: float) -> Array:
        """One choice a part, and a move towards the vertex of the product that they make."""
        scores = VertexScores(
            loss=problem.loss, at=params, clip=self.clip, offset=problem.regulariser.gradient(params)
        )
        mechanisms, parts = self.mechanisms(), parts_of(problem, params.size)
        if isinstance(problem.constraint, L1Ball):
            chosen = [curator.release(scores, mechanisms[0])]
        else:
            mean = curator.hold_mean(scores)
            open_parts = [part for part in parts if part.vertices > 1]
            chosen = [
                curator.release(PartScores(mean=mean, places=part.scores(params.size)), mechanism)
                for part, mechanism in zip(open_parts, mechanisms, strict=True)
            ]
        # A dry run answers zeros in the shape of the scores: the first vertex.
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
        inner = restricted(problem, curator.public, params)
        descent = GradientDescent(
            noise_multiplier=self.refit_mechanism.noise_multiplier,
            steps=REFIT_STEPS,
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
def _towards(params: Array, chosen: list[Array], *, parts: tuple[Part, ...], ratio: float) -> Array:
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


def parts_of_set(constraint: Constraint, parameters: int) -> tuple[Part, ...] | None:
    """The parts of a set of so many parameters; None if it has other parts than balls, simplexes and bounded boxes."""
    found: list[Part] = []
    start = 0
    for block, size in _blocks(constraint, parameters):
        match block:
            case L1Ball(radius):
                found.append(Part(start=start, size=size, signed=True, radius=radius))
            case Simplex(radius):
                found.append(Part(start=start, size=size, signed=False, radius=radius))
            case Box():
                lows, highs = block.bounds((size,))
                if not (np.all(np.isfinite(lows)) and np.all(np.isfinite(highs))):
                    return None
                found += [
                    Part(
                        start=start + j, size=1, signed=True, radius=(high - low) / 2, centre=(low + high) / 2
                    )
                    for j, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True))
                ]
            case _:
                return None
        start += size
    return tuple(found)


def parts_of(problem: Problem, parameters: int) -> tuple[Part, ...]:
    """The parts of a problem's set; none for a polytope, which is one choice among its vertices."""
    return parts_of_set(problem.constraint, parameters) or ()


def intervals(product: Product, params: Array) -> NDArray[np.bool_]:
    """Which parameters are an interval of their own, in their shape."""
    alone = np.zeros(params.size, np.bool_)
    for part in parts_of_set(product, params.size) or ():
        alone[part.start] |= part.signed and part.size == 1
    return alone.reshape(params.shape)


def shares_of(found: tuple[Part, ...]) -> tuple[float, ...]:
    """What each part with a choice takes of a step's cost: in proportion to (R log m)^(2/3)."""
    weights = [part.weight ** (2.0 / 3.0) for part in found if part.vertices > 1]
    return tuple(weight / sum(weights) for weight in weights)


def vertex_obstacle(problem: Problem, parameters: int) -> str | None:
    """Why a set has no vertices that can be chosen among, or None if it has."""
    constraint = problem.constraint
    if not problem.regulariser.is_smooth:
        return mirror_geometry.not_smooth(problem)
    if isinstance(constraint, Polytope):
        size = len(constraint.vertices[0])
        if size == parameters:
            return None
        return f"its vertices have {size} entries, and there are {parameters} parameters"
    found = parts_of_set(constraint, parameters)
    if found is None:
        return (
            "it moves between the vertices of an l1 ball, a simplex, a polytope, or a product of l1 balls, simplexes "
            f"and boxes, and the set is {constraint!r}: use L1Ball(radius)"
        )
    choices = len(shares_of(found))
    if not 1 <= choices <= MOST_CHOICES:
        return (
            f"it makes a choice a step for every ball, simplex and coordinate of a box, here {choices}, and takes 1 to "
            f"{MOST_CHOICES} of them: use accelerated mirror descent"
        )
    return None


def _states_entries(instance: Instance) -> bool:
    """Whether the bound on entries belongs to the data, as that of features that were scaled by bounds."""
    return instance.public.entry_bound is not None


def noise_weight(instance: Instance) -> float:
    """sum_k R_k log m_k z_k / z for the shares of a step's cost; log m for a polytope, whose scores hold its size."""
    constraint = instance.problem.constraint
    if isinstance(constraint, Polytope):
        return math.log(max(2, len(constraint.vertices)))
    chosen = [part for part in parts_of(instance.problem, instance.parameters) if part.vertices > 1]
    return sum(
        part.weight / math.sqrt(share) for part, share in zip(chosen, shares_of(tuple(chosen)), strict=True)
    )


# ---- The second stage: the problem on the features that were selected, and how far a descent steps there ---
# All of it is a function of public numbers and of released parameters. Features have entries of at most a public e;
# with k of them gradients are clipped at `SLOPE e sqrt(k)`, in a balanced way where the loss has one, and a step is
# `STEP / (curvature e^2)`: 0.5 sqrt(k) and 1 for the logistic loss and entries within 1. Balanced gradients are
# shorter, up to half, so steps are twice as long; where there are many features, which may be correlated, they are
# shorter again.
REFIT_STEPS = 20
SLOPE = 0.5  # that gradients are clipped at, over the loss's largest; over 1 where that is infinite
STEP = 0.25  # over the curvature of the loss in one feature; over 1 where that is infinite
MANY = 16  # features: with k of them more, a step is sqrt(MANY / k) times as long


@dataclass(frozen=True, kw_only=True, eq=False)
class Restriction:
    """A problem on some of the features.

    Attributes:
        features: which, in order; released.
        problem: on them alone.
        matrix: (d, k), which takes rows to their entries in these features.
        row_bound: of the rows that are left.
        clip: of gradients.
        balanced: whether gradients are shortened without regard to their targets, see `ClippedGradient`.
        step_size: of descent.
    """

    features: NDArray[np.int64]
    problem: Problem
    matrix: NDArray[np.float64]
    row_bound: float
    clip: float
    balanced: bool
    step_size: float


def refit_obstacle(problem: Problem) -> str | None:
    """Why a problem cannot be restricted to some of the features, or None if it can."""
    if not isinstance(problem.loss, GLMLoss):
        return "a refit drops features, and the parameters of a user-written loss belong to none: use refit=False"
    if not isinstance(problem.regulariser, Ridge | NoRegulariser):
        return f"a refit cannot restrict {problem.regulariser!r} to some of the features: use refit=False"
    outputs = problem.loss.outputs
    if any(size % outputs for _, size in _blocks(problem.constraint, outputs)):
        return "a refit drops whole features, and a part of the set holds some classes of one only: use refit=False"
    if any(
        not isinstance(block, L1Ball | Simplex | Box) for block, _ in _blocks(problem.constraint, outputs)
    ):
        return f"a refit cannot restrict {problem.constraint!r} to some of the features: use refit=False"
    return None


def restricted(problem: Problem, public: Public, params: Float[Array, "..."]) -> Restriction:
    """The problem on the features with a parameter that is not 0, and on all within a box.

    Args:
        problem: on all features.
        public: of all features.
        params: released.
    """
    outputs = problem.loss.outputs
    used = np.any(np.asarray(params).reshape(public.d, outputs) != 0, axis=1)
    kept: list[tuple[Constraint, NDArray[np.int64]]] = []
    start = 0
    for block, size in _blocks(problem.constraint, public.d * outputs):
        rows = np.arange(start, start + size // outputs)
        chosen = rows if isinstance(block, Box) else rows[used[rows]]
        kept.append((_part(block, size), chosen if len(chosen) else rows[:1]))
        start += len(rows)
    features = np.concatenate([rows for _, rows in kept])
    parts = tuple((block, len(rows) * outputs) for block, rows in kept)
    matrix = np.zeros((public.d, len(features)))
    matrix[features, np.arange(len(features))] = 1.0
    entries, loss = public.largest_entry, problem.loss
    longest = entries * math.sqrt(len(features))
    balanced = isinstance(loss, GLMLoss) and loss.balances
    fewer = min(1.0, math.sqrt(MANY / len(features)))
    curvature = loss.curvature if math.isfinite(loss.curvature) else 1.0
    return Restriction(
        features=features,
        problem=replace(
            problem,
            regulariser=_penalty(problem.regulariser, features),
            constraint=parts[0][0] if len(parts) == 1 else Product(parts),
            growth=None,
        ),
        matrix=matrix,
        row_bound=min(public.row_bound, longest * (1.0 + 1e-6)),  # rounded up, so that no row is shortened
        clip=SLOPE * (loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0) * longest,
        balanced=balanced,
        step_size=STEP * (1.0 + balanced) * fewer / (curvature * entries**2),
    )


def _blocks(constraint: Constraint, parameters: int) -> tuple[tuple[Constraint, int], ...]:
    return constraint.parts if isinstance(constraint, Product) else ((constraint, parameters),)


def _part(block: Constraint, size: int) -> Constraint:
    """The same set; a box by its ends in every coordinate, of which all are kept."""
    if not isinstance(block, Box):
        return block
    low, high = block.bounds((size,))
    return Box(tuple(low.tolist()), tuple(high.tolist()))


def _penalty(regulariser: Regulariser, features: NDArray[np.int64]) -> Regulariser:
    if not isinstance(regulariser, Ridge) or regulariser.weights is None:
        return regulariser
    return replace(regulariser, weights=tuple(regulariser.weights[j] for j in features.tolist()))
