"""The weights of all cells that fit released answers best: accelerated mirror descent."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.synthesis.marginal_map import AnswerMap

Vector = NDArray[np.float64]
_MOST_DOUBLINGS = 60
_SHRINK = 0.1  # of the curvature, a step
_ROUNDING = 1e-14


class Misfit(abc.ABC):
    """A convex function of the answers: how badly they agree with what was released."""

    @abc.abstractmethod
    def value_and_gradient(self, answers: Vector) -> tuple[float, Vector]:
        """The misfit at these answers, and its gradient in them."""


@dataclass(frozen=True, eq=False)
class LeastSquares(Misfit):
    """sum_j precision_j (answer_j - target_j)^2 / 2.

    Attributes:
        targets: (m,) released answers; anything where the precision is 0.
        precisions: (m,) relative precisions, 0 for an answer that was not measured.
    """

    targets: Vector
    precisions: Vector

    def value_and_gradient(self, answers: Vector) -> tuple[float, Vector]:
        """The weighted sum of squares and its gradient."""
        residuals = answers - self.targets
        slopes = self.precisions * residuals
        return float(slopes @ residuals) / 2, slopes


@dataclass(frozen=True, eq=False)
class Draws:
    """Signed queries drawn in one round from softmax(beta (+-(answers - base))).

    Attributes:
        base: (m,) the model's answers at the time.
        beta: the inverse temperature.
        indices: the draws; j < m is query j, m + j its negative.
    """

    base: Vector
    beta: float
    indices: NDArray[np.int64]


class Likelihood(Misfit):
    """Minus the logarithm of the probability of all draws, as a function of the answers of the data.

    -log P = sum over rounds of [ count * log sum_j 2 cosh(beta (answer_j - base_j)) - beta sum of the drawn signs times
    (answer_j - base_j) ]: convex.
    """

    def __init__(self, rounds: Sequence[Draws]) -> None:
        self._bases = np.stack([one.base for one in rounds])
        self._betas = np.array([one.beta for one in rounds])
        self._counts = np.array([len(one.indices) for one in rounds], np.float64)
        size = self._bases.shape[1]
        drawn = np.stack([np.bincount(one.indices, minlength=2 * size) for one in rounds])
        self._signs = self._betas[:, None] * (drawn[:, :size] - drawn[:, size:])
        self._pull = self._signs.sum(axis=0)

    def value_and_gradient(self, answers: Vector) -> tuple[float, Vector]:
        """The negative log-likelihood and its gradient."""
        errors = answers - self._bases
        logits = self._betas[:, None] * errors
        sizes = np.abs(logits)
        tops = sizes.max(axis=1, keepdims=True)
        positive, negative = np.exp(logits - tops), np.exp(-logits - tops)
        masses = (positive + negative).sum(axis=1)
        value = float(self._counts @ (tops[:, 0] + np.log(masses)) - np.sum(self._signs * errors))
        weights = (self._counts * self._betas / masses)[:, None]
        return value, np.sum(weights * (positive - negative), axis=0) - self._pull


@dataclass(frozen=True, kw_only=True)
class MirrorFit:
    """Minimise misfit(answers of x) + entropy * sum_u x_u log x_u over the simplex, from given weights.

    Two sequences of weights: x, which is returned, and z, which takes the mirror steps. With theta falling like 2 / k,
    y = (1 - theta) x + theta z is where the gradient is taken; z moves to the minimiser of the linearised misfit plus
    theta L KL(z, before) plus the entropy term exactly, and x becomes (1 - theta) x + theta z. The curvature L is
    doubled until the misfit at x is at most what that model says, and shrinks by a tenth a step. Where the objective
    rises, z and theta start anew at x. The answers of y and x are mixtures of those of z: each step costs one
    evaluation of the answers and one of the adjoint.

    Attributes:
        iterations: at most this many.
        curvature: first guess of L; the l1 smoothness where it is known: the summed precisions of least squares.
        entropy: lam, at least 0.
        tolerance: stop where a step changes the objective by less than this, relatively.
    Source:
        Auslender, Teboulle 2006; Tseng 2008, algorithm 1 (acceleration in Bregman distances); O'Donoghue, Candes 2015
        (restarts). The plain mirror descent of the sources on synthetic data needs ten times the iterations.
    """

    iterations: int
    curvature: float = 1.0
    entropy: float = 0.0
    tolerance: float = 1e-13

    def objective(self, answer_map: AnswerMap, misfit: Misfit, weights: Vector) -> tuple[float, Vector]:
        """The whole objective and its gradient at some weights."""
        value, slopes = misfit.value_and_gradient(answer_map.answers(weights))
        logs = _logs(weights)
        gradient = answer_map.adjoint(slopes) + self.entropy * (1 + logs)
        return value + self.entropy * float(weights @ logs), gradient

    def fit(self, answer_map: AnswerMap, misfit: Misfit, start: Vector) -> Vector:
        """The weights after the iterations."""
        best = _Point(start, answer_map.answers(start))
        value = self._value(misfit, best)
        moving, logs, theta, curvature = best, _logs(start), 1.0, self.curvature
        for _ in range(self.iterations):
            curvature *= 1.0 - _SHRINK
            middle = (1 - theta) * best.answers + theta * moving.answers
            at_middle, slopes = misfit.value_and_gradient(middle)
            gradient = answer_map.adjoint(slopes)
            for _ in range(_MOST_DOUBLINGS):
                ahead, moved_logs = self._step(answer_map, logs, gradient, theta * curvature)
                found = best.mixed(ahead, theta)
                distance = float(ahead.weights @ (moved_logs - logs))
                model = at_middle + float(slopes @ (found.answers - middle)) + theta**2 * curvature * distance
                smooth, _ = misfit.value_and_gradient(found.answers)
                if smooth <= model + _ROUNDING * abs(at_middle):
                    break
                curvature *= 2.0
            else:
                break  # not a finite number, or no step is small enough: the weights so far
            reached = self._value(misfit, found)
            if reached > value and theta < 1.0:
                moving, logs, theta = best, _logs(best.weights), 1.0
                continue
            if not reached <= value:
                break
            fell = value - reached
            best, moving, logs, value = found, ahead, moved_logs, reached
            theta = (math.sqrt(theta**4 + 4 * theta**2) - theta**2) / 2
            if fell <= self.tolerance * abs(value):
                break
        return best.weights

    def _step(
        self, answer_map: AnswerMap, logs: Vector, gradient: Vector, scale: float
    ) -> tuple["_Point", Vector]:
        """argmin <gradient, z> + entropy * sum z log z + scale * KL(z, before)."""
        moved = (scale * logs - gradient) / (scale + self.entropy)
        moved = moved - float(np.max(moved))
        moved = moved - math.log(float(np.sum(np.exp(moved))))
        weights = np.exp(moved)
        return _Point(weights, answer_map.answers(weights)), moved

    def _value(self, misfit: Misfit, point: "_Point") -> float:
        value, _ = misfit.value_and_gradient(point.answers)
        if self.entropy == 0:
            return value
        return value + self.entropy * float(point.weights @ _logs(point.weights))


@dataclass(frozen=True, eq=False)
class _Point:
    """Weights with their answers."""

    weights: Vector
    answers: Vector

    def mixed(self, other: "_Point", theta: float) -> "_Point":
        return _Point(
            (1 - theta) * self.weights + theta * other.weights,
            (1 - theta) * self.answers + theta * other.answers,
        )


def _logs(weights: Vector) -> Vector:
    return np.log(np.maximum(weights, 1e-300))
