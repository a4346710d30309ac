"""Objective perturbation: one release, the minimiser of the objective with noise in its linear term.

    J(w) = sum_i phi_c(<a_i, w>, y_i) + n sum_j max(own_j, lam) w_j^2 / 2 + n r(w) + <b, w>,   b ~ N(0, sigma^2 I)

Source: Kifer, Smith, Thakurta 2012, Algorithm 1; Iyengar, Near, Song, Thakkar, Thakurta, Wang 2019, Algorithm 1
(approximate minima); Redberg, Koskela, Wang 2023 (privacy profile).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.mechanisms.objective_perturbation import objective_event
from privopt.planning import huberised
from privopt.planning import objective_perturbation as planning
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.perturbed_minimiser import PerturbedMinimiser
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Solver):
    """Objective perturbation with approximate minima, for convex generalised-linear losses.

    Attributes:
        clip: C, the largest norm of one record's gradient; by default the largest that the loss and the row bound
            allow, and the row bound for a loss without one.
        ridge_total: lam, the least ridge weight of the mean objective; coordinates with less get it.
        output_share: mu of the noise that hides the residual, over mu of the noise inside the objective.
        shift: c = ln(1 + beta / (n lam)); always derived, whatever is given.
        two_signed: whether a record's slope can have either sign; always derived.
    Guarantee:
        The minimiser satisfies `delta(eps) = GaussianDelta(mu, eps - c)` with mu = factor C / sigma for eps >= c (the
        folded curve for slopes of either sign) under the curator's relation, and it is released through a second
        Gaussian of 2 tau / (n lam), tau the certified residual: for any records, of losses, penalties and sets of this
        library. The running time depends on the data and is not protected.
    Differs from the paper:
        losses are Huberised instead of assumed Lipschitz; the noise is set from the exact profile instead of
        `sqrt(8 ln(2/delta) + 4 eps) C / eps`; slopes of one sign cost no more than one Gaussian release; the ridge is
        set by the noise instead of by `2 beta / eps`; the residual's noise gets the share of the budget that its size
        calls for.
    Source:
        Kifer, Smith, Thakurta 2012; Iyengar et al. 2019; Redberg, Koskela, Wang 2023.
    """

    name: ClassVar[str] = "objective-perturbation"
    for_convex: ClassVar[str] = "its privacy and its bound"
    preconditions: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    clip: float = derived(above=0)
    ridge_total: float = derived(at_least=0, below=math.inf)
    output_share: float = derived(above=0, below=math.inf)
    shift: float = derived(at_least=0)
    two_signed: bool = derived()

    def event(self, public: Public) -> Event:
        """One release: the noise inside the objective, and the one that hides the residual."""
        del public
        return objective_event(
            self.noise_multiplier, self.shift, two_signed=self.two_signed, output_share=self.output_share
        )

    def releases(self) -> int:
        return 1

    def passes(self) -> float:
        """A typical number of Newton steps, with two passes each; the true one depends on the data."""
        return huberised.TYPICAL_PASSES

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records, and formulas that the proof covers."""
        return huberised.obstacle(problem, public)

    def filled(self, instance: Instance) -> Self:
        """As for every solver; what the price rests on follows from the instance and is never taken over.

        Raises:
            ValueError: the problem is not covered, or the ridge is too small for the budget.
        """
        fresh = self.with_(shift=None, two_signed=None)
        return super(ObjectivePerturbation, fresh).filled(instance)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same event with the clip of v: shift and ridge are those of w."""
        return self.with_(clip=coordinates.clip)

    def query(self, problem: Problem, matrix: Array | None = None) -> PerturbedMinimiser:
        """What is released; `matrix` is B of the coordinates in which the noise is isotropic."""
        return PerturbedMinimiser(
            problem=problem, clip=float(self.clip), ridge=self.ridge_total, matrix=matrix
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """One release; the start does not matter."""
        del start
        return self._released(curator, self.query(problem))

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Noise that is isotropic in v, on the original rows and with the original ridge: `b = B^-T N(0, sigma^2 I)`.

        The determinant term stays what it is in w, so the event does not change.
        """
        del start
        inner = self.in_coordinates(coordinates)
        return self._released(curator, inner.query(problem, jnp.asarray(coordinates.matrix)))

    def _released(self, curator: Curator, query: PerturbedMinimiser) -> Outcome:
        mechanism = query.mechanism(self.noise_multiplier, curator.public, output_share=self.output_share)
        return Outcome(curator.release(query, mechanism), Status.FINISHED)
