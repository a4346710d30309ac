"""Anytime mirror descent with lazily drawn vertices: one pass, and gradients at averages that are drawn now and then.

Minimises the population objective F(w) + ridge over an l1 ball, a simplex or a polytope, F convex and smooth.
Source: Gonzalez, Guzman, Paquette 2024, Algorithm 5.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.best_vertex import BestVertex
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import anytime_mirror_descent as planning
from privopt.planning import vertex_methods
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.task import Task
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.vertex_slopes import largest_entry
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived
from privopt.solvers.vertex_solver import VertexSolver


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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    smooth: Literal["first order", "second order"] = choice("second order")
    interval: int = derived(at_least=1)
    steps: int = derived(at_least=0)
    draws: int = derived(at_least=1)

    @property
    def rounds(self) -> int:
        """T."""
        return self.steps

    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """A batch for each step but the last."""
        return (planning.batch_size(public.n, self.steps),) * (self.steps - 1)

    def stream(self, public: Public) -> StreamMechanism:
        """The draws of all steps."""
        items, draws = self.steps - 1, planning.schedule(self.steps, self.interval, self.draws)
        if self.noise_multiplier == 0:
            return BestVertex.of_sums((1.0,) * items, draws, mixture=True)
        moved = public.relation.factor * self.clip / planning.batch_size(public.n, self.steps)
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
        least = planning.least_multiplier(solver, task.public)
        return replace(solver, noise_multiplier=max(solver.noise_multiplier, least))

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 5."""
        if self.still:
            return Outcome(start, Status.FINISHED)
        stream = curator.stream("drawn averages", self.stream(curator.public), (self.vertices.count,))
        batches = curator.blocks(self.block_sizes(curator.public)) if self.steps > 1 else []
        params = start
        for t, draws in enumerate(planning.schedule(self.steps, self.interval, self.draws)):
            drawn = np.asarray(stream.ask("draw"))
            if draws:  # lines 3 and 4; elsewhere the last average stays (line 6)
                params = jnp.reshape(jnp.asarray(self.point(drawn)), start.shape)
            if t < self.steps - 1:  # lines 8 and 9
                stream.ask("add", self.slopes(problem, params), on=batches[t])
        return Outcome(params, Status.FINISHED)

    def point(self, drawn: np.ndarray) -> np.ndarray:
        """The average of drawn vertices."""
        return self.vertices.average(drawn)
