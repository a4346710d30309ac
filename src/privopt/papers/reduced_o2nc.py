"""What the two variance-reduced O2NC methods share: the queries of a step, their defaults, and the run.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth: a released gradient at the start of every period of steps,
and released changes of it between.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2 to 5, and the first-order analogue that they leave out.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Float, jax, jnp
from privopt.planning import descent_theory
from privopt.planning.averaging import MOST_DIRECTIONS, two_point_values
from privopt.planning.goldstein_bounds import with_method_bounds
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.ball import haar_block, moved_share
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import GLMLoss
from privopt.problems.losses import Loss, RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference
from privopt.queries.smoothed import (
    JitteredGradient,
    LuneDifference,
    SmoothedDifference,
    SmoothedGradient,
    TranslatedDifference,
)
from privopt.queries.values import PlacedValueDifference, PlacedValueGradient, ValueDifference, ValueGradient
from privopt.result import Outcome, ending
from privopt.solvers.online_to_nonconvex import (
    FAINT,
    PROVED_STEP_FACTOR,
    STEP_FACTOR,
    WindowedSolver,
    result,
    take_penalised_step,
)

# ---- What is asked for at a point and of the change between two, and how long that can be ------------------
#     kind         at a point                       of the change from z' to z, r = |z - z'|     at most
#     plain        gradient                         difference of gradients                      min(H r, 2 C)
#     exact        gradient averaged over a ball    difference of such                           min(H r, 2 C p(r))
#     lune         gradient at a point of the ball  p(r) times that at a pair of points          2 C p(r)
#     translate    likewise                         difference at m common random shifts         min(H r, 2 C)
#     values       two-point values along lines     their difference along the same lines        min(H r, 2 C)
#
# with C the clip of one unit's gradient, H one in gradient units per parameter unit, p(r) the share of a ball of the
# smoothing radius that lies outside of one moved by r. All of these lengths are clips: none is assumed of the loss.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Algorithms 3 to 5; clips, lunes and the closed smoothing are ours.

Estimate = Literal["plain", "exact", "lune", "translate", "values"]
SMOOTHED_SLOPE = 0.3  # H over sqrt(p) C / smoothing: unit differences are far shorter than the worst case
VALUE_SMOOTHING = 0.1  # in scales of a black box


def length_of_change(
    kind: Estimate, distance: float, *, clip: float, slope_clip: float, smoothing: float, parameters: int
) -> float:
    """The largest norm of one unit's change; 0 at distance 0."""
    if distance == 0.0:
        return 0.0
    if kind in ("exact", "lune"):
        by_share = 2.0 * clip * float(moved_share(distance, smoothing, parameters))
        return by_share if kind == "lune" else min(by_share, slope_clip * distance)
    return min(slope_clip * distance, 2.0 * clip)


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What to ask for; see the table above.

    Attributes:
        kind: of the estimate.
        loss: of one record.
        smoothing: radius of the ball over which it is averaged.
        clip: C.
        slope_clip: H.
        draws: m, shifts of one unit.
        key: public randomness of the directions; None where there are none.
        placed: whether estimates from values are released in parameters, not along the directions.
    """

    kind: Estimate
    loss: Any
    smoothing: float
    clip: float
    slope_clip: float
    draws: int
    key: Array | None = None
    placed: bool = False

    @classmethod
    def of(cls, solver: "ReducedO2NC", loss: Any, curator: Curator, *, placed: bool) -> "Estimates":
        """Those of a configured solver; the curator draws what is random and public."""
        key = None
        if solver.estimate == "values":
            key = jax.random.key(curator.public_seed("directions"))
        return cls(
            kind=solver.estimate,
            loss=loss,
            smoothing=solver.smoothing,
            clip=solver.clip,
            slope_clip=solver.slope_clip,
            draws=solver.draws,
            key=key,
            placed=placed,
        )

    def gradient(self, at: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the gradient."""
        match self.kind:
            case "plain":
                return ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            case "exact":
                return SmoothedGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case "lune" | "translate":
                return JitteredGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case "values":
                return (PlacedValueGradient if self.placed else ValueGradient)(
                    loss=self.loss,
                    at=at,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    clip=self.clip,
                )

    def change(self, at: Float[Array, " *shape"], before: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for how the gradient changes from `before` to `at`."""
        places: dict[str, Any] = {"loss": self.loss, "at": at, "anchor": before}
        match self.kind:
            case "plain":
                return ClippedGradientDifference(
                    **places, slope_clip=self.slope_clip, gradient_clip=self.clip
                )
            case "exact":
                return SmoothedDifference(
                    **places, smoothing=self.smoothing, clip=self.clip, slope_clip=self.slope_clip
                )
            case "lune":
                return LuneDifference(**places, smoothing=self.smoothing, clip=self.clip)
            case "translate":
                return TranslatedDifference(
                    **places,
                    smoothing=self.smoothing,
                    clip=self.clip,
                    slope_clip=self.slope_clip,
                    draws=self.draws,
                )
            case "values":
                distance = float(jnp.sqrt(jnp.sum((at - before) ** 2)))
                slope = min(self.slope_clip, 2.0 * self.clip / distance) if distance > 0 else self.slope_clip
                return (PlacedValueDifference if self.placed else ValueDifference)(
                    **places,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    slope_clip=slope,
                )

    def read(self, query: MeanQuery, released: Array) -> Float[Array, " *shape"]:
        """The gradient, or its change, from what was released."""
        if isinstance(query, ValueGradient | ValueDifference) and not self.placed:
            return query.gradient(released)
        return released

    def _directions(self, parameters: int, turn: int) -> Float[Array, "k p"]:
        """The public orthonormal rows of step `turn`, the same at both points of a change."""
        assert self.key is not None
        return haar_block(jax.random.fold_in(self.key, turn), number_of_directions(parameters), parameters)


def number_of_directions(parameters: int) -> int:
    """k, of one estimate from values."""
    return min(parameters, MOST_DIRECTIONS)


class ReducedO2NC(WindowedSolver):
    """O2NC whose gradients may be a released gradient and released changes of it. Subclasses declare the fields."""

    faint_advice: ClassVar[str]  # where the noise of a window is far longer than the clip

    period: int
    estimate: Estimate
    smoothing: float
    slope_clip: float
    draws: int

    def default_smoothing(self, instance: Instance) -> float:
        """The radius of the ball, parameter units: a share of the distance, or a tenth of the scales of a black box."""
        if isinstance(instance.problem.loss, BlackBox):
            return VALUE_SMOOTHING
        return self.smoothing_share * self.distance

    def default_clip(self, instance: Instance) -> float:
        """C: what descent takes; of a black box no more than its range over the ball allows along one direction."""
        usual, loss = descent_theory.default_clip(instance), instance.problem.loss
        if isinstance(loss, BlackBox) and instance.is_private:
            return min(usual, (loss.high - loss.low) / (2.0 * self.smoothing))
        return usual

    def default_typical(self, instance: Instance) -> float:
        return self.usual_gradient(instance)

    def default_estimate(self, instance: Instance) -> Estimate:
        """Closed smoothing for losses of one prediction, values for those that have no gradient, else common shifts."""
        loss = instance.problem.loss
        if isinstance(loss, GLMLoss):
            return "exact" if loss.outputs == 1 else "translate"
        return "translate" if isinstance(loss, RecordLoss) else "values"

    def default_slope_clip(self, instance: Instance) -> float:
        """H: the curvature of the loss for plain gradients, none for closed smoothing, else 0.3 sqrt(p) C / smoothing.

        Raises:
            ValueError: the loss's curvature is not known.
        """
        if self.estimate in ("exact", "lune"):
            return math.inf
        if self.estimate != "plain":
            return SMOOTHED_SLOPE * math.sqrt(instance.parameters) * self.clip / self.smoothing
        curvature = instance.problem.loss_smoothness(instance.public)
        if math.isinf(curvature) and not math.isinf(self.clip):
            raise ValueError(
                f"the {instance.problem.loss.name} loss has no known curvature, which bounds how far its gradient "
                "moves: give `slope_clip`, or another `estimate`, which smooths the loss."
            )
        return curvature

    @property
    @abc.abstractmethod
    def smoothing_share(self) -> float:
        """The radius of the ball over the distance R."""

    def estimate_obstacle(self, loss: Loss) -> str | None:
        """Why a loss has no such estimates, or None if it has."""
        kind = self.estimate
        if kind == "exact" and not (isinstance(loss, GLMLoss) and loss.outputs == 1):
            return (
                f"the {loss.name} loss has no closed average over a ball: use estimate='lune' or 'translate'"
            )
        if self.is_set("estimate") and kind != "values" and not isinstance(loss, GLMLoss | RecordLoss):
            return f"the {loss.name} is known by its values only: use estimate='values'"
        return None

    def forecast(self, instance: Instance) -> Forecast:
        """The theorems' bounds on the gradient, and notices; no prediction of the excess."""
        meaning = "the method says where the loss is flat, not how far the result is from a minimum"
        found: tuple[str, ...] = ()
        k, p = number_of_directions(instance.parameters), instance.parameters
        if self.estimate == "values" and k < p:
            found += (
                f"values are taken along {k} random directions a step of {p} parameters: steps are noisier than with "
                "all of them.",
            )
        if not instance.is_private:
            return Forecast(meaning=meaning, notices=(NOISE_IS_OFF, *found))
        noise = self.noise_of_steps(instance.public, p)
        squares = p * float(np.mean(noise**2)) if len(noise) else 0.0
        if squares > FAINT * self.clip**2 * self.window:
            found += (f"the noise of a window of steps is more than ten times the clip: {self.faint_advice}",)
        return with_method_bounds(
            Forecast(meaning=meaning, notices=(*large_delta(instance), *found, *self.own_notices())),
            instance,
            clip=self.clip,
            radius=self.radius,
            distance=self.distance,
            values=self.estimate == "values",
        )

    @abc.abstractmethod
    def own_notices(self) -> tuple[str, ...]:
        """What else a plan says."""

    @abc.abstractmethod
    def noise_of_steps(self, public: Public, parameters: int) -> NDArray[np.float64]:
        """The standard deviation of the noise per coordinate of each step's gradient, (T,), for the longest steps."""

    @abc.abstractmethod
    def noise_square(self, noise: NDArray[np.float64]) -> Any:
        """The variance per coordinate that the step sizes allow for, from `noise_of_steps`."""

    @abc.abstractmethod
    def asked(self, n: int) -> float:
        """The number of gradient evaluations in a run: one per unit and point, in units of n."""

    @abc.abstractmethod
    def gradients(
        self, curator: Curator, estimates: Estimates, start: Array
    ) -> Callable[[MeanQuery, int], Array]:
        """The function of a query and of the step t - 1 that releases the step's gradient."""

    def length_of_change(self, distance: float, parameters: int, clip: float) -> float:
        """The largest norm of one unit's change over a distance, for a clipping norm of its gradient."""
        return length_of_change(
            self.estimate,
            distance,
            clip=clip,
            slope_clip=self.slope_clip,
            smoothing=self.smoothing,
            parameters=parameters,
        )

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Two per direction, record and point, for estimates from values; 0 for the others."""
        if self.estimate != "values" or not self.windows.steps:
            return 0.0
        directions = number_of_directions(int(np.prod(problem.parameter_shape(public))))
        return two_point_values(public, directions, self.asked(public.n))

    def estimates(self, curator: Curator, problem: Problem) -> Estimates:
        """The queries of the steps, and how their answers are read as gradients."""
        return Estimates.of(self, problem.loss, curator, placed=False)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2 with the oracle of Algorithms 3 to 5."""
        steps = self.windows.steps
        if not steps:
            return Outcome(start, ending(jnp.asarray(True)))
        drawn = self.public_numbers(curator)
        estimates = self.estimates(curator, problem)
        noise, factor = self.noise_of_steps(curator.public, start.size), STEP_FACTOR
        if self.mode == "guarantee":
            factor = PROVED_STEP_FACTOR
        norm = np.sqrt(self.typical**2 + start.size * self.noise_square(noise))
        state = self.opened(start, self.step_sizes(factor, norm), drawn)
        released = self.gradients(curator, estimates, start)
        for turn in range(steps):  # turn: t - 1
            opens = turn % self.period == 0
            query = (
                estimates.gradient(state.at, turn)
                if opens
                else estimates.change(state.at, state.before, turn)
            )
            state = take_penalised_step(state, released(query, turn), problem)
        return Outcome(result(state, flattest=self.returns == "best"), ending(state.finite))
