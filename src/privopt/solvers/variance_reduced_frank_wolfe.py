"""Variance-reduced Frank-Wolfe: one pass over the units, along trees whose nodes reuse the gradients of their parents.

Minimises the population objective F(w) + ridge over an l1 ball, a simplex or a polytope, F convex and smooth.
Source: Asi, Feldman, Koren, Talwar 2021, Algorithm 3.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.best_vertex import BestVertex
from privopt.mechanisms.vertex_table import VertexTable
from privopt.planning import variance_reduced_frank_wolfe as planning
from privopt.planning import vertex_methods
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.vertex_slopes import VertexSlopeChanges, largest_entry
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults
from privopt.solvers.fields import derived
from privopt.solvers.vertex_solver import VertexSolver


@dataclass(frozen=True, kw_only=True)
class VarianceReducedFrankWolfe(VertexSolver):
    """Frank-Wolfe in one pass, with the mean gradients of binary trees.

    Attributes:
        vertices, penalty_bound, entry_bound: see `VertexSolver`.
        clip: C_inf, the largest entry of one unit's gradient, enforced by scaling the gradient; differences of level j
            are scaled to C_j, see `planning.variance_reduced_frank_wolfe`.
        trees: T; 0 returns the start and spends nothing.
        root_batch: b, the units that the root of each tree looks at; a right child of level j looks at ceil(b 2^-j).
    Guarantee:
        A unit is looked at once, by one node of level j of one tree t, and moves the scores of the 2^(t-j) choices at
        the leaves below it by a range of at most eta_t c C_j / k_j. Its price is the sum over those, the price of the
        run the largest of all nodes': `VertexTable` adds it up exactly, for any data, loss and parameters. The clips
        make the roots the dearest, and eta_t makes all trees cost the same: 2^t (eta_t c C / b)^2 / 8 = 1 / (2 z^2).
    Differs from the paper:
        draws from a softmax, priced by zCDP over the units' own paths, in place of Laplace noise, composition and
        amplification; differences are clipped by level, so that nothing rests on the smoothness of the loss.
    Source:
        Asi, Feldman, Koren, Talwar 2021, Algorithm 3.
    """

    name: ClassVar[str] = "variance-reduced-frank-wolfe"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    trees: int = derived(at_least=0, at_most=20)
    root_batch: int = derived(at_least=2)

    @property
    def rounds(self) -> int:
        """A choice a leaf: 2 + 4 + .. + 2^T."""
        return 2 ** (self.trees + 1) - 2

    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """What every look takes."""
        del public
        return tuple(look.size for look in self.looks())

    def looks(self) -> list[planning.Look]:
        """The looks at fresh units, in order; a choice follows each."""
        return planning.looks(self.trees, self.root_batch, self.clip)

    def stream(self, public: Public) -> StreamMechanism:
        """The choices at all leaves; the sums of the trees stay with the curator."""
        looks = self.looks()
        firsts = [index - look.leaf for index, look in enumerate(looks)]  # where a look's tree begins
        if self.noise_multiplier == 0:
            follows = tuple(
                -1 if look.before < 0 else first + look.before
                for first, look in zip(firsts, looks, strict=True)
            )
            return BestVertex(weights=(1.0,) * len(looks), follows=follows, draws=(1,) * len(looks))
        moved = [public.relation.factor * look.clip / look.size for look in looks]
        entry = [
            largest_entry(self.vertices, look.clip, self._offset_bound(look)) / step
            for look, step in zip(looks, moved, strict=True)
        ]
        rows: list[tuple[tuple[int, float], ...]] = []
        for first, look in zip(firsts, looks, strict=True):
            # A choice of tree t is 2 / 2^(t/2)-bounded range for the root's units, at z = 1.
            temperature = 2.0 / (math.sqrt(2.0**look.tree) * moved[first])
            rows.append(tuple((first + leaf, temperature * moved[first + leaf]) for leaf in look.chain))
        plain = VertexTable(
            weights=tuple(rows),
            draws=(1,) * len(looks),
            participation=VertexTable.one_item(len(looks)),
            largest_item=max(0.5, *entry),
        )
        return vertex_methods.priced(plain, self.noise_multiplier)

    def _offset_bound(self, look: planning.Look) -> float:
        """Of the penalty's gradient, or of its change."""
        return self.penalty_bound if look.level == 0 else 2.0 * self.penalty_bound

    def passes(self) -> float:
        """One in all."""
        return 0.0 if self.still else 1.0

    def filled(self, instance: Instance) -> "VarianceReducedFrankWolfe":
        """Every field but the noise.

        Raises:
            ValueError: there are too few units for the trees.
        """
        solver = super().filled(instance)
        planning.require_units(solver, instance.public)
        return solver

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 3: look, choose, move; depth first."""
        if self.still:
            return Outcome(start, Status.FINISHED)
        looks = self.looks()
        stream = curator.stream("chosen vertices", self.stream(curator.public), (self.vertices.count,))
        blocks = curator.blocks(self.block_sizes(curator.public))
        points: dict[int, Array] = {}  # of the current tree, where each look was taken
        params = start
        for look, block in zip(looks, blocks, strict=True):
            if look.level == 0:
                points, query = {}, self.slopes(problem, params)
            else:
                query = self.changes(problem, params, points[look.before], look)
            points[look.leaf] = params
            stream.ask("add", query, on=block)
            chosen = jnp.asarray(self.vertices.average(np.asarray(stream.ask("draw"))))
            params = params + look.share * (jnp.reshape(chosen, start.shape) - params)
        return Outcome(params, Status.FINISHED)

    def changes(
        self, problem: Problem, params: Array, anchor: Array, look: planning.Look
    ) -> VertexSlopeChanges:
        """How the slopes have changed since the parent's look."""
        penalty = problem.regulariser
        return VertexSlopeChanges(
            loss=problem.loss,
            at=params,
            anchor=anchor,
            vertices=self.vertices,
            clip=look.clip,
            offset=penalty.gradient(params) - penalty.gradient(anchor),
            offset_bound=self._offset_bound(look),
        )
