"""Stages for strongly convex problems: a convex method again and again, each time in a smaller ball.

Source: Feldman, Koren, Talwar 2020, Section 5.1; Lowy, Liu, Asi 2024, Remark 3.6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, Parallel, sequence
from privopt.planning import strongly_convex_stages as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.strongly_convex_stages import Stage
from privopt.problems.constraints import Unconstrained
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.gradient_descent import GradientDescent


@dataclass(frozen=True, kw_only=True)
class StronglyConvexStages(Solver):
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
    for_convex: ClassVar[str] = "the radii of its stages"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    inner: Solver = field(default_factory=GradientDescent)
    split: Literal["blocks", "allot"] = choice("blocks")
    distance: float = derived(above=0, below=math.inf)
    constant: float = number(2.0, above=0, below=math.inf)
    most_stages: int = number(3, at_least=1)
    fewest_units: int = number(100, at_least=2)
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    solvers: tuple[Solver, ...] = field(default=(), repr=False)

    def check(self) -> None:
        if self.is_set("noise_multiplier") and not self.solvers:
            raise ValueError(
                f"noise_multiplier of {self.name} is set by `configure`, got {self.noise_multiplier!r}: leave it open, "
                "or set that of `inner`."
            )

    @property
    def title(self) -> str:
        """What runs inside, and that it does so in stages."""
        return f"staged {self.inner.title}"

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    @property
    def makes(self) -> frozenset[str]:
        """Blocks, and what the inner solver makes of them."""
        return self.inner.makes | {"blocks"}

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
        return super().scaled(factor).with_(solvers=solvers)

    def filled(self, instance: Instance) -> Self:
        """The stages, and the inner solver's settings for each."""
        solver = super().filled(instance)
        if solver.stages:
            return solver
        found = tuple(planning.stages(solver, instance))
        inner = tuple(
            solver.inner.filled(planning.stage_instance(solver, instance, stage, len(found)))
            for stage in found
        )
        return solver.with_(stages=found, solvers=inner)

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open; calibrate the stages one by one, then all together."""
        if self.is_set("noise_multiplier"):
            return self
        solver = self.filled(instance)
        inner = tuple(
            one.configure(planning.stage_instance(solver, instance, stage, len(solver.stages)))
            for one, stage in zip(solver.solvers, solver.stages, strict=True)
        )
        split = solver.with_(solvers=inner, noise_multiplier=inner[0].noise_multiplier)
        if not instance.is_private or self.inner.is_set("noise_multiplier"):
            return split
        return split.scaled(
            calibrate(
                lambda z: split.scaled(z).event(instance.public), instance.budget, instance.public.relation
            )
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A ridge on every coordinate, no other penalty, no set, and an inner solver that takes a ball."""
        if not (problem.regulariser.is_smooth and problem.regulariser.strong_convexity > 0.0):
            return "its radii follow from strong convexity: give a ridge on every coordinate, and no other penalty"
        if not isinstance(problem.constraint, Unconstrained):
            return "the projection onto a ball within another set is not exact"
        centre = (0.0,) * math.prod(problem.parameter_shape(public))
        return self.inner.applicable(planning.within(problem, centre, 1.0), public)

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
            ball = planning.within(problem, centre, stage.radius)
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
