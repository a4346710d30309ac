"""Posterior descent: whitened descent for logistic regression whose ridge and step length follow what was released.

Every released gradient has noise of known size. So the transcript itself tells how much of it is signal: directions of
the mean gradient that are no longer than their noise get a ridge, which drifts, and the others are left alone. Steps
shrink at a pace set by how much noise one step puts into predictions. Both make the number of steps nearly irrelevant,
which otherwise has to be right for a signal that nobody knows beforehand.

Source:
    Ours; the parts are named in `planning.posterior_descent`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.planning import posterior_descent as planning
from privopt.planning.coordinates import Coordinates
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding
from privopt.planning.posterior_descent import Evidence, Frame
from privopt.problems.losses import Logistic
from privopt.problems.mapped_ridge import strongest
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults
from privopt.solvers.fields import derived, optional
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.guarded import guarded
from privopt.solvers.stepwise import StepwiseSolver


class PosteriorState(NamedTuple):
    """Where the descent stands, from its start and in the eigenbasis; every entry is a function of released values."""

    params: Float[Array, " d"]  # v_t
    at: Float[Array, " d"]  # u_t = v_t + b (v_t - v_{t-1}), where the next gradient is taken
    anchor: Float[Array, " d"]  # z_t, from which the ridge pulls no further
    average: Float[Array, " d"]  # weighted average of v
    gradient: Float[Array, " d"]  # weighted average of y, the released gradients with the penalty's
    point: Float[Array, " d"]  # the same average of u
    step: Float[Array, ""]  # t
    evidence: Evidence  # at the last step
    curvature: Float[Array, ""]  # c0 at the last step
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class PosteriorDescent(StepwiseSolver):
    """Private gradient descent inside `Whitening`, shrunk by the evidence of its own releases, with cooling steps.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing. 40 to 100 are about as good as the default of 60.
        clip: C, the largest norm of one unit's gradient; that of the coordinates.
        constant: the number of the column of ones, which tells the mean prediction; default the only column that the
            ridge leaves free, None for none.
        coordinates: where it runs, set by `Whitening`.
    Guarantee:
        T Gaussian releases of sensitivity factor * C / n with one multiplier fixed beforehand; points, ridge and step
        lengths are functions of earlier releases: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters.
    Source:
        See the module.
    """

    name: ClassVar[str] = "posterior-descent"
    preconditions: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    clip: float = derived(above=0)
    constant: int | None = optional(at_least=0)
    coordinates: Coordinates | None = field(default=None, repr=False)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Logistic regression of two classes."""
        if not isinstance(problem.loss, Logistic):
            return planning.refusal(problem)
        if self.constant is not None and self.constant >= public.d:
            return f"constant={self.constant!r} is no column of d = {public.d}: columns are counted from 0"
        return None

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The clip of other coordinates, and the spectrum that they follow from.

        Raises:
            ValueError: they follow from no second moment.
        """
        if coordinates.rows is None:
            raise ValueError(
                f"{self.title} needs coordinates that follow from a second moment of the rows, got coordinates "
                "without `rows`: use Whitening(inner=PosteriorDescent())."
            )
        return self.with_(clip=coordinates.clip, coordinates=coordinates)

    def filled(self, instance: Instance) -> Self:
        """Steps and the column of ones from public numbers.

        Raises:
            ValueError: it stands alone, or cannot solve the problem.
        """
        if self.coordinates is None:
            raise ValueError(
                f"{self.title} stands inside whitening, whose released second moment it needs: use "
                f'solver="{self.title}" or Whitening(inner=PosteriorDescent()).'
            )
        return super().filled(instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """T steps; without noise there is nothing to shrink or to cool, and plain descent runs in its place."""
        assert self.coordinates is not None
        assert self.coordinates.rows is not None
        if self.noise_multiplier == 0:
            plain = GradientDescent(steps=self.steps, returns="last", noise_multiplier=0.0)
            return plain.in_coordinates(self.coordinates).run(curator, problem, start)
        noise, public = Gaussian(self.noise_multiplier), curator.public
        frame = planning.frame(
            self.coordinates.rows,
            ridge=strongest(problem.regulariser),
            noise=noise.noise_multiplier * public.relation.factor * self.clip / public.n,
            constant=self.constant,
        )
        step = partial(_step, frame=frame, problem=problem, start=start, steps=float(self.steps))
        state = _initial(frame)
        for _ in range(self.steps):
            query = ClippedGradient(
                loss=problem.loss,
                at=start + frame.axes @ state.at,
                clip=self.clip,
                balanced=self.coordinates.balanced,
            )
            state = step(state, curator.release(query, noise))
        found = findings(state, frame) if self.steps else {}
        return Outcome(start + frame.axes @ state.average, ending(state.finite), findings=found)


def _initial(frame: Frame) -> PosteriorState:
    zero, none = jnp.zeros_like(frame.signal), jnp.zeros(len(frame.shapes))
    return PosteriorState(
        params=zero,
        at=zero,
        anchor=zero,
        average=zero,
        gradient=zero,
        point=zero,
        step=jnp.zeros(()),
        evidence=Evidence(gain=jnp.ones_like(zero), variances=none, weights=none),
        curvature=jnp.full((), 0.25),
        finite=jnp.asarray(True),
    )


@jax.jit
@guarded
def _step(
    state: PosteriorState, released: Array, *, frame: Frame, problem: Problem, start: Array, steps: float
) -> PosteriorState:
    """One step v = u - eta (y + rho (u - z)), its ridge and length from what was released so far."""
    at, count = state.at, state.step + 1.0
    there = start + frame.axes @ at
    y = frame.axes.T @ (released + problem.regulariser.gradient(there))
    ratio = 2.0 / (count + 1.0)  # weights t + 1
    gradient = state.gradient + ratio * (y - state.gradient)
    point = state.point + ratio * (at - state.point)
    variance = (
        frame.noise**2 * (4.0 * count + 2.0) / (3.0 * count * (count + 1.0))
    )  # sum (t+1)^2 over (sum t+1)^2
    found = planning.evidence(frame.curvature * point - gradient, variance, frame.curvature, frame.shapes)
    rho = planning.ridge_of(found.gain, variance, frame.curvature)
    curvature = planning.mean_curvature(frame.axes.T @ there, frame)
    length = planning.STEP_FACTOR * planning.cooling(count, curvature, frame.heat)
    params = at - length / (curvature + frame.stiffness + rho) * (y + rho * (at - state.anchor))
    late = 6.0 * count / ((count + 1.0) * (2.0 * count + 1.0))  # weights (t + 1)^2
    return PosteriorState(
        params=params,
        at=params + planning.MOMENTUM * (params - state.params),
        anchor=state.anchor + (params - state.anchor) / steps,
        average=state.average + late * (params - state.average),
        gradient=gradient,
        point=point,
        step=count,
        evidence=found,
        curvature=curvature,
        finite=state.finite,
    )


def findings(state: PosteriorState, frame: Frame) -> dict[str, Finding]:
    """What the releases showed about the signal. All of it is a function of them."""
    found = state.evidence
    return {
        "mean_gain": Finding(
            float(np.mean(found.gain)),
            "the share of what the gradients showed that was kept, over all directions: 1 where all of it is signal",
        ),
        "gain": Finding(
            np.asarray(found.gain), "the same in each direction, from the smallest released eigenvalue on"
        ),
        "tau": Finding(
            np.sqrt(found.variances),
            "how far the optimum is from the start in a direction, for priors that are alike in all directions, and "
            "like the released second moment to the power 1/2 and 1",
        ),
        "prior_weights": Finding(np.asarray(found.weights), "how likely each of these three priors is"),
        "heat": Finding(
            float(frame.heat), "what noise one step puts into predictions: 0 for steps that do not cool"
        ),
        "curvature": Finding(
            float(state.curvature),
            "the curvature of the mean loss that the last step went by, 1/4 at the start",
        ),
    }
