"""Posterior descent: whitened descent for logistic regression whose ridge and step length follow what was released.

Every released gradient has noise of known size. So the transcript itself tells how much of it is signal: directions of
the mean gradient that are no longer than their noise get a ridge, which drifts, and the others are left alone. Steps
shrink at a pace set by how much noise one step puts into predictions. Both make the number of steps nearly irrelevant,
which otherwise has to be right for a signal that nobody knows beforehand.

Source:
    Ours; the comment below names the parts.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.mechanisms.additive import Gaussian
from privopt.planning.coordinates import Coordinates, RowSpectrum
from privopt.planning.plan import Finding
from privopt.planning.task import Instance
from privopt.planning.whitening import NOISELESS_STEPS
from privopt.problems.losses import Logistic
from privopt.problems.problem import Problem
from privopt.problems.regularisers import strongest
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import derived, guarded, optional
from privopt.solvers.gradient_descent import GradientDescent

# ---- Whitened descent with posterior shrinkage: evidence, ridge, heat, cooling, curvature. Utility only ----
# All of it is in the eigenbasis of the released second moment, in which w = B v and the loss is logistic. With h the
# eigenvalues, f their floor, lam the ridge, s the noise of one released gradient, T steps:
#
#     signal          D_j = h_j / (h_j + f), at least 0.05: the second moment of the mapped rows
#     curvature       A_j = D_j / 4 + lam / (h_j + f)
#     evidence        b = A u - y, of weighted means of points u and released gradients y, is A v* + N(0, p) for a
#                     linear gradient, wherever the points were; p is known. See `evidence`
#     ridge           rho_j = min(A_j (1 / gain_j - 1), 3 sqrt(p), 2.5)
#     heat            H = min(10, 16 s^2 sum(D) / 0.05): what the noise of one step does to predictions
#     mean curvature  c0 = max(k sigma'(k m), 0.08), k = (1 + pi / 8 (sum D u^2 - m^2))^-1/2, m the mean prediction
#     step            1.25 cool / (c0 + lam max_j 1 / (h_j + f) + rho_j), cool = (1 + H (1/4) / c0 (t + 1) / 4)^-0.67
#
# The constants were chosen by the training excess of logistic regression on twelve tables at epsilon 0.1 to 3.
#
# Source:
#     Ours. The variance of a prior from data: empirical Bayes, Morris 1983. The mean of a sigmoid under a normal law:
#     MacKay 1992.
STEPS = 60
MOMENTUM, STEP_FACTOR = 0.6, 1.25
LEAST_SIGNAL = 0.05  # of D
EXPONENTS = (0.0, 0.5, 1.0)  # alpha: the prior's variance is like (h + f)^alpha
VARIANCES = np.geomspace(1e-4, 1e5, 46)  # tau^2
LEAST_GAIN, RIDGE_NOISES, LARGEST_RIDGE = 0.001, 3.0, 2.5
MOST_HEAT, HEAT_FACTOR = 10.0, 16.0 / 0.05
COOLING_STEPS, COOLING_POWER = 4.0, 0.67
LEAST_CURVATURE = 0.08
LARGEST_PREDICTION = 50.0


class Frame(NamedTuple):
    """What does not change during a run: the whitened problem in the eigenbasis of the released moment.

    Attributes:
        axes: U, from the eigenbasis to the coordinates of the run.
        signal: D.
        curvature: A.
        shapes: g, the variance of the prior over tau^2, one row for each exponent.
        constant: the mean prediction at v is `constant . v`.
        stiffness: `lam max_j u_j / (h_j + f)`, u_j what of axis j is penalised.
        noise: s.
        heat: H.
    """

    axes: Float[Array, "d d"]
    signal: Float[Array, " d"]
    curvature: Float[Array, " d"]
    shapes: Float[Array, "a d"]
    constant: Float[Array, " d"]
    stiffness: Float[Array, ""]
    noise: Float[Array, ""]
    heat: Float[Array, ""]


def frame_of(rows: RowSpectrum, *, ridge: float, noise: float, constant: int | None) -> Frame:
    """The frame of a released moment.

    Args:
        rows: the moment.
        ridge: lam, the largest strength of the ridge on w.
        noise: s, standard deviation of every entry of a released gradient.
        constant: the column of ones; None for none, whose mean prediction counts as 0.
    """
    signal = np.maximum(rows.damping, LEAST_SIGNAL)
    relative = rows.scale / np.exp(np.mean(np.log(rows.scale)))
    values = (
        rows.axes,
        signal,
        signal / 4.0 + rows.ridge(ridge),
        np.stack([relative**exponent for exponent in EXPONENTS]),
        rows.mean_prediction(constant),
        np.max(rows.ridge(ridge)),
        noise,
        heat(noise, signal),
    )
    return Frame(*(jnp.asarray(value, jnp.float64) for value in values))


def heat(noise: float, signal: NDArray[np.float64]) -> float:
    """H: the variance that one step of length 4 puts into a prediction, over 0.05 and at most 10."""
    return min(MOST_HEAT, HEAT_FACTOR * noise**2 * float(np.sum(signal)))


class Evidence(NamedTuple):
    """What the released gradients say about how much of them is signal.

    Attributes:
        gain: share of each direction of b that is signal, between `LEAST_GAIN` and 1.
        variances: tau^2 of each shape of prior.
        weights: of the shapes, which sum to 1.
    """

    gain: Float[Array, " d"]
    variances: Float[Array, " a"]
    weights: Float[Array, " a"]


def evidence(
    b: Float[Array, " d"], noise: Float[Array, ""], curvature: Float[Array, " d"], shapes: Float[Array, "a d"]
) -> Evidence:
    """Empirical Bayes for `b_j = A_j v*_j + N(0, p)` with `v*_j ~ N(0, tau^2 g_j)`.

    For each shape g the tau^2 of largest likelihood among `VARIANCES`; the shapes are weighted by that likelihood.

    Args:
        b: the observation.
        noise: p, the variance of its noise.
        curvature: A.
        shapes: g, one row for each shape.
    """
    signals = (
        curvature[None, None, :] ** 2 * jnp.asarray(VARIANCES, b.dtype)[None, :, None] * shapes[:, None, :]
    )
    expected = signals + noise
    likelihoods = -0.5 * jnp.sum(jnp.log(expected) + b[None, None, :] ** 2 / expected, axis=2)
    best = jnp.argmax(likelihoods, axis=1)
    weights = jax.nn.softmax(jnp.max(likelihoods, axis=1))
    chosen = jnp.take_along_axis(signals, best[:, None, None], axis=1)[:, 0]
    gain = jnp.sum(weights[:, None] * chosen / (chosen + noise), axis=0)
    return Evidence(jnp.maximum(gain, LEAST_GAIN), jnp.asarray(VARIANCES, b.dtype)[best], weights)


def ridge_of(gain: Float[Array, " d"], noise: Float[Array, ""], curvature: Float[Array, " d"]) -> Array:
    """rho: the ridge under which a quadratic of curvature A keeps the share `gain`, within bounds, (d,)."""
    most = jnp.minimum(RIDGE_NOISES * jnp.sqrt(noise), LARGEST_RIDGE)
    return jnp.minimum(curvature * (1.0 / gain - 1.0), most)


def mean_curvature(point: Float[Array, " d"], frame: Frame) -> Float[Array, ""]:
    """c0: the logistic density at the mean prediction, smoothed by the spread of predictions."""
    mean = jnp.dot(frame.constant, point)
    spread = jnp.maximum(jnp.sum(frame.signal * point**2) - mean**2, 0.0)
    flatter = (1.0 + math.pi / 8.0 * spread) ** -0.5
    at = jnp.clip(flatter * mean, -LARGEST_PREDICTION, LARGEST_PREDICTION)
    density = jax.nn.sigmoid(at) * jax.nn.sigmoid(-at)
    return jnp.maximum(flatter * density, LEAST_CURVATURE)


def cooling(steps: Array, curvature: Array, heat: Array) -> Array:
    """What is left of the step length after a number of steps."""
    return (1.0 + heat * 0.25 / curvature * steps / COOLING_STEPS) ** -COOLING_POWER


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

    clip: float = derived(above=0)
    constant: int | None = optional(at_least=0)
    coordinates: Coordinates | None = field(default=None, repr=False)

    def default_steps(self, instance: Instance) -> int:
        return STEPS if instance.is_private else NOISELESS_STEPS

    def default_constant(self, instance: Instance) -> int | None:
        del instance
        rows = None if self.coordinates is None else self.coordinates.rows
        return None if rows is None else rows.constant

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Logistic regression of two classes."""
        if not isinstance(problem.loss, Logistic):
            return (
                "its evidence and its steps follow the curvature of the logistic loss of two classes, and the loss is "
                f"{problem.loss.name}: take Whitening() with its own descent"
            )
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
        frame = frame_of(
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
    # Of the weighted mean: sum (t + 1)^2 over (sum t + 1)^2.
    variance = frame.noise**2 * (4.0 * count + 2.0) / (3.0 * count * (count + 1.0))
    found = evidence(frame.curvature * point - gradient, variance, frame.curvature, frame.shapes)
    rho = ridge_of(found.gain, variance, frame.curvature)
    curvature = mean_curvature(frame.axes.T @ there, frame)
    length = STEP_FACTOR * cooling(count, curvature, frame.heat)
    params = at - length / (curvature + frame.stiffness + rho) * (y + rho * (at - state.anchor))
    late = 6.0 * count / ((count + 1.0) * (2.0 * count + 1.0))  # weights (t + 1)^2
    return PosteriorState(
        params=params,
        at=params + MOMENTUM * (params - state.params),
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
