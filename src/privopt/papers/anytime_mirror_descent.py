"""Anytime mirror descent with lazily drawn vertices: one pass, and gradients at averages that are drawn now and then.

Minimises the population objective F(w) + ridge over an l1 ball, a simplex or a polytope, F convex and smooth.
Source: Gonzalez, Guzman, Paquette 2024, Algorithm 5.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.vertex_draws import BestVertex
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning import vertex_methods
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.task import Forecast, Instance, Task
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.scores import largest_entry
from privopt.result import Outcome, Status
from privopt.solvers.fields import choice, derived
from privopt.solvers.vertices import VertexSolver

# ---- Settings of anytime mirror descent by the theory of its paper -----------------------------------------
# With m vertices, l = log m, and half the largest slope L of a record along them:
#
#     smooth to the second order    T = n epsilon / (l sqrt(log 1/delta)), q = sqrt(T / l), K = T / q
#     smooth to the first order     T = (n epsilon)^(4/5) / (l log 1/delta)^(2/5), q = sqrt(T) / l, K = T / l
#     step                          tau = min(what privacy allows, sqrt(2 l / T) / L, 1 / (4 q L))
#
# T is cut to what fits and to a multiple of q, all are at least 1. Utility only.
#
# Source:
#     Gonzalez, Guzman, Paquette 2024, Theorem 4.2 and its proof.
MOST_STEPS = 2_000  # each is a look at a batch, however small
NOISELESS_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class AnytimeMirrorDescent(VertexSolver):
    """Algorithm 5 of the paper as it stands; measured, it is of no use, and `VertexAnytime` is what to take.

    Attributes:
        noise_multiplier: z, see `VertexSolver`. Derived, it is no smaller than the step of theory needs: then the plan
            costs less than the budget, and says so.
        vertices, penalty_bound, clip, entry_bound: see `VertexSolver`.
        smooth: the setting of theory: for losses with Lipschitz gradients ("first order") or Hessians.
        steps: T, each but the last with a batch of floor(n / (T - 1)) fresh units; 0 returns the start and spends
            nothing.
        interval: q; vertices are drawn at the first q steps, at every q-th and at the last.
        draws: K, the vertices drawn at such a step.
    Guarantee:
        One stream of draws from averages of softmaxes, each priced at the largest range of its parts (`VertexStream`),
        under the curator's relation, for any data, loss and parameters. With q a divisor of T, a unit of the first
        batch is in the scores of K (q + T / q - 2) draws, each of range 2 c tau L / B: one interval fewer than in the
        paper, since the last draw is the one that step T makes anyway, and the first has seen nothing.
    Differs from the paper:
        draws are priced by bounded range, by way of revealing which softmax each comes from (the paper's own step is
        wrong: softmaxes have different normalisers); exact counts; the batch of the last step is given to the others.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 5, Theorem 4.2 and Proposition 4.3.
    """

    name: ClassVar[str] = "anytime-mirror-descent"
    for_convex: ClassVar[str] = "its averages and its bound"

    smooth: Literal["first order", "second order"] = choice("second order")
    interval: int = derived(at_least=1)
    steps: int = derived(at_least=0)
    draws: int = derived(at_least=1)

    def default_interval(self, instance: Instance) -> int:
        """q."""
        steps = max(self.steps, 1) if self.is_set("steps") else self._paper_steps(instance)
        logarithm = vertex_methods.log_count(self.vertices.count)
        by_order = (
            math.sqrt(steps / logarithm) if self.smooth == "second order" else math.sqrt(steps) / logarithm
        )
        return max(1, round(by_order))

    def default_steps(self, instance: Instance) -> int:
        """T, a multiple of q: then the last draw is one that is made anyway."""
        steps = int(self._paper_steps(instance))
        return max(1, steps // self.interval) * self.interval if steps >= self.interval else steps

    def default_draws(self, instance: Instance) -> int:
        """K."""
        del instance
        logarithm = vertex_methods.log_count(self.vertices.count)
        by_order = self.interval if self.smooth == "second order" else logarithm
        return max(1, round(self.steps / by_order))

    @property
    def rounds(self) -> int:
        """T."""
        return self.steps

    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """A batch for each step but the last."""
        return (batch_size(public.n, self.steps),) * (self.steps - 1)

    def stream(self, public: Public) -> StreamMechanism:
        """The draws of all steps."""
        items, draws = self.steps - 1, schedule(self.steps, self.interval, self.draws)
        if self.noise_multiplier == 0:
            return BestVertex.of_sums((1.0,) * items, draws, mixture=True)
        moved = public.relation.factor * self.clip / batch_size(public.n, self.steps)
        entry = largest_entry(self.vertices, self.clip, self.penalty_bound)
        plain = VertexSampler(
            item_weights=(1.0,) * items,
            temperatures=(1.0,) * self.steps,
            draws=draws,
            participation=VertexSampler.one_item(items),
            largest_item=max(entry / moved, 0.5),
            mixture=True,
        )
        return vertex_methods.priced(plain, self.noise_multiplier)

    def passes(self) -> float:
        """One in all."""
        return 0.0 if self.still or self.steps == 1 else 1.0

    def filled(self, instance: Instance) -> "AnytimeMirrorDescent":
        """Every field but the noise.

        Raises:
            ValueError: there are too few units for so many batches.
        """
        solver = super().filled(instance)
        vertex_methods.require_units(instance.public, solver.steps - 1)
        return solver

    def calibrated(self, task: Task[Problem]) -> "AnytimeMirrorDescent":
        """The noise that the budget allows, or that of the longest step of theory where that is more."""
        solver = super().calibrated(task)
        if self.is_set("noise_multiplier") or not task.is_private:
            return solver
        least = solver._least_multiplier(task.public)
        return replace(solver, noise_multiplier=max(solver.noise_multiplier, least))

    def forecast(self, instance: Instance) -> Forecast:
        """log m / (tau T) + tau L^2 / 2 + 8 L1 R^2 / sqrt(K), and what to note."""
        public, notices = instance.public, (vertex_methods.WORSE_THAN_VERTEX_ANYTIME,)
        notices += vertex_methods.missing_bound(self, instance)
        if not instance.is_private:
            notices = (NOISE_IS_OFF,)
        gap = 8.0 * vertex_methods.curvature(self, instance) / math.sqrt(self.draws)
        if self.noise_multiplier > 0 and self.steps > 1 and self.vertices.count > 1:
            step, half = self.step_of(public, vertex_methods.spent(self)), vertex_methods.half_range(self)
            gap += half * (vertex_methods.log_count(self.vertices.count) / (step * self.steps) + 0.5 * step)
            if self.noise_multiplier <= self._least_multiplier(public) * (1.0 + 1e-9):
                notices += (
                    f"theory allows no step longer than {self.longest_by_theory():.3g} / L, which costs less than the "
                    "budget: what is left is not spent.",
                )
        return Forecast(
            excess=instance.capped(gap),
            meaning="terms of the theory on the mean; pessimistic",
            notices=notices,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 5."""
        if self.still:
            return Outcome(start, Status.FINISHED)
        stream = curator.stream("drawn averages", self.stream(curator.public), (self.vertices.count,))
        batches = curator.blocks(self.block_sizes(curator.public)) if self.steps > 1 else []
        params = start
        for t, draws in enumerate(schedule(self.steps, self.interval, self.draws)):
            drawn = np.asarray(stream.ask("draw"))
            if draws:  # lines 3 and 4; elsewhere the last average stays (line 6)
                params = jnp.reshape(jnp.asarray(self.point(drawn)), start.shape)
            if t < self.steps - 1:  # lines 8 and 9
                stream.ask("add", self.slopes(problem, params), on=batches[t])
        return Outcome(params, Status.FINISHED)

    def point(self, drawn: np.ndarray) -> np.ndarray:
        """The average of drawn vertices."""
        return self.vertices.average(drawn)

    def _paper_steps(self, instance: Instance) -> float:
        """T of the paper, before it is cut to what fits; at least 1."""
        budget, n = instance.budget, instance.public.n
        if not instance.is_private:
            return min(NOISELESS_STEPS, n // 2 + 1)
        chance = math.log(1.0 / budget.delta) if budget.delta > 0.0 else 2.0 * math.log(n)
        logarithm = vertex_methods.log_count(self.vertices.count)
        if self.smooth == "second order":
            steps = n * budget.epsilon / (logarithm * math.sqrt(chance))
        else:
            steps = (n * budget.epsilon) ** 0.8 / (logarithm * chance) ** 0.4
        return max(1.0, min(steps, MOST_STEPS, n // 2 + 1))

    def longest_by_theory(self) -> float:
        """What theory allows tau times L to be: min(sqrt(2 l / T), 1 / (4 q))."""
        logarithm = vertex_methods.log_count(self.vertices.count)
        return min(math.sqrt(2.0 * logarithm / max(self.steps, 1)), 0.25 / self.interval)

    def step_of(self, public: Public, rho: float) -> float:
        """tau times L, from what all draws cost: rho = N (2 c tau L / B)^2 / 8, N draws after the first look."""
        after = sum(schedule(self.steps, self.interval, self.draws)[1:])
        batch = batch_size(public.n, self.steps)
        return batch * math.sqrt(8.0 * rho / max(after, 1)) / (2.0 * public.relation.factor)

    def _least_multiplier(self, public: Public) -> float:
        """The noise multiplier at which the step is the longest that theory allows; 0 where no data are drawn."""
        if self.steps < 2 or self.vertices.count == 1:
            return 0.0
        return self.step_of(public, 0.5) / self.longest_by_theory()


def schedule(steps: int, interval: int, draws: int) -> tuple[int, ...]:
    """How many vertices each step draws: K at the first q, at every q-th, and at the last, whose average comes out."""
    return tuple(
        draws if t <= interval or t % interval == 0 or t == steps else 0 for t in range(1, steps + 1)
    )


def batch_size(n: int, steps: int) -> int:
    """The units of each step but the last, whose gradient is not used."""
    return n // max(steps - 1, 1)
