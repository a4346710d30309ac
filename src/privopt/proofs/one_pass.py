"""One pass of gradient steps over the records: no step moves two iterates apart, and what follows for privacy.

A step on a batch of B places, with eta <= 2 / (L + mu), is

    w <- P( prox_{eta r}( w - eta (1/B) sum of phi_c'(<a, w>, y) a - eta Lam w - eta xi ) ),

phi_c the Huberised loss, Lam the ridges, P the projection onto everything or a ball, xi the noise or 0. `phi_c` is
convex with curvature at most sup phi'', by its formula and for any record; rows are at most R long. So the gradient
that is subtracted is that of a convex function of smoothness L = sup phi'' R^2 + the largest ridge, and for
eta <= 2 / L the step does not expand (Hardt, Recht, Singer 2016, Lemma 3.7): <g - g', w - w'> >= |g - g'|^2 / L makes

    |w - w' - eta (g - g')|^2 <= |w - w'|^2 - eta (2 / L - eta) |g - g'|^2 <= |w - w'|^2,

and proximal maps and projections do not expand either. An absent record is a place with a zero gradient. The order is
a random permutation of all n places, drawn without looking at the data: a record that is replaced keeps its place, and
so it does when it is replaced by an absent one. What follows holds for every order, hence for the mixture.

Noise at the end. Batches of one. Replacing the record at place t changes one step: its gradients are at most C long, so
the iterates after it are at most 2 eta C apart, then and ever after, and so is the average of all iterates.

Noise at every step, xi ~ N(0, sigma^2 I), and only the end is released. Let the record that is replaced be in batch t
of T, m = T - t + 1, D = 2 eta C / B_t. Run the left data with noise xi, and the right data with noise xi + a_s at step
s >= t, where eta a_s takes the right iterate towards the left one by D / m, or all the way where that is less. The
distance before the noise of step s is at most D - (s - t) D / m, as no step expands, so at the end both are the same.
The left end therefore has the law of the right one under noise with shifts a_s, each of norm at most D / (m eta) and a
function of the noises of earlier steps alone: given the right data's noises, those of the left and both iterates
follow. That is an adaptive composition of m Gaussian mechanisms, which is mu-Gaussian-DP with

    mu = sqrt(m) D / (m eta sigma) = 2 C / (B_t sqrt(m) sigma)

(Dong, Roth, Su 2022, Theorem 4), and the end is a function of it. Likewise with the sides exchanged. So the price is
exactly that of one Gaussian release of multiplier sigma / Delta, Delta = max over t of 2 C / (B_t sqrt(T - t + 1)):
more than zero-concentrated DP with rho = mu^2 / 2, which the Renyi form of the argument gives.

Rounding. A computed step is the exact one plus an error of at most e (`PassSteps.rounding`), on both sides. At the end
of T steps the first kind is up to 2 T e farther apart. In the second, each shift absorbs 2 e / eta more, which makes
Delta = max over t of sqrt(m) (2 C / (B_t m) + 2 e / eta). Steps before t are the same computation on the same numbers.

Source:
    Feldman, Koren, Talwar 2020 (phases, growing batches); Feldman, Mironov, Talwar, Thakurta 2018 (amplification by
    iteration); the shifts as an adaptive composition: Bok, Su, Altschuler 2024.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.compilation import FAST, compiled
from privopt.engine.kernels import LARGEST, slopes
from privopt.later import jnp
from privopt.problems.constraints import CentredBall, L2Ball, Unconstrained
from privopt.problems.glm import ScalarLoss
from privopt.problems.losses import SmoothedHinge
from privopt.problems.problem import Problem
from privopt.problems.regularisers import SeparableRegulariser
from privopt.proofs import huberised_objective
from privopt.proofs.contraction import largest_step
from privopt.proofs.huberised_objective import LEAST_CLIP, own_ridge
from privopt.public import Public, Relation

Vector = NDArray[np.float64]
Records = tuple[Any, NDArray[np.float64]]  # stored rows, targets
_UNIT = 2.0**-53
_FORMULA = 256.0 * _UNIT  # relative error of a compiled slope; its exponential is off by 1e-14
_INWARDS = 1.0 - 1e-9  # of the clip: more than the rounding of a norm and a product
_BLOCK_ENTRIES = 2**20
MOST_PLACES = 2**26  # half a gigabyte for the sizes of batches


def obstacle(problem: Problem, public: Public) -> str | None:
    """Why the proof does not cover a problem, or None."""
    if public.unit == "user":
        return "it protects records, and here a unit is a user"
    if public.relation is not Relation.REPLACE_ONE:
        return "a record that comes or goes would move the others' places: use relation='replace-one'"
    if public.n > MOST_PLACES:
        return f"its batches are planned place by place, for at most {MOST_PLACES:,} records"
    found = huberised_objective.obstacle(problem)
    if found is not None:
        return found
    if not isinstance(problem.regulariser, SeparableRegulariser):
        return f"its steps know a ridge, l1 or an elastic net, not {problem.regulariser!r}"
    if not isinstance(problem.constraint, Unconstrained | L2Ball | CentredBall):
        return f"its steps project onto everything or an l2 ball, not onto {problem.constraint!r}"
    return None


@dataclass(frozen=True, kw_only=True)
class GrowingBatches:
    """Batches whose records are hidden equally well by the noise of the steps from theirs to the last.

    B_t = ceil(scale / sqrt(T - t + 1)), T the largest for which all of them hold at most `places` records; one batch of
    all of them where there is none.

    Attributes:
        places: n.
        scale: 2 C over sigma and over mu, the price of the pass.
    Source:
        Feldman, Koren, Talwar 2020, Theorem 3.2, with an exact constant.
    """

    places: int
    scale: float

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """B_1, ..., B_T."""
        left = np.arange(1, self.places + 1)
        needed = np.minimum(self.scale / np.sqrt(left) * (1.0 - 1e-12), self.places + 1.0)
        backwards = np.maximum(np.ceil(needed), 1.0).astype(np.int64)
        count = int(np.searchsorted(np.cumsum(backwards), self.places, side="right"))
        return backwards[:count][::-1] if count else np.asarray([self.places], np.int64)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """For each visited place, how many places the batch that ends there has; 0 where none ends."""
        found = np.zeros(int(np.sum(self.sizes)), np.int64)
        found[np.cumsum(self.sizes) - 1] = self.sizes
        return found


@dataclass(frozen=True, kw_only=True)
class PassSteps:
    """Gradient steps on records one after the other, from public numbers.

    Attributes:
        problem: without an `obstacle`.
        public: of the records.
        clip: C, the largest norm of one record's gradient; infinite only when privacy is switched off.
        step_size: eta.
    Raises:
        ValueError: the proof does not cover the problem or the step size.
    """

    problem: Problem
    public: Public
    clip: float
    step_size: float

    def __post_init__(self) -> None:
        found = obstacle(self.problem, self.public)
        if found is not None:
            raise ValueError(f"{found}.")
        if not self.clip > 0.0:
            raise ValueError(
                f"clip must be positive, got {self.clip!r}: it is the largest norm of a record's gradient."
            )
        largest = largest_step(self.problem, self.public)
        if not min(self.step_size, self.clip) >= LEAST_CLIP:
            raise ValueError(
                f"step_size and clip must be at least {LEAST_CLIP:g}, got {self.step_size!r} and {self.clip!r}: "
                "the bound on rounding would vanish."
            )
        if not 0.0 < self.step_size <= largest * (1.0 + 1e-12):
            raise ValueError(
                f"step_size must be positive and at most 2 / (L + mu) = {largest:.6g}, got {self.step_size!r}: beyond "
                "it a step may push neighbouring iterates apart."
            )

    @property
    def loss(self) -> ScalarLoss:
        """The loss, which has one output."""
        assert isinstance(self.problem.loss, ScalarLoss)
        return self.problem.loss

    @cached_property
    def ball(self) -> tuple[Vector, float]:
        """Centre and radius of the set; an infinite radius for everything."""
        constraint = self.problem.constraint
        if isinstance(constraint, CentredBall):
            return np.asarray(constraint.centre, np.float64), constraint.radius
        radius = constraint.radius if isinstance(constraint, L2Ball) else math.inf
        return np.zeros(self.public.d), radius

    def length(self, start: float, steps: int, noise: float = 0.0) -> float:
        """A bound on the norm of every iterate, before its projection as well.

        Args:
            start: norm of the first.
            steps: how many there are.
            noise: the largest norm of one step's noise.
        """
        push = self.step_size * (self.clip + noise)
        centre, radius = self.ball
        if math.isfinite(radius):
            return max(start, float(np.linalg.norm(centre)) + radius) + push
        return start + steps * push

    def rounding(self, length: float, batch: int = 1) -> float:
        """e: how far a computed step can be from the exact one.

        A prediction is off by (d + 8) u |a| |w|, which the slope multiplies by its curvature; the slope by its formula;
        a sum over a batch by B u C; the update, the proximal map and the projection by a few u of what they change.

        Args:
            length: of the iterates.
            batch: B, the most records of a step.
        """
        loss, bound, width = self.loss, self.public.row_bound, self.public.d
        corner = 2.0 + 3.0 * loss.width if isinstance(loss, SmoothedHinge) else 2.0
        largest = loss.lipschitz * bound if math.isfinite(loss.lipschitz) else self.clip
        slope = _FORMULA * max(largest, self.clip) + 16.0 * _UNIT * loss.curvature * bound * corner
        slope += (width + 8) * _UNIT * loss.curvature * bound * bound * length
        gradient = slope + (batch + 8) * _UNIT * self.clip
        return self.step_size * gradient + _UNIT * (width + 32) * (length + self.step_size * self.clip)

    def run(
        self,
        private_records: Records,
        order: NDArray[np.int64],
        start: Vector,
        ends: NDArray[np.int64],
        draw: Callable[[int], Vector] | None = None,
        *,
        bare: bool = False,
    ) -> tuple[Vector, Vector]:
        """Walk through the places in order.

        Args:
            private_records: the stored rows and targets.
            order: a record's position a place; a position that no record has is absent.
            start: the first iterate.
            ends: for each place, how many places the batch that ends there has; 0 where none ends.
            draw: the noise of the next so many steps, on the scale of the gradient; None for none.
            bare: whether to leave out proximal maps and projections.
        Returns:
            The last iterate, and the sum of all iterates after a step.
        """
        params = np.array(start, np.float64)
        total, gradient = np.zeros_like(params), np.zeros_like(params)
        l1, weights = self._soft
        thresholds = (0.0 if bare else self.step_size * l1) * weights
        centre, radius = self.ball
        radius = math.inf if bare else radius
        for places, private_rows, private_targets in self._blocks(private_records, order):
            stops = ends[places]
            count = int(np.count_nonzero(stops))
            noise = np.zeros((0, len(params))) if draw is None else np.asarray(draw(count), np.float64)
            run_places(
                self.loss.kernel_code,
                *self.loss.kernel_parameters,
                private_rows,
                private_targets,
                stops,
                noise,
                self.clip * _INWARDS,
                self.step_size,
                own_ridge(self.problem, self.public.d),
                thresholds,
                centre,
                radius,
                params,
                gradient,
                total,
            )
        return params, total

    def before_noise(self, private_records: Records, places: NDArray[np.int64], at: Vector) -> Vector:
        """A gradient step on one batch, before noise, proximal map and projection."""
        ends = np.zeros(len(places), np.int64)
        ends[-1] = len(places)
        return self.run(private_records, places, at, ends, bare=True)[0]

    def after_noise(self, point: Vector) -> Vector:
        """Proximal map and projection of one step."""
        return np.asarray(self.problem.prox(jnp.asarray(point), self.step_size), np.float64)

    @property
    def _soft(self) -> tuple[float, Vector]:
        assert isinstance(self.problem.regulariser, SeparableRegulariser)
        l1, _, weights = self.problem.regulariser.terms
        return l1, np.asarray(weights or (1.0,) * self.public.d, np.float64)

    def _blocks(
        self, private_records: Records, order: NDArray[np.int64]
    ) -> Iterator[tuple[slice, NDArray[Any], Vector]]:
        """Rows and targets at the next places; zeros where there is no record."""
        private_features, private_targets = private_records
        private_count = len(private_targets)
        length = max(1, _BLOCK_ENTRIES // self.public.d)
        for first in range(0, len(order), length):
            places = slice(first, min(first + length, len(order)))
            private_positions = order[places]
            private_there = private_positions < private_count
            private_kept = private_positions[private_there]
            private_found = _rows(private_features, private_kept)
            private_rows = np.zeros((len(private_positions), self.public.d), private_found.dtype)
            private_rows[private_there] = private_found
            private_wanted = np.zeros(len(private_positions))
            private_wanted[private_there] = private_targets[private_kept]
            yield places, private_rows, private_wanted


def _rows(private_features: Any, private_positions: NDArray[np.int64]) -> NDArray[Any]:
    if isinstance(private_features, np.ndarray):
        return private_features[private_positions]
    if sparse.issparse(private_features):
        return np.asarray(private_features[private_positions].toarray())
    return np.asarray(private_features.take(private_positions))


# ---- The compiled walk through places: clipped gradients, steps, proximal maps, projections, in float64 ----
@compiled(FAST)
def run_places(
    code: int,
    p0: float,
    p1: float,
    x: Any,
    y: Any,
    ends: Any,
    noise: Any,
    aim: float,
    step: float,
    ridge: Any,
    thresholds: Any,
    centre: Any,
    radius: float,
    w: Any,
    gradient: Any,
    total: Any,
) -> None:
    """Add each row's clipped gradient; where a batch of `ends[r]` places ends, take its step.

    Args:
        code: the formula, see `KernelCode`.
        p0: its first parameter.
        p1: its second.
        x: rows.
        y: targets.
        ends: places of the batch that ends here, 0 where none does.
        noise: one row a step, on the scale of the gradient; no rows for no noise.
        aim: the clip, a little inwards.
        step: eta.
        ridge: of each coordinate.
        thresholds: of each coordinate, by which one step's proximal map shortens it.
        centre: of the ball.
        radius: of the ball; infinite for none.
        w: the iterate; changed in place.
        gradient: the sum over the batch so far; changed in place.
        total: the sum of all iterates; changed in place.
    """
    d = x.shape[1]
    soft = False
    for j in range(d):
        soft = soft or thresholds[j] > 0.0
    prediction, target, slope = np.empty(1), np.empty(1), np.empty(1)
    steps = 0
    for r in range(x.shape[0]):
        t = squares = 0.0
        for j in range(d):
            a = np.float64(x[r, j])
            t += a * w[j]
            squares += a * a
        if squares > 0.0:
            prediction[0], target[0] = t, y[r]
            slopes(code, p0, p1, prediction, target, 1, slope)
            cap = aim / (math.sqrt(squares) * (1.0 + 1e-12))
            s = slope[0]
            s = min(max(s, -cap), cap) if abs(s) <= LARGEST else 0.0
            for j in range(d):
                gradient[j] += s * np.float64(x[r, j])
        if ends[r] == 0:
            continue
        share = 1.0 / ends[r]
        if noise.shape[0] > 0:
            for j in range(d):
                w[j] -= step * (share * gradient[j] + ridge[j] * w[j] + noise[steps, j])
                gradient[j] = 0.0
        else:
            for j in range(d):
                w[j] -= step * (share * gradient[j] + ridge[j] * w[j])
                gradient[j] = 0.0
        steps += 1
        if soft:
            for j in range(d):
                size = max(abs(w[j]) - thresholds[j], 0.0)
                w[j] = size if w[j] > 0.0 else -size
        if radius < math.inf:
            squares = 0.0
            for j in range(d):
                squares += (w[j] - centre[j]) * (w[j] - centre[j])
            if squares > radius * radius:
                factor = radius / math.sqrt(squares)
                for j in range(d):
                    w[j] = centre[j] + factor * (w[j] - centre[j])
        for j in range(d):
            total[j] += w[j]
