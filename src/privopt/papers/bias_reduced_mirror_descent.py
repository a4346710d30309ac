"""Mirror descent through drawn vertices, on gradients whose bias is reduced by more draws at random levels.

Solves min over x, max over y of a mean payoff on two polytopes. Never the default: see the class.
Source: Gonzalez, Guzman, Paquette 2024, Algorithms 2 and 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.games.base import GameSolver
from privopt.games.rounds import Weights, outcome_of, stream_findings, uniform_outcome
from privopt.later import jnp
from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.curves import zcdp_rho_budget
from privopt.ledger.events import Event, NoEvent, Parallel, sequence
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.averaging import FEWEST, balanced_sizes
from privopt.planning.plan import Finding
from privopt.planning.saddle import GAP, game_notices, trivial_gap
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.queries.payoffs import BiasReducedGradient
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number

# ---- The schedule, the defaults and the forecast of mirror descent with bias-reduced gradients -------------
# Levels N are drawn before the data are read, from P[N = k] = 2^-k / C_M for k = 0, ..., M, C_M = 2 - 2^-M. A step of
# level N draws 2^(N + 1) vertices a player, and one unit of its batch of B moves the later scores by a vector of range
# at most c 2 H_N / B, H_N = C_M 2^N C_d + L. With tau the inverse temperature, l = log d_x + log d_y and L2 how much
# entries of the gradient bend,
#
#     gap <= about l / (tau T) + tau C / 2 + 4 L2 / 2^M,    C a second moment of the gradients,
#
# which sets M, T and tau's cap by trying them out. Utility only: what a schedule costs is counted for that schedule.
#
# Source:
#     Gonzalez, Guzman, Paquette 2024, Theorem 3.14 (its levels, log2 U rounded down, and its stopping rule).
HIGHEST_LEVEL = 8  # that is tried
LEAST_EFFORT, MOST_EFFORT = 4.0, 2048.0
DIFFERENCE_CLIP = 0.3  # of the half-range: the best of those measured, for halves of both signs
_GRID = 2.0  # between efforts that are tried

NEVER_THE_BEST = (
    "in every measurement so far sampled dual averaging with 4 draws or more a step ended closer to the saddle point: "
    "use it unless the analysis at the hidden strategies is what you want."
)
TEMPERATURE_CAPPED = (
    "the plan costs epsilon {:.3g} of {:.3g}: colder draws than its steps can use would not help. An account pays for "
    "the plan only."
)


@dataclass(frozen=True)
class Schedule:
    """What a run does, drawn before data is read.

    Attributes:
        levels: N of every step.
        highest: M.
        sizes: units of the batch of every step but the last.
    """

    levels: tuple[int, ...]
    highest: int
    sizes: tuple[int, ...]

    @property
    def draws(self) -> tuple[int, ...]:
        """Vertices a player draws at each step."""
        return tuple(2 ** (level + 1) for level in self.levels)

    @property
    def steps(self) -> int:
        """T."""
        return len(self.levels)

    def gain(self, step: int) -> float:
        """C_M 2^N."""
        return mass(self.highest) * 2.0 ** self.levels[step]


def mass(highest: int) -> float:
    """C_M, the sum of 2^-k."""
    return 2.0 - 2.0**-highest


def draw_levels(effort: float, highest: int, seed: int) -> tuple[int, ...]:
    """Levels while the past ones' 2^N sum to at most U - 2^M, so that all of them sum to at most U.

    There are two of them or more if 2^M is at most half of U.
    """
    uniforms = np.random.default_rng([seed, highest]).random(math.floor(effort) + 1)
    levels = np.minimum(np.searchsorted(np.cumsum(_chances(highest)), uniforms, side="right"), highest)
    spent = np.concatenate(([0.0], np.cumsum(2.0**levels)))
    return tuple(levels[: int(np.sum(spent[:-1] <= effort - 2**highest))].tolist())


def _chances(highest: int) -> list[float]:
    return [2.0**-k / mass(highest) for k in range(highest + 1)]


def weights_of_batches(levels: Sequence[int], highest: int, difference_clip: float) -> list[float]:
    """H_N sqrt(later draws) of each step but the last: by how much its batch would cost, were it one unit."""
    later = np.cumsum([2.0 ** (level + 1) for level in reversed(levels)])[::-1]
    return [
        (mass(highest) * 2.0**level * difference_clip + 1.0) * math.sqrt(after)
        for level, after in zip(levels[:-1], later[1:].tolist(), strict=True)
    ]


@cache
def schedule(effort: float, highest: int, seed: int, difference_clip: float, n: int) -> Schedule:
    """The schedule of some fields on n units."""
    levels = draw_levels(effort, highest, seed)
    return Schedule(levels, highest, balanced_sizes(weights_of_batches(levels, highest, difference_clip), n))


def _curvature(game: Game) -> float:
    """The larger stated curvature over its half-range; 0 where both are taken as linear."""
    return max(player.curvature / player.half_range for player in game.players.values())


def _log_sizes(game: Game) -> float:
    return sum(math.log(player.vertices.count) for player in game.players.values())


@dataclass(frozen=True, kw_only=True)
class BiasReducedMirrorDescent(GameSolver):
    """Bias-reduced mirror descent: one pass over disjoint batches, a step of level N on 2^(N + 1) draws a player.

    The levels are drawn, from public randomness, before any data is read: the loop has a known length, every batch a
    known size, and the temperature is what this very schedule allows. Both players draw at the same inverse
    temperature in the unit of their half-ranges, so that each pays one half.

    Attributes:
        differences: of which gradients a step takes the scaled difference from that at the average of all draws:
            "both halves" of the draws, whose mean cancels what is linear in them, or "first half" as in the paper.
        difference_clip: C_d, to which a record's difference is clipped, in units of the player's half-range; 2 is never
            active if the half-range is right. Enforced.
        effort: U, at least 4; the 2^N of all steps sum to at most U.
        highest_level: M; the bias that is left is that of 2^(M + 1) draws a step.
        schedule_seed: of the levels; public, and any number protects the data as well as another.
        temperature: tau, the inverse temperature in units of one over the half-range.
    Guarantee:
        For every schedule, two streams of draws, each priced whole by `VertexSampler`, under the curator's relation,
        for any data and payoff. See `BiasReducedGradient` for the sensitivity.
    Differs from the paper:
        the schedule and its price are fixed beforehand, in place of an adaptive count; C_M multiplies the difference,
        as an unbiased estimate asks; y descends on -f; sensitivities hold what is computed, not (4 + 2^-N); batches
        are sized by what they reveal; the averages of the played vertices are the result, so that no further draw is
        needed; gradients and differences are centred and clipped.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithms 2 and 3, Theorem 3.14.
    """

    name: ClassVar[str] = "bias-reduced-mirror-descent"

    differences: Literal["both halves", "first half"] = choice("both halves")
    difference_clip: float = derived(above=0, below=math.inf)
    highest_level: int = derived(at_least=0, at_most=20)
    effort: float = derived(at_least=LEAST_EFFORT, below=math.inf)
    schedule_seed: int = number(0, at_least=0)
    temperature: float = derived(above=0, below=math.inf)

    def default_difference_clip(self, task: Task[Game]) -> float:
        """0.3, or less where stated curvatures ask for it; 2 without the second half, where it may be full."""
        known = _curvature(task.problem)
        measured = DIFFERENCE_CLIP if self.differences == "both halves" else 2.0
        return min(measured, known) if known > 0 else measured

    def default_highest_level(self, task: Task[Game]) -> int:
        """M of the smallest prediction; the paper's floor(log2 sqrt(U)) where the effort is given."""
        if self.is_set("effort"):
            return max(0, math.floor(0.5 * math.log2(self.effort)))
        return self._best(task)[1]

    def default_effort(self, task: Task[Game]) -> float:
        """U of the smallest prediction at this M."""
        return self._best(task)[0]

    def schedule(self, public: Public) -> Schedule:
        """What a run does on such units."""
        return schedule(
            float(self.effort),
            int(self.highest_level),
            int(self.schedule_seed),
            float(self.difference_clip),
            public.n,
        )

    def sampler(self, player: Player, public: Public) -> VertexSampler:
        """One player's draws of all steps; the last step's gradient is not used."""
        plan = self.schedule(public)
        items = plan.steps - 1
        largest = [
            (plan.gain(step) * self.difference_clip + 1.0) * player.half_range for step in range(items)
        ]
        ranges = [
            public.relation.factor * 2.0 * entry / size
            for entry, size in zip(largest, plan.sizes, strict=True)
        ]
        return VertexSampler(
            item_weights=tuple(ranges),
            temperatures=(self.temperature / player.half_range,) * plan.steps,
            draws=plan.draws,
            participation=VertexSampler.one_item(items),
            largest_item=max(entry / moved for entry, moved in zip(largest, ranges, strict=True)),
        )

    def choosing(self) -> list[Player]:
        """The players who have a choice."""
        return [player for player in self.players if player.vertices.count > 1]

    def event(self, public: Public) -> Event:
        """Both players' streams, charged when they open; the batches that feed them cost nothing of their own."""
        steps = self.schedule(public).steps
        if not self.choosing():
            return NoEvent()
        streams = [self.sampler(player, public).event() for player in self.choosing()]
        return sequence([*streams, Parallel((NoEvent(),) * (steps - 1))])

    def releases(self) -> int:
        """The opening of each player's stream, and the draws of each step."""
        levels = draw_levels(self.effort, self.highest_level, self.schedule_seed)
        return len(self.choosing()) * (len(levels) + 1)

    def passes(self) -> float:
        """One for each player."""
        return float(len(self.choosing()))

    def evaluations(self) -> float:
        """Gradients at three or four points in a pass."""
        return self.passes() * (4.0 if self.differences == "both halves" else 3.0)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with units enough for the batches."""
        return super().applicable(problem, public) or self.too_few_units(public.n)

    def filled(self, instance: Task[Game]) -> Self:
        """Every field but the temperature.

        Raises:
            ValueError: there are too few units for so many batches.
        """
        solver = super().filled(instance)
        solver.check_applicable(instance.problem, instance.public)
        return solver

    def calibrated(self, task: Task[Game]) -> Self:
        """The coldest draws that the budget allows, but no colder than the steps can use."""
        if self.is_set("temperature"):
            return self
        steps = self.schedule(task.public).steps
        coldest = self.cap(task.problem, steps)
        if not task.is_private or not self.choosing():
            return self.with_(temperature=coldest)
        noise = calibrate(
            lambda noise: self.with_(temperature=1.0 / noise).event(task.public),
            task.budget,
            task.public.relation,
        )
        return self.with_(temperature=min(coldest, 1.0 / noise))

    def forecast(self, instance: Task[Game]) -> Forecast:
        """The prediction in the unit of the payoffs, and what to note."""
        game, trivial = instance.problem, trivial_gap(instance.problem)
        largest = max(player.half_range for player in game.players.values())
        gap = largest * self.expected_gap(instance, self.effort, self.highest_level)
        notices = [NEVER_THE_BEST, *game_notices(instance, gap)]
        if instance.is_private:
            budget = instance.budget
            price = accounting.epsilon(
                self.event(instance.public), budget.delta, instance.public.relation, near=budget.epsilon
            )
            if price < 0.999 * budget.epsilon:
                notices.append(TEMPERATURE_CAPPED.format(price, budget.epsilon))
        return Forecast(
            excess=min(gap, trivial),
            meaning="by the form of the bound, for curvatures as they are stated; pessimistic",
            notices=tuple(notices),
            measure=GAP,
        )

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Algorithm 3 over the schedule: draw, average, and add the bias-reduced gradients to the hidden scores."""
        plan = self.schedule(curator.public)
        if not self.choosing():
            return uniform_outcome(game)
        streams: dict[Who, Stream] = {}
        found: dict[str, Finding] = {}
        for player in self.choosing():
            who, sampler = player.who, self.sampler(player, curator.public)
            found.update(stream_findings(who, sampler))
            streams[who] = curator.stream(f"vertices of {who}", sampler, (player.vertices.count,))
        batches = curator.blocks(plan.sizes)
        average: dict[Who, Weights] = {who: np.zeros(one.vertices.count) for who, one in game.players.items()}
        for t in range(plan.steps):
            drawn: dict[Who, NDArray[np.int64]] = {}
            for who, player in game.players.items():
                alone = who not in streams
                drawn[who] = np.zeros(1, np.int64) if alone else np.asarray(streams[who].ask("draw"))
                average[who] += (player.vertices.shares(drawn[who]) - average[who]) / (t + 1)
            if t < plan.steps - 1:
                x, y = self._points(game.x, drawn["x"]), self._points(game.y, drawn["y"])
                for who, stream in streams.items():
                    stream.ask("add", self._gradient(game, who, x, y, plan.gain(t)), on=batches[t])
        return outcome_of(game, average, found)

    def _points(self, player: Player, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """The average of all draws, the first of them, and the averages of the halves that are subtracted."""
        half = max(1, len(drawn) // 2)
        rows = [drawn, drawn[:1], drawn[:half], drawn[-half:]]
        if self.differences == "first half":
            rows = rows[:3]
        return np.stack([player.vertices.average(indices) for indices in rows])

    def _gradient(
        self, game: Game, who: Who, x: NDArray[np.float64], y: NDArray[np.float64], gain: float
    ) -> BiasReducedGradient:
        """Algorithm 2, of one player."""
        half_range = game.players[who].half_range
        return BiasReducedGradient(
            game=game,
            who=who,
            x=jnp.asarray(x),
            y=jnp.asarray(y),
            gain=gain,
            difference_clip=self.difference_clip * half_range,
            half_range=half_range,
        )

    def too_few_units(self, n: int) -> str | None:
        """Why there are too few units for the schedule, or None; None too where it is not set yet."""
        if not (self.is_set("effort") and self.is_set("highest_level")):
            return None if n >= 2 * FEWEST else f"{n} units are too few for two batches of {FEWEST}"
        if 2**self.highest_level > self.effort / 2:
            return (
                f"highest_level {self.highest_level} alone takes 2^{self.highest_level} of the effort "
                f"{self.effort:g}, so that hardly a step fits: raise the effort to {2 ** (self.highest_level + 1)}, or "
                "lower the level"
            )
        steps = len(draw_levels(float(self.effort), int(self.highest_level), int(self.schedule_seed)))
        if FEWEST * (steps - 1) <= n:
            return None
        return (
            f"its schedule has {steps:,} steps with a batch of fresh units each, and there are {n:,} units: lower the "
            f"effort to {max(LEAST_EFFORT, n / 4):g} or less"
        )

    def cap(self, game: Game, steps: int) -> float:
        """tau L that minimises l / (tau T) + tau C / 2."""
        log_sizes = _log_sizes(game)
        moment = self.second_moment(game, int(self.highest_level))
        return math.sqrt(2.0 * max(log_sizes, 0.5) / (max(steps, 1) * moment))

    def second_moment(self, game: Game, highest: int) -> float:
        """C over L^2: one, and that of the scaled difference, which clip or curvature bounds."""
        bend = _curvature(game) or 1.0
        clipped = mass(highest) * self.difference_clip**2 * (2.0 ** (highest + 1) - 1.0)
        smooth = (
            bend**2 if self.differences == "both halves" else bend**2 * (1.0 + highest * _log_sizes(game))
        )
        return 1.0 + min(clipped, smooth)

    def expected_gap(self, task: Task[Game], effort: float, highest: int) -> float:
        """The bound of the comment above, in units of the half-range; infinite where the schedule does not fit."""
        public = task.public
        trial = self.with_(effort=effort, highest_level=highest)
        if trial.too_few_units(public.n) is not None:
            return math.inf
        plan = trial.schedule(public)
        tau = min(trial.affordable(task, plan), trial.cap(task.problem, plan.steps))
        bend = _curvature(task.problem)
        return (
            _log_sizes(task.problem) / (tau * plan.steps)
            + tau * trial.second_moment(task.problem, highest) / 2.0
            + 4.0 * bend / 2.0**highest
        )

    def affordable(self, task: Task[Game], plan: Schedule) -> float:
        """tau L that the budget pays for, but for the rounding of scores."""
        if not task.is_private:
            return math.inf
        later = np.cumsum(plan.draws[::-1])[::-1][1:]
        moved = [
            2.0 * task.public.relation.factor * (plan.gain(t) * self.difference_clip + 1.0) / size
            for t, size in enumerate(plan.sizes)
        ]
        players = sum(player.vertices.count > 1 for player in task.problem.players.values())
        if task.budget.delta == 0:
            ranges = max(e * float(after) for e, after in zip(moved, later, strict=True))
            return task.budget.epsilon / (max(players, 1) * ranges)
        unit = max(e**2 * float(after) for e, after in zip(moved, later, strict=True)) / 8.0
        return math.sqrt(zcdp_rho_budget(task.budget.epsilon, task.budget.delta) / (max(players, 1) * unit))

    def _best(self, task: Task[Game]) -> tuple[float, int]:
        """The effort and level of the smallest prediction."""
        most = min(MOST_EFFORT, max(LEAST_EFFORT, task.public.n / 2.0))
        efforts = [LEAST_EFFORT]
        while efforts[-1] * _GRID <= most:
            efforts.append(efforts[-1] * _GRID)
        levels = [self.highest_level] if self.is_set("highest_level") else range(HIGHEST_LEVEL + 1)
        candidates = [(effort, int(level)) for effort in efforts for level in levels]
        return min(candidates, key=lambda one: self.expected_gap(task, *one))
