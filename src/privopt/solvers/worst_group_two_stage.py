"""The worst group in many columns: Frank-Wolfe against weights selects a few columns, descent then moves along them.

Solves min over ||w||_1 <= R, max over y, of sum_g y_g F_g(w); see `GroupedLoss`.
Source: Talwar, Thakurta, Zhang 2015 (the selections); the second stage and the split are ours.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger.curves import part_of
from privopt.ledger.events import Event, Repeated, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance, Task
from privopt.problems.constraints import Box, Constraint, L1Ball, Product
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.public import Public
from privopt.queries.groups import GroupedVertexScores
from privopt.result import Outcome
from privopt.solvers import worst_group_descent
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.group_weights import GroupPlayer
from privopt.solvers.worst_group_descent import WorstGroupDescent, released_shares

# ---- Defaults and forecast of the two stages for the worst group on an l1 ball. Utility only ---------------
# Chosen on generated records (n = 20000, d = 600, epsilon 1): 20 selections, gradients balanced within 1.5 times the
# steepest slope times the largest entry, 60 % of the budget for the selections and the weights beside them, then
# descent on the columns that were selected.
SELECTION_STEPS, NOISELESS_STEPS = 20, 60
SELECTION_SHARE = 0.6


def ball_of(constraint: Constraint) -> tuple[L1Ball, int | None] | None:
    """The l1 ball, and how many of the first columns it holds (None for all); None for other sets."""
    if isinstance(constraint, L1Ball):
        return constraint, None
    if isinstance(constraint, Product) and len(constraint.parts) == 2:
        (first, size), (second, _) = constraint.parts
        if isinstance(first, L1Ball) and isinstance(second, Box):
            return first, size
    return None


def restricted(constraint: Constraint, selected: int, kept: int) -> Constraint:
    """The set of `kept` columns, of which the first `selected` are of the ball."""
    if isinstance(constraint, Product) and selected < kept:
        (ball, _), (box, _) = constraint.parts
        return Product(((ball, selected), (box, kept - selected)))
    found = ball_of(constraint)
    assert found is not None
    return found[0]


def _slope(instance: Instance) -> float:
    slope = worst_group_descent.grouped(instance.problem).lipschitz
    return slope if math.isfinite(slope) else 1.0


@dataclass(frozen=True, kw_only=True)
class WorstGroupTwoStage(Solver):
    """Private Frank-Wolfe on the weighted loss selects columns; `WorstGroupDescent` then starts from zero on them.

    Attributes:
        noise_multiplier: z of the first stage: its releases together cost rho = 1 / (2 z^2).
        inner: the second stage; its settings are derived where left open.
        selection_steps: T_1, choices of a column and its sign; at least 1.
        selection_share: share of mu^2 for the first stage.
        group_share: share of the first stage's part for the losses of the groups.
        shares_share: share of the first stage's part for the groups' shares, where they are not public.
        clip: C_inf, the largest entry of one unit's weighted gradient in the first stage.
        entry_bound: public bound on the entries of a row, from which the clips are derived; utility only.
        ascent: of the weights, see `WorstGroupDescent`.
    Guarantee:
        T_1 choices of bounded range, T_1 Gaussian releases of group losses, then the releases of `inner`:
        (epsilon, delta)-DP by the best accountant for their composition, under the curator's relation, for any data,
        labels and groups.
    Source:
        See the module.
    """

    name: ClassVar[str] = "worst-group-two-stage"
    for_convex: ClassVar[str] = "the weights of its groups"

    inner: WorstGroupDescent = field(default_factory=WorstGroupDescent)
    selection_steps: int = derived(at_least=1)
    selection_share: float = number(SELECTION_SHARE, above=0, below=1)
    group_share: float = derived(at_least=0, below=1)
    shares_share: float = derived(at_least=0, below=1)
    clip: float = derived(above=0)
    entry_bound: float = derived(above=0, below=math.inf)
    ascent: float = number(1.0, above=0, below=math.inf)

    def default_selection_steps(self, instance: Instance) -> int:
        """How many columns are selected; some more than once."""
        return SELECTION_STEPS if instance.is_private else NOISELESS_STEPS

    def default_entry_bound(self, instance: Instance) -> float:
        """The largest entry of rows that fill their ball, R / sqrt(d); a guess where the rows are others."""
        return instance.public.row_bound / math.sqrt(instance.public.d)

    def default_clip(self, instance: Instance) -> float:
        """C_inf: 1.5 times the steepest slope times the largest entry; infinite with the noise off."""
        if not instance.is_private:
            return math.inf
        return worst_group_descent.CLIP_SHARE * _slope(instance) * self.entry_bound

    def default_group_share(self, instance: Instance) -> float:
        return worst_group_descent.share_of_groups(instance.problem)

    def default_shares_share(self, instance: Instance) -> float:
        return worst_group_descent.share_of_shares(instance.problem)

    @property
    def weighs_groups(self) -> bool:
        return True

    @property
    def choice_share(self) -> float:
        """What the choices get of the first stage's part."""
        return 1.0 - ((self.group_share or 0.0) + (self.shares_share or 0.0))

    def check(self) -> None:
        """The shares of the first stage leave something for the choices."""
        if not self.choice_share > 0:
            raise ValueError(
                f"group_share and shares_share must sum to less than 1, got {1.0 - self.choice_share:g}: the rest of "
                "the first stage's part is for the choices of columns."
            )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """An l1 ball, perhaps with an intercept beside it, and no penalty."""
        found = worst_group_descent.group_obstacle(problem, public)
        if found is not None:
            return found
        if ball_of(problem.constraint) is None:
            return "its first stage moves between vertices of an l1 ball: use L1Ball(radius), or Product with a box"
        if not isinstance(problem.regulariser, NoRegulariser):
            return "there is a penalty beside the l1 ball"
        return None

    def forecast(self, instance: Instance) -> Forecast:
        """The notices of the second stage."""
        if not instance.is_private:
            return Forecast(meaning="no formula for the worst group", notices=(NOISE_IS_OFF,))
        return Forecast(
            meaning="no formula for the worst group",
            notices=large_delta(instance) + self.inner.notices(instance),
        )

    def filled(self, instance: Instance) -> Self:
        """The defaults of both stages; of the second, for as many columns as can be selected."""
        solver = super().filled(instance)
        inner = solver.inner
        if not inner.is_set("shares_share"):
            inner = inner.with_(shares_share=0.0)  # the first stage has released them
        return solver.with_(inner=inner.filled(solver.inner_instance(instance)))

    def calibrated(self, task: Task[Problem]) -> Self:
        """Both stages' noise in the ratio of their shares, scaled together to the budget."""
        if self.is_set("noise_multiplier"):
            return self
        if not task.is_private:
            return self.with_(noise_multiplier=0.0, inner=self.inner.with_(noise_multiplier=0.0))
        split = self.with_(
            noise_multiplier=1.0 / math.sqrt(self.selection_share),
            inner=self.inner.with_(noise_multiplier=1.0 / math.sqrt(1.0 - self.selection_share)),
        )
        return split.to_budget(task)

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(inner=self.inner.scaled(factor))

    def player(self) -> GroupPlayer | None:
        """Who weights the groups in the first stage."""
        if not self.group_share:
            return None
        return GroupPlayer(
            steps=self.selection_steps,
            noise_multiplier=self.noise_multiplier / math.sqrt(self.group_share),
            ascent=self.ascent,
        )

    def mechanism(self) -> ExponentialMechanism:
        """Of each choice: its bounded range is 2 / z for the Gaussian of multiplier z that costs as much."""
        z = self.noise_multiplier * math.sqrt(self.selection_steps / self.choice_share)
        return ExponentialMechanism(2.0 / z if z > 0 else math.inf)

    def event(self, public: Public) -> Event:
        """Shares, choices, losses, and the second stage."""
        player = self.player()
        return sequence(
            [
                *([self._histogram().event()] if self.shares_share else []),
                Repeated(self.mechanism().event(), self.selection_steps),
                *([] if player is None else [player.event(public)]),
                self.inner.event(public),
            ]
        )

    def releases(self) -> int:
        """Of both stages."""
        player = self.player()
        first = self.selection_steps + (self.shares_share > 0) + (0 if player is None else player.releases())
        return first + self.inner.releases()

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Select, then descend from zero on what was selected."""
        loss = worst_group_descent.grouped(problem)
        shares = released_shares(curator, loss, self._histogram() if self.shares_share else None)
        kept, selected = self._selected(curator, problem, loss, shares, start)
        matrix = np.zeros((curator.public.d, len(kept)))
        matrix[kept, np.arange(len(kept))] = 1.0
        curator.announce("selected columns")
        view = curator.view(matrix, min(curator.public.row_bound, self._longest(len(kept))))
        posed = Problem(loss, constraint=restricted(problem.constraint, selected, len(kept)))
        # The clip was planned for the most columns that there can be.
        share = math.sqrt(len(kept) / min(self.selection_steps + 1, curator.public.d))
        inner = self.inner.with_(clip=self.inner.clip * share)
        outcome = inner.run_with(view, posed, jnp.zeros(len(kept)), shares)
        return outcome._replace(params=jnp.asarray(matrix) @ outcome.params)

    def _selected(
        self, curator: Curator, problem: Problem, loss: GroupedLoss, shares: NDArray[np.float64], start: Array
    ) -> tuple[NDArray[np.int64], int]:
        """The columns of the second stage, and how many of them are of the ball."""
        found = ball_of(problem.constraint)
        assert found is not None
        radius, size = found[0].radius, found[1] or curator.public.d
        divisors, player = loss.divisors(shares), self.player()
        play = None if player is None else player.open(curator, loss, shares)
        params, chosen = np.zeros(curator.public.d), set[int]()
        for t in range(self.selection_steps):
            weights = shares if play is None else play.weights()
            scores = GroupedVertexScores(
                loss=loss,
                at=jnp.asarray(params),
                weights=jnp.asarray(weights / divisors),
                clip=self.clip,
                columns=size,
            )
            vertex = int(curator.release(scores, self.mechanism()).reshape(-1)[0])
            if play is not None:
                play.see(jnp.asarray(params))
            params = (1.0 - 2.0 / (t + 2.0)) * params
            params[vertex % size] += 2.0 / (t + 2.0) * radius * (1.0 if vertex < size else -1.0)
            chosen.add(vertex % size)
        beside = range(size, curator.public.d)
        return np.asarray([*sorted(chosen), *beside], np.int64), len(chosen)

    def _longest(self, kept: int) -> float:
        """A bound on the length of so many entries of a row; longer ones are shortened."""
        return self.entry_bound * math.sqrt(kept) * (1.0 + 1e-6)

    def _histogram(self) -> Gaussian:
        return Gaussian(self.noise_multiplier / math.sqrt(self.shares_share))

    def inner_instance(self, instance: Instance) -> Instance:
        """What the second stage plans for: as many columns as were selected at most, and its share of the budget."""
        width = min(self.selection_steps + 1, instance.public.d)
        constraint = restricted(instance.problem.constraint, width, width)
        bound = self.entry_bound * math.sqrt(width)
        return Instance(
            replace(instance.problem, constraint=constraint),
            replace(instance.public, d=width, row_bound=bound, sparse=False, row_entries=None),
            part_of(instance.budget, 1.0 - self.selection_share),
        )
