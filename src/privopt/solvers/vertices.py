"""Vertex-anytime: mirror descent over the vertices of a polytope that sees the data through drawn vertices only.

Minimises F(w) + ridge over an l1 ball, a simplex or a polytope, F = (1/n) sum_i f(w, xi_i) convex and smooth. Gradients
are taken at the running average of the vertices that were drawn, which is also the result: nothing else comes out.
Source: Gonzalez, Guzman, Paquette 2024, Algorithm 5, of which little is left.
"""

import abc
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, Parallel, SelectionsEvent, Sequence
from privopt.mechanisms.base import StreamMechanism
from privopt.mechanisms.vertex_draws import BestVertex
from privopt.mechanisms.vertex_stream import VertexSampler, VertexStream
from privopt.planning import descent_theory, mirror_geometry, vertex_methods
from privopt.planning.averaging import balanced_sizes
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound
from privopt.planning.task import Forecast, Instance, Task
from privopt.problems.problem import Problem
from privopt.problems.vertices import Vertices
from privopt.public import Public
from privopt.queries.scores import VertexSlopes, largest_entry
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, optional

# ------------------------------------------------------------------------------------------------------------
# What minimisers share that see the data through drawn vertices: one stream of draws, fed from blocks of
# the units.


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
        return min(descent_theory.guess(instance).slope, vertex_methods.SLOPE_SHARE * lipschitz) * entries

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


# ------------------------------------------------------------------------------------------------------------
# Vertex-anytime: mirror descent over the vertices of a polytope that sees the data through drawn vertices
# only.


# ---- Defaults and forecast of vertex-anytime ---------------------------------------------------------------
# Steps come from the preset of Frank-Wolfe, T_FW of `vertex_methods`: twice as many with all units at every step,
# between 10 and 60 in one pass. The bound is Theorem B of `VertexAnytime` with its regret worked out. It takes
# every gradient for as harmful as it can be, and temperatures are higher than would make it least, so that it seldom
# says more than the start does; what is predicted is what was typical. Utility only.
FEWEST_OF_ONE_PASS, MOST_OF_ONE_PASS = 10, 60
# Of a step. On generated signs and randhie's parities, epsilon 0.5 to 3, with all units and in one pass, 4 were better
# than 1 in 10 of 12 cells and little worse in two; 8 and 16 were no better on the whole.
DRAWS = 4
TYPICAL, TYPICAL_OF_ONE_PASS = 0.06, 0.1  # see `vertex_methods.typical`
REGRET = 1.42  # of the second term, for every T; its limit is 4/3


def batch_sizes(n: int, steps: int) -> tuple[int, ...]:
    """The units of each step but the last, whose gradient is not used: what makes all batches cost about the same."""
    return balanced_sizes(need(steps), n)


def need(steps: int) -> list[float]:
    """sqrt(U2_r) of each item r: what one of its units moves all later scores by, were the batch one unit.

    U2_r = sum over t > r of (sqrt(t) w_r / W_{t-1})^2, with w_r = r + 1 and W_{t-1} = t (t + 1) / 2.
    """
    moved = [4.0 / (t * (t + 1.0) ** 2) for t in range(1, steps)]
    return [(r + 1.0) * math.sqrt(math.fsum(moved[r:])) for r in range(steps - 1)]


