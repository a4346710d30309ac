"""Single-pass O2NC: near-stationary points of losses that need be neither smooth nor convex, every unit read once.

Minimises F(x) + r(x), F the mean loss of the n units and r smooth. The points z_t and the steps are those of
`solvers.o2nc`; here each step has a batch of its own, one of T disjoint random parts of the units, and the gradient is

    without variance reduction    g_t = release(mean over batch t of the clipped gradient at z_t)
    with it, in periods of S      g_t = prefix sum, since the start of the period, of a clipped gradient at its first
                                  point and the clipped changes of the gradient from z_{t-1} to z_t at the others

The prefix sums carry noise that is correlated over a period; all periods share one stream, charged as one release.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2, 3 and 5.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.drawable import require_drawable_sums
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import (
    Banded,
    Strategy,
    block_diagonal,
    dense_optimum,
    independent,
    prefix_noise,
    square_root_toeplitz,
)
from privopt.papers.reduced_o2nc import Estimate, Estimates, ReducedO2NC
from privopt.planning.plan import Plan
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.online_to_nonconvex import Mode, Places, Returns, longest_move

# ---- Defaults, batches, correlated noise and forecast of single-pass O2NC ----------------------------------
# Every unit is in at most one batch. With variance reduction S steps make a period: a gradient on a batch of B1 units,
# then its changes on batches of B2. Without, S = 1 and all T batches have B1 = floor(n / T) units.
#
#     P = ceil(T / S) periods,  B1 = floor(share n / P),  B2 = floor((n - P B1) / (T - P))
#     s_1 = factor C / B1,      s_2 = factor c / B2       the sensitivities of a period's first item and of the others
#
# C is the clipping norm of a gradient, c that of a change over the longest possible distance between two points in a
# row. The strategy (the lower triangular matrix that correlates a period's noise) is the optimum for items of these
# sensitivities; only their ratio enters. The true sensitivities of changes follow the actual distances between points,
# which are public, and are smaller.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Algorithms 3 and 5; Denisov, McMahan, Rush, Smith, Thakurta 2022 (the strategy). The
#     defaults were chosen on generated problems; utility only.
STEPS = 60
PERIOD = 4
SMOOTHING = 1.0 / 64.0  # radius of the smoothing ball, over the distance R
REDUCED_SMOOTHING = 1.0 / 8.0  # the same with variance reduction, which needs changes shorter than gradients
LARGEST_OPTIMUM = 512  # items of a period, up to which the optimal strategy is computed


def as_bands(strategy: Strategy) -> Banded:
    """A strategy (S, S) as a banded matrix with all its S diagonals."""
    if isinstance(strategy, Banded):
        return strategy
    return Banded(np.stack([np.pad(np.diagonal(strategy, -lag), (0, lag)) for lag in range(len(strategy))]))


@dataclass(frozen=True, kw_only=True)
class SinglePassO2NC(ReducedO2NC):
    """O2NC in one pass over disjoint random batches; see the module for the gradients.

    Attributes:
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        variance_reduction: whether steps within a period ask for changes of the gradient; by default every step asks
            for a gradient, which was better in most measurements.
        period: S, steps of a period; 1 without variance reduction.
        share: part of the units in the batches at the periods' starts.
        estimate: what is asked for: "plain" gradients of the loss as it is, gradients of its average over a ball
            ("exact" where it has a closed formula, "lune" and "translate" from random points of each unit), or
            "values" of the loss only. See `papers.reduced_o2nc`.
        smoothing: radius of that ball, parameter units.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        slope_clip: H, of one unit's change of gradient over the distance; "lune" has none.
        draws: m, random shifts of one unit ("translate").
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_size: eta, the same at every step; by default the schedule of `solvers.online_to_nonconvex`.
        places: where on each step the gradient is taken: "uniform" (anywhere, by public chance) or in its "middle",
            which halves the longest change.
        returns: "tail" (mean of the last tenth of the points), "last" (of the last window), "random" (of a uniformly
            random window) or "best" (of the window whose released gradients have the shortest mean).
        strategy: how the noise of a period is correlated: "optimum", or "blocks" (an independent first item, then a
            square root).
    Guarantee:
        One Gaussian release, for any data, loss and parameters, under the curator's relation: every unit is in one
        batch. With variance reduction every batch is an item of one stream whose strategy is lower triangular with
        unit columns, see `PrefixSum`; without, batches are disjoint and each has one release. Sensitivities follow the
        released points; places and directions are public random numbers.
    Differs from the paper:
        clips in place of bounds that hold with high probability; factorised noise in place of a tree that, as printed,
        releases the last item of a period without noise; see docs/algorithms/single-pass-o2nc.md.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 (values) and Algorithm 5 (gradients).
    """

    name: ClassVar[str] = "single-pass-o2nc"
    faint_advice: ClassVar[str] = (
        "one pass over so few units says next to nothing. A method that passes over the data many times (o2nc) has "
        "far less noise."
    )

    window: int = derived(at_least=1)
    variance_reduction: bool = False
    period: int = derived(at_least=1)
    share: float = number(0.6, above=0, below=1)
    estimate: Estimate = derived()
    smoothing: float = derived(above=0)
    mode: Mode = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    clip: float = derived(above=0)
    slope_clip: float = derived(above=0)
    draws: int = number(4, at_least=1)
    typical: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = derived()
    returns: Returns = derived()
    strategy: Literal["optimum", "blocks"] = choice("optimum")

    def default_steps(self, instance: Instance) -> int:
        """T: at most 60, fewer for few units, which are divided among the steps."""
        return min(STEPS, instance.public.n // (4 if self.variance_reduction else 2))

    @property
    def smoothing_share(self) -> float:
        """The radius of the smoothing ball over the distance R."""
        return REDUCED_SMOOTHING if self.variance_reduction else SMOOTHING

    def default_places(self, instance: Instance) -> Places:
        del instance
        return "middle" if self.variance_reduction else "uniform"

    def default_period(self, instance: Instance) -> int:
        """S: 4, or 1 where the clipping norm of a change is not below that of a gradient."""
        if not self.variance_reduction:
            return 1
        return PERIOD if self._relative_change_clip(instance.parameters) < 1.0 else 1

    def check(self) -> None:
        """Refuse a period of several steps without variance reduction."""
        if self.is_set("period") and self.period > 1 and not self.variance_reduction:
            raise ValueError(
                f"period={self.period} releases changes of gradients: give variance_reduction=True with it, or "
                "leave it out."
            )

    def own_notices(self) -> tuple[str, ...]:
        """That variance reduction does nothing here."""
        if not self.variance_reduction or self.period > 1:
            return ()
        return (
            "at this smoothing the gradient can change by as much as its own length in one step, so every step "
            "takes a gradient and none a difference: a larger `smoothing` or a smaller radius would change that.",
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties, no constraint set, at least two units per batch, and a loss for the estimate."""
        refused = super().applicable(problem, public)
        if refused is None and self.is_set("steps") and public.n < 2 * self.steps:
            return f"{self.steps} batches of n = {public.n} units have less than two units each: take fewer steps"
        return refused or self.estimate_obstacle(problem.loss)

    @property
    def reduces(self) -> bool:
        """Whether any step releases a change of the gradient, so that the run has a stream."""
        return self.period > 1 and self.windows.steps > 1

    def stream(self, n: int, parameters: int) -> PrefixSum:
        """The mechanism of the prefix sums: the periods' strategies in one block-diagonal matrix.

        Args:
            n: number of units.
            parameters: p, number of entries of the gradient.
        """
        strategy = self._run_strategy(n, parameters)
        return PrefixSum(strategy=strategy, noise_multiplier=self.noise_multiplier)

    def announcement(self, instance: Instance) -> Plan:
        """The plan; refused where the noise of the sums cannot be drawn exactly, as integers."""
        n, entries = instance.public.n, math.prod(instance.problem.parameter_shape(instance.public))
        if self.reduces:
            require_drawable_sums(self.noise_multiplier, entries, lambda: self.stream(n, entries))
        return super().announcement(instance)

    def event(self, public: Public) -> Event:
        """One Gaussian release on each of T disjoint batches; or one for the whole stream, which the batches feed."""
        total, once = self.windows.steps, Gaussian(self.noise_multiplier).event()
        if not total:
            return NoEvent()
        self.batches(public.n)  # refuses those of fewer than two units
        if not self.reduces:
            return Parallel((once,) * total)
        return Sequence((once, Parallel((NoEvent(),) * total)))

    def releases(self) -> int:
        """One per step, and the opening of the stream if there is one."""
        return self.windows.steps + (1 if self.windows.steps and self.reduces else 0)

    def passes(self) -> float:
        """One in all; the batches of changes, 1 - share of the units, are evaluated at two points."""
        if not self.windows.steps:
            return 0.0
        return 2.0 - self.share if self.reduces else 1.0

    def estimates(self, curator: Curator, problem: Problem) -> Estimates:
        """The queries of the steps, and how their answers are read as gradients."""
        return Estimates.of(self, problem.loss, curator, placed=self.reduces)

    def gradients(
        self, curator: Curator, estimates: Estimates, start: Array
    ) -> Callable[[MeanQuery, int], Array]:
        """A gradient on a batch of its own; with variance reduction the stream's prefix sum since the period opened."""
        noise, public = Gaussian(self.noise_multiplier), curator.public
        stream = None
        if self.reduces:
            stream = curator.stream(
                "sums of gradient changes", self.stream(public.n, start.size), start.shape
            )
        batches = curator.blocks(self.batches(public.n))
        prefix = earlier = jnp.zeros_like(start)

        def released(query: MeanQuery, turn: int) -> Array:
            nonlocal prefix, earlier
            if stream is None:
                return estimates.read(query, batches[turn].release(query, noise))
            # The stream sums over all periods: g_t is its prefix sum less that at the end of the last period.
            earlier = prefix if turn % self.period == 0 else earlier
            prefix = jnp.asarray(stream.ask("add", query, on=batches[turn]))
            return prefix - earlier

        return released

    def batches(self, n: int) -> list[int]:
        """The number of units in each step's batch, (T,): B1 at the start of a period, else B2; together at most n.

        Raises:
            ValueError: a batch of fewer than two units.
        """
        total, period = self.windows.steps, self.period
        periods = math.ceil(total / period) if total else 0
        later = total - periods
        first_size = math.floor((self.share if later else 1.0) * n / periods) if periods else 2
        later_size = (n - periods * first_size) // later if later else 2
        if min(first_size, later_size) < 2:
            raise ValueError(
                f"{total} steps in periods of {period} leave batches of {min(first_size, later_size)} of the n = {n} "
                "units, and a batch needs at least 2: take fewer steps."
            )
        return [later_size if t % period else first_size for t in range(total)]

    def _relative_change_clip(self, parameters: int) -> float:
        """c / C: the clipping norm of a change over the longest distance of two points in a row, in units of C."""
        farthest = longest_move(self.windows.longest, self.places)
        clip = 1.0 if math.isinf(self.clip) else self.clip
        return self.length_of_change(farthest, parameters, clip) / clip

    def relative_sensitivities(self, n: int, parameters: int, length: int) -> NDArray[np.float64]:
        """(1, s_2 / s_1, ..., s_2 / s_1), (length,): a period's sensitivities over the first, for the longest steps."""
        if length == 1:
            return np.ones(1)
        sizes = self.batches(n)
        ratio = self._relative_change_clip(parameters) * sizes[0] / sizes[1]
        return np.append(1.0, np.full(length - 1, max(ratio, 1e-6)))

    def period_strategy(self, n: int, parameters: int, length: int) -> Strategy:
        """The strategy of a period of `length` items, (length, length).

        It is the optimum for the relative sensitivities, or an independent first item and a square root (Toeplitz) for
        the others.
        """
        if length <= LARGEST_OPTIMUM and self.strategy == "optimum":
            return dense_optimum(self.relative_sensitivities(n, parameters, length))
        later = [square_root_toeplitz(length - 1, unit_columns=True)] if length > 1 else []
        return block_diagonal(independent(1), *later)

    def _run_strategy(self, n: int, parameters: int) -> Strategy:
        """The strategy of the whole run, (T, T): block diagonal, one block per period; the last may be smaller."""
        total = self.windows.steps
        lengths = [min(self.period, total - start) for start in range(0, total, self.period)]
        return block_diagonal(*(as_bands(self.period_strategy(n, parameters, length)) for length in lengths))

    def noise_of_steps(self, public: Public, parameters: int) -> NDArray[np.float64]:
        """The standard deviation of the noise per coordinate of each step's gradient, (T,), for the longest steps."""
        total = self.windows.steps
        if self.noise_multiplier == 0.0 or not total:
            return np.zeros(total)
        first = public.relation.factor * self.clip / self.batches(public.n)[0]
        relative = self.relative_sensitivities(public.n, parameters, self.period)
        scales = prefix_noise(self.period_strategy(public.n, parameters, self.period), relative)
        return self.noise_multiplier * first * np.resize(scales, total)

    def noise_square(self, noise: NDArray[np.float64]) -> float:
        """The mean over the steps."""
        return float(np.mean(noise**2))

    def asked(self, n: int) -> float:
        """One gradient evaluation per unit and point, over n."""
        sizes = self.batches(n)
        return sum(size * (2 if t % self.period else 1) for t, size in enumerate(sizes)) / n
