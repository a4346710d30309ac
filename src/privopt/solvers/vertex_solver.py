"""What minimisers share that see the data through drawn vertices: one stream of draws, fed from blocks of the units."""

import abc
import math
from dataclasses import dataclass, replace
from typing import Self

from jaxtyping import Array

from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, Parallel, SelectionsEvent, Sequence
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.planning import descent_defaults, mirror_geometry, vertex_methods
from privopt.planning.instance import Instance
from privopt.planning.task import Task
from privopt.problems.problem import Problem
from privopt.problems.vertices import Vertices
from privopt.public import Public
from privopt.queries.vertex_slopes import VertexSlopes
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, optional


@dataclass(frozen=True, kw_only=True)
class VertexSolver(Solver):
    """A minimiser over a polytope whose only releases are vertices drawn from one hidden state.

    Attributes:
        noise_multiplier: z; all draws together cost the zCDP of one Gaussian release of noise multiplier z,
            rho = 1 / (2 z^2). 0 takes the best vertex in place of a draw.
        vertices: of the constraint set.
        penalty_bound: the largest entry of the penalty's gradient in the set; what is larger is cut.
        clip: C_inf, the largest entry of one unit's gradient, enforced by scaling the gradient.
        entry_bound: public bound on the entries of a feature row, from which the clip is derived; default the row
            bound. Smaller is better, and a wrong one costs utility, never privacy.
    """

    vertices: Vertices = derived()
    penalty_bound: float = derived(at_least=0)
    clip: float = derived(above=0)
    entry_bound: float | None = optional(above=0, below=math.inf)

    def default_vertices(self, instance: Instance) -> Vertices:
        """Those of the constraint set."""
        return vertex_methods.polytope(instance.problem, instance.public)

    def default_penalty_bound(self, instance: Instance) -> float:
        """The largest entry of a smooth penalty's gradient in the set, points having entries up to `largest`."""
        return instance.penalty_smoothness * self.vertices.largest

    def default_clip(self, instance: Instance) -> float:
        """C: half the loss's largest slope, or a guess, times the largest entry of a row; infinite without noise."""
        if not instance.is_private:
            return math.inf
        entries = mirror_geometry.largest_entry(instance, self.entry_bound)
        lipschitz = math.inf if instance.has_own_loss else instance.problem.loss.lipschitz
        return min(descent_defaults.guess(instance).slope, vertex_methods.SLOPE_SHARE * lipschitz) * entries

    @property
    @abc.abstractmethod
    def rounds(self) -> int:
        """How often vertices are drawn."""

    @abc.abstractmethod
    def stream(self, public: Public) -> StreamMechanism:
        """The draws of the whole run; asked where there is something to draw."""

    @abc.abstractmethod
    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """The sizes of the disjoint blocks of units that are looked at, in order; none where all units are."""

    @property
    def still(self) -> bool:
        """Whether there is nothing to draw: the result is the start, which of one vertex is that vertex."""
        return self.rounds == 0 or self.vertices.count == 1

    def event(self, public: Public) -> Event:
        """The stream, charged when it opens; the blocks that feed it cost nothing of their own."""
        if self.still:
            return NoEvent()
        stream, blocks = self.stream(public).event(), (NoEvent(),) * len(self.block_sizes(public))
        return Sequence((stream, Parallel(blocks))) if blocks else stream

    def releases(self) -> int:
        """The opening of the stream, and every draw from it."""
        return 0 if self.still else self.rounds + 1

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A set with vertices, and a smooth penalty."""
        return vertex_methods.obstacle(problem, public, self.vertices)

    def calibrated(self, task: Task[Problem]) -> Self:
        """The filled solver with the noise that the budget allows.

        What all draws cost is known in closed form but for rounding, so the stream is priced twice, not at every try.
        """
        if self.is_set("noise_multiplier") or not task.is_private or self.still:
            return super().calibrated(task)
        budget, relation = task.budget, task.public.relation
        once = replace(self, noise_multiplier=1.0)
        stream = once.stream(task.public)
        if not isinstance(stream, VertexStream) or stream.rho() == 0.0:
            return once  # nothing is drawn from data
        rho, pure = stream.rho(), stream.pure_epsilon()
        found = calibrate(lambda z: SelectionsEvent(rho / z**2, pure / z), budget, relation)
        solver = replace(self, noise_multiplier=float(found))
        price = accounting.epsilon(solver.event(task.public), budget.delta, relation, near=budget.epsilon)
        return solver if price <= budget.epsilon else super().calibrated(task)

    def slopes(self, problem: Problem, params: Array, *, balanced: bool = False) -> VertexSlopes:
        """The slopes along the vertices at a point."""
        return VertexSlopes(
            loss=problem.loss,
            at=params,
            vertices=self.vertices,
            clip=self.clip,
            offset=problem.regulariser.gradient(params),
            offset_bound=self.penalty_bound,
            balanced=balanced,
        )