@dataclass(frozen=True, kw_only=True)
class VertexAnytime(VertexSolver):
    """Vertex-anytime over an l1 ball, a simplex or a polytope; with fresh units at every step, the best of one pass.

    Attributes:
        vertices, penalty_bound, clip, entry_bound: see `VertexSolver`.
        single_pass: whether each step looks at fresh units, T - 1 disjoint batches of them, in place of all.
        balanced: shorten gradients without regard to the target, see `VertexSlopes`: better where most labels are of
            one kind, worse where features are many and independent.
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run forgets the start, and 1 draws a
            vertex without a look at the data.
        draws: K, the vertices drawn at each step, whose average is moved towards.
    Guarantee:
        (T - 1) K draws from one hidden state, each of bounded range; one stream, priced whole by `VertexSampler`, under
        the curator's relation, for any data, loss and parameters. See `SlopesAlong` for the sensitivity.
        Utility (Theorem B): let F be convex over the weights x on the m vertices, its gradients of half-range at most
        L and |grad F(x) - grad F(y)|_inf <= L1 |x - y|_1. With all units, no gradient clipped and beta_t = s sqrt(t),
        for the mean over the draws,
        `E F(w^T) - F* <= log m / (s sqrt T) + 1.42 s L^2 / sqrt T + 16 L1 / (K T)`.
        Proof. Let x^t be the softmax of step t = 1 .. T, v^t the average of its draws, w_t = t, W_t = w_1 + .. + w_t,
        w^t = (w_1 v^1 + .. + w_t v^t) / W_t and g^t = grad F(w^t). Since w_t v^t = W_t w^t - W_{t-1} w^{t-1}, for all u
        w_t <g^t, v^t - u> = W_{t-1} <g^t, w^t - w^{t-1}> + w_t <g^t, w^t - u>
        >= W_{t-1} (F(w^t) - F(w^{t-1})) + w_t (F(w^t) - F(u)), and the sum over t is W_T (F(w^T) - F(u)).
        (i) sum_t w_t <g^t, x^t - u> is the regret of following the regularised leader with learning rates
        eta_t = beta / W, which never rise: at most log m / eta_T + sum_t eta_t w_t^2 L^2 / 2, of which W_T leaves the
        first two terms. (ii) Given the past, v^t = (a_1 + .. + a_K) / K is exchangeable, so
        E <g^t, v^t - x^t> = E <g^t, a_1 - x^t>. Draw a_1 once more, independently: w^t moves by at most
        (w_t / W_t) 2 / K in l1, and the gradient g' there is independent of a_1, so that E <g', a_1 - x^t> = 0. Hence
        E <g^t, a_1 - x^t> = E <g^t - g', a_1 - x^t> <= L1 (w_t / W_t) (2 / K) 2, and the weighted mean of w_t / W_t is
        at most 4 / (T + 1). No bias of the gradient enters: it is taken where the result is.
        In one pass the same holds of the population's objective, with what a batch adds to a gradient.
    Differs from the paper:
        gradients at the average of the vertices that were drawn, in place of draws from an average; growing weights and
        temperatures; all units at every step, or batches sized by what they reveal; bounded range; clipped gradients.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 5 and Theorem 4.2; Cutkosky 2019 (anytime online-to-batch).
    """

    name: ClassVar[str] = "vertex-anytime"
    for_convex: ClassVar[str] = "its averages and its bound"

    single_pass: bool = False
    balanced: bool = False
    steps: int = derived(at_least=0)
    draws: int = derived(at_least=1)

    def default_steps(self, instance: Instance) -> int:
        """T: 2 T_FW, or T_FW between 10 and 60 and no more than there are blocks of two units."""
        fit = instance.public.n // 2 + 1
        if not instance.is_private:
            return min(MOST_OF_ONE_PASS, fit) if self.single_pass else mirror_geometry.NOISELESS_STEPS
        steps = vertex_methods.frank_wolfe_steps(instance, self.vertices.count)
        if not self.single_pass:
            return 2 * steps
        return min(max(steps, FEWEST_OF_ONE_PASS), MOST_OF_ONE_PASS, fit)

    def default_draws(self, instance: Instance) -> int:
        """K: 4, or 1 without noise and for a pure epsilon, which every draw takes its part of."""
        return DRAWS if instance.is_private and instance.budget.delta > 0.0 else 1

    @property
    def rounds(self) -> int:
        """T."""
        return self.steps

    def block_sizes(self, public: Public) -> tuple[int, ...]:
        """In one pass a batch for each step but the last."""
        return batch_sizes(public.n, self.steps) if self.single_pass else ()

    def stream(self, public: Public) -> StreamMechanism:
        """The draws of all steps; the last step's gradient is not used."""
        items = self.steps - 1
        weights = tuple(t + 1.0 for t in range(items))
        if self.noise_multiplier == 0:
            return BestVertex.of_sums(weights, (self.draws,) * self.steps)
        sizes = self.block_sizes(public)
        plain = VertexSampler.weighted_average(
            step_weights=weights,
            inverse_temperatures=[math.sqrt(t) for t in range(self.steps)],
            draws=self.draws,
            half_range=largest_entry(self.vertices, self.clip, self.penalty_bound),
            sensitivities=[
                public.relation.factor * self.clip / size for size in sizes or (public.n,) * items
            ],
            participation=VertexSampler.one_item(items) if sizes else None,
        )
        return vertex_methods.priced(plain, self.noise_multiplier)

    def passes(self) -> float:
        """One a step but the last, or one in all."""
        looked = 0 if self.still else self.steps - 1
        return float(min(looked, 1) if self.single_pass else looked)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A set with vertices, and a smooth penalty."""
        return vertex_methods.obstacle(problem, public, self.vertices, balanced=self.balanced)

    def filled(self, instance: Instance) -> "VertexAnytime":
        """Every field but the noise.

        Raises:
            ValueError: there are too few units for so many batches.
        """
        solver = super().filled(instance)
        vertex_methods.require_units(instance.public, solver.steps - 1 if solver.single_pass else 0)
        return solver

    def forecast(self, instance: Instance) -> Forecast:
        """What is typical, the bound where it says anything, and what to note."""
        notices = vertex_methods.missing_bound(self, instance)
        if self.steps == 1:
            notices += ("one step draws a vertex before any data was looked at: give it 10 steps or more.",)
        bound = self.expected_gap(instance, vertex_methods.spent(self), self.draws)
        if not instance.is_private or self.noise_multiplier == 0 or self.still or self.steps == 1:
            notices += () if instance.is_private else (NOISE_IS_OFF,)
            return Forecast(
                excess=instance.capped(bound),
                meaning="what Frank-Wolfe leaves after so many steps; pessimistic",
                notices=notices,
            )
        usual = TYPICAL_OF_ONE_PASS if self.single_pass else TYPICAL
        return Forecast(
            excess=instance.capped(vertex_methods.typical(self, instance, usual)),
            meaning=vertex_methods.TYPICAL_MEANING,
            bound=self._stated(instance, bound),
            notices=notices,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Draw, average what was drawn, and add the gradient there to the hidden scores."""
        if self.still:
            return Outcome(start, Status.FINISHED)
        stream = curator.stream("drawn vertices", self.stream(curator.public), (self.vertices.count,))
        batches = self.block_sizes(curator.public)
        sources = curator.blocks(batches) if batches else [curator] * (self.steps - 1)
        params = jnp.zeros(start.shape, jnp.float64)
        for t in range(self.steps):
            drawn = self.vertices.average(np.asarray(stream.ask("draw")))
            share = 2.0 / (t + 2.0)  # w_t / W_t, with weights t + 1
            params = params + share * (jnp.reshape(jnp.asarray(drawn), start.shape) - params)
            if t < self.steps - 1:
                slopes = self.slopes(problem, params, balanced=self.balanced)
                stream.ask("add", slopes, on=sources[t])
        return Outcome(params, Status.FINISHED)

    def _inverse_temperature(self, instance: Instance, rho: float, draws: int) -> float:
        """s of beta_t = s sqrt(t), in one over the unit of slopes.

        Args:
            instance: what is public.
            rho: what all draws may cost.
            draws: K.
        """
        public, steps = instance.public, self.steps
        moved = 2.0 * public.relation.factor * vertex_methods.half_range(self) / public.n
        spread = math.fsum(need(steps)) if self.single_pass else math.sqrt(steps * (steps - 1) / 2.0)
        return math.sqrt(8.0 * rho / draws) / (moved * spread)

    def expected_gap(self, instance: Instance, rho: float, draws: int) -> float:
        """log m / (s sqrt T) + 1.42 s L^2 / sqrt T + 16 L1 R^2 / (K T), L the half-range: Theorem B; see there."""
        rough = 16.0 * vertex_methods.curvature(self, instance) / (draws * max(self.steps, 1))
        if self.steps < 2 or math.isinf(rho):
            return rough
        s = self._inverse_temperature(instance, rho, draws)
        regret = vertex_methods.log_count(self.vertices.count) / s
        regret += REGRET * s * vertex_methods.half_range(self) ** 2
        return regret / math.sqrt(self.steps) + rough

    def _stated(self, instance: Instance, mean: float) -> Bound | None:
        """What Markov's inequality makes of Theorem B, where it is below what the start leaves."""
        if self.single_pass or not 2.0 * mean < (instance.loss_at_zero or 0.0):
            return None
        return Bound(
            value=2.0 * mean,
            probability=0.5,
            condition="the loss is convex and no gradient is longer than the clip",
        )
