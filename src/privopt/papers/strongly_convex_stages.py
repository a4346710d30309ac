"""Stages for strongly convex problems: a convex method again and again, each time in a smaller ball.

Source: Feldman, Koren, Talwar 2020, Section 5.1; Lowy, Liu, Asi 2024, Remark 3.6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.curves import part_of
from privopt.ledger.events import Event, Parallel, sequence
from privopt.planning import descent_theory
from privopt.planning.kl_theory import DISTANCE
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import CentredBall
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.front_end import FrontEnd
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.needs import Need, NoSet, StrongPenalty


# ---- Stages of a strongly convex problem: how many, on whom, and within which distance of the last answer --
# From within R_s of the optimum a convex method ends with an error of about E_s = c L R_s alpha(n_s),
#
#     alpha(n) = 1 / sqrt(n m) + sqrt(p) / (n sqrt(m) mu),
#
# and strong convexity turns that into the distance R_{s+1} = sqrt(2 E_s / lam). The logarithm of E_s over the fixed
# point E* = 2 c^2 L^2 alpha^2 / lam halves in every stage, so log2 log2 (E_0 / E*) of them are enough. Public constants
# only.
#
# Source: Feldman, Koren, Talwar 2020, Section 5.1; Lowy, Liu, Asi 2024, Remark 3.6.
@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage, from public numbers.

    Attributes:
        units: n_s, how many take part.
        radius: R_s, of the ball around the answer before it.
        error: E_s, what it is expected to leave.
    """

    units: int
    radius: float
    error: float


def within(problem: Problem, centre: tuple[float, ...], radius: float) -> Problem:
    """The problem in a ball around a public or released point."""
    return replace(problem, constraint=CentredBall(centre, radius))


def _alpha(instance: Instance, n: int, part: float) -> float:
    """alpha(n) for a part of the budget."""
    m = instance.public.typical_records
    noise = math.sqrt(instance.parameters) / (n * math.sqrt(m) * instance.mu * math.sqrt(part))
    return 1.0 / math.sqrt(n * m) + noise


def _steepness(instance: Instance) -> float:
    """L: what the formula of the loss says, or the clip that is used by default."""
    if math.isfinite(instance.gradient_bound):
        return instance.gradient_bound
    clip = descent_theory.default_clip(instance)
    return clip if math.isfinite(clip) else instance.public.row_bound


@dataclass(frozen=True, kw_only=True)
class StronglyConvexStages(FrontEnd):
    """Stages of a convex solver, each in a ball around the answer of the last; the radii are public.

    Attributes:
        inner: the solver of every stage; what is open in it is derived for each stage.
        split: "blocks", disjoint units of doubling numbers, each stage with the whole budget; or "allot", all units in
            every stage, each with an equal part.
        distance: R, a guess of the distance from the start to the optimum; the radius of the first ball.
        constant: c of the error that a stage is expected to leave, c L R_s alpha(n_s).
        most_stages: how many stages there are at most.
        fewest_units: of the first stage, with "blocks".
        stages: what each stage does, set by `configure`.
        solvers: the configured solver of each stage, set by `configure`.
        noise_multiplier: of the first stage, set by `configure`; it cannot be given.
    Guarantee:
        That of the stages: on disjoint units the dearest counts, on the same units they compose. The centre of a ball
        was released, its radius is public. Privacy does not rest on strong convexity.
    Differs from the paper:
        at most three stages; the inner method is any solver of the library; the radii follow from the predicted error
        with c = 2, not from its proved constant.
    Source:
        Feldman, Koren, Talwar 2020, Section 5.1; Lowy, Liu, Asi 2024, Remark 3.6.
    """

    name: ClassVar[str] = "strongly-convex-stages"
    title_of: ClassVar[str] = "staged {}"
    needs: ClassVar[tuple[Need, ...]] = (
        StrongPenalty(
            "its radii follow from strong convexity: give a ridge on every coordinate, and no other penalty"
        ),
        NoSet("the projection onto a ball within another set is not exact"),
    )
    for_convex: ClassVar[str] = "the radii of its stages"

    inner: Solver = field(default_factory=GradientDescent)
    split: Literal["blocks", "allot"] = choice("blocks")
    distance: float = derived(above=0, below=math.inf)
    constant: float = number(2.0, above=0, below=math.inf)
    most_stages: int = number(3, at_least=1)
    fewest_units: int = number(100, at_least=2)
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    solvers: tuple[Solver, ...] = field(default=(), repr=False)

    def default_distance(self, instance: Instance) -> float:
        """R: how far the optimum is guessed to be from the start."""
        return DISTANCE / instance.public.row_bound

    def check(self) -> None:
        if self.is_set("noise_multiplier") and not self.solvers:
            raise ValueError(
                f"noise_multiplier of {self.name} is set by `configure`, got {self.noise_multiplier!r}: leave it open, "
                "or set that of `inner`."
            )

    @property
    def makes(self) -> tuple[int, int]:
        """What the inner solver makes, of blocks."""
        blocks, maps = self.inner.makes
        return blocks + 1, maps

    def events(self, public: Public) -> tuple[Event, ...]:
        """What each stage releases."""
        return tuple(
            solver.event(self._public(public, stage))
            for solver, stage in zip(self.solvers, self.stages, strict=True)
        )

    def event(self, public: Public) -> Event:
        """All stages: beside one another on disjoint units, or one after the other."""
        events = self.events(public)
        return Parallel(events) if self._disjoint else sequence(events)

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        solvers = tuple(solver.scaled(factor) for solver in self.solvers)
        return self.with_(noise_multiplier=self.noise_multiplier * factor, solvers=solvers)

    def filled(self, instance: Instance) -> Self:
        """The stages, and the inner solver's settings for each."""
        solver = super().filled(instance)
        if solver.stages:
            return solver
        found = tuple(solver.planned_stages(instance))
        inner = tuple(
            solver.inner.filled(solver._stage_instance(instance, stage, len(found))) for stage in found
        )
        return solver.with_(stages=found, solvers=inner)

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open; calibrate the stages one by one, then all together."""
        if self.is_set("noise_multiplier"):
            return self
        solver = self.filled(instance)
        inner = tuple(
            one.configure(solver._stage_instance(instance, stage, len(solver.stages)))
            for one, stage in zip(solver.solvers, solver.stages, strict=True)
        )
        split = solver.with_(solvers=inner, noise_multiplier=inner[0].noise_multiplier)
        if not instance.is_private or self.inner.is_set("noise_multiplier"):
            return split
        return split.to_budget(instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A ridge on every coordinate, no other penalty, no set, and an inner solver that takes a ball."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        centre = (0.0,) * math.prod(problem.parameter_shape(public))
        return self.inner.applicable(within(problem, centre, 1.0), public)

    def releases(self) -> int:
        """Those of all stages."""
        return sum(solver.releases() for solver in self.solvers)

    def passes(self) -> float:
        """Over everybody: a stage on a block is a part of a pass."""
        everybody = sum(stage.units for stage in self.stages) if self._disjoint else self.stages[0].units
        return sum(
            solver.passes() * stage.units / everybody
            for solver, stage in zip(self.solvers, self.stages, strict=True)
        )

    def matrix_seconds(self, public: Public) -> float:
        """Those of all stages."""
        return sum(solver.matrix_seconds(public) for solver in self.solvers)

    def forecast(self, instance: Instance) -> Forecast:
        """The error that the recurrence ends with."""
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off")
        return Forecast(
            excess=instance.capped(self.stages[-1].error),
            meaning=f"by the rule of the radii, for an optimum within {self.distance:.3g} of the start",
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Each stage starts at the answer of the last, and stays within its radius."""
        outcome = Outcome(start, Status.FINISHED)
        for solver, stage, part in zip(self.solvers, self.stages, self._curators(curator), strict=True):
            centre = tuple(float(entry) for entry in np.ravel(np.asarray(outcome.params)))
            ball = within(problem, centre, stage.radius)
            outcome = solver.run(part, ball, outcome.params)
        return outcome

    def _curators(self, curator: Curator) -> Sequence[Curator]:
        """Of each stage."""
        if self._disjoint:
            return curator.blocks([stage.units for stage in self.stages])
        if len(self.stages) == 1:
            return [curator]
        events = self.events(curator.public)
        return [curator.allot(f"stage {s}", plan=event) for s, event in enumerate(events, 1)]

    @property
    def _disjoint(self) -> bool:
        return self.split == "blocks" and len(self.stages) > 1

    def _public(self, public: Public, stage: Stage) -> Public:
        return public.block(stage.units) if self._disjoint else public

    def planned_stages(self, instance: Instance) -> list[Stage]:
        """All of them: disjoint units of doubling numbers, or everybody each time."""
        n, lam = instance.public.n, instance.ridge
        count = self._stage_count(instance)
        disjoint = self.split == "blocks"
        sizes = [n * 2**s // (2**count - 1) for s in range(count)] if disjoint and count > 1 else [n] * count
        radius, found = self.distance, list[Stage]()
        for size in sizes:
            part = 1.0 if disjoint else 1.0 / count
            error = self.constant * _steepness(instance) * radius * _alpha(instance, size, part)
            found.append(Stage(units=size, radius=radius, error=error))
            radius = math.sqrt(2.0 * error / lam)
        return found

    def _stage_count(self, instance: Instance) -> int:
        """max(1, ceil(log2 log2 max(E_0 / E*, 4))), at most `most_stages`, and so that the first has enough units."""
        lam = instance.ridge
        fixed = (
            2.0 * (self.constant * _steepness(instance) * _alpha(instance, instance.public.n, 1.0)) ** 2 / lam
        )
        first = 0.5 * lam * self.distance**2
        ratio = first / fixed if fixed > 0.0 else math.inf
        wanted = math.ceil(math.log2(math.log2(max(min(ratio, 1e300), 4.0)))) if ratio > 0.0 else 1
        count = max(1, min(wanted, self.most_stages))
        if self.split == "blocks":
            while count > 1 and instance.public.n // (2**count - 1) < self.fewest_units:
                count -= 1
        return count

    def _stage_instance(self, instance: Instance, stage: Stage, count: int) -> Instance:
        """What the inner solver of a stage plans for; the ball's centre is not known yet."""
        centre = (0.0,) * instance.parameters
        budget, public = instance.budget, instance.public
        if count > 1 and self.split == "blocks":
            public = public.block(stage.units)
        elif count > 1 and instance.is_private:
            budget = part_of(budget, 1.0 / count)
        return Instance(within(instance.problem, centre, stage.radius), public, budget)
