"""The weights of all cells that fit released answers best: accelerated mirror descent."""

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload, strides_of

# ------------------------------------------------------------------------------------------------------------
# The answers of a workload as a linear map of the joint table, and its adjoint, fast enough to descend
# with.


Vector = NDArray[np.float64]


class AnswerMap:
    """x (N,) -> the answers (m,) of a workload on the joint table x, and r (m,) -> the adjoint (N,).

    For marginals each axis of the joint table is changed to the coordinates (total, cell 1, ..., cell L - 1). A
    marginal is then read off directly: its axes keep their coordinates, every other axis is at its total. Cell 0 is
    the total less the other cells. The change costs one addition a cell and axis, for all marginals together.

    Source:
        Yates 1937, interaction algorithm (a Walsh-Hadamard transform for binary columns). Our coordinates need no signs
        and take columns of any size.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._groups = [] if workload.queries is not None else list(_groups(workload))

    @property
    def parts(self) -> int:
        """How many marginals (or queries) there are: each is a map of l1 norm at most 1."""
        return len(self.workload.sets) or self.workload.size

    def answers(self, table: Vector) -> Vector:
        """The answers on a joint table."""
        if self.workload.queries is not None:
            return self.workload.queries @ table
        totals = _totals(table, self.workload.levels)
        answers = np.empty(self.workload.size)
        for sizes, sources, places in self._groups:
            cells = totals[sources].reshape(len(sources), *sizes)
            for axis in range(1, cells.ndim):
                first, rest = _first(axis), _rest(axis)
                cells[first] -= cells[rest].sum(axis=axis)
            answers[places] = cells.reshape(len(sources), -1)
        return answers

    def adjoint(self, residuals: Vector) -> Vector:
        """The joint table that pairs with x as the residuals pair with the answers."""
        if self.workload.queries is not None:
            return self.workload.queries.T @ residuals
        universe = self.workload.universe
        totals = np.zeros(universe)
        for sizes, sources, places in self._groups:
            cells = residuals[places].reshape(len(sources), *sizes)
            for axis in range(1, cells.ndim):
                cells[_rest(axis)] -= np.expand_dims(cells[_first(axis)], axis)
            totals += np.bincount(sources.ravel(), weights=cells.ravel(), minlength=universe)
        return _spread(totals, self.workload.levels)


def _first(axis: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, 0)


def _rest(axis: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(1, None))


def _groups(
    workload: Workload,
) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64]]]:
    """Marginals of one shape together: the shape, where their cells stand in the joint table, and in the answers.

    The first column of a set runs fastest, so it is the last axis of the shape.
    """
    strides = strides_of(workload.levels, range(len(workload.levels)))
    shapes: dict[tuple[int, ...], list[int]] = {}
    for place, columns in enumerate(workload.sets):
        shapes.setdefault(tuple(workload.levels[column] for column in reversed(columns)), []).append(place)
    for sizes, members in shapes.items():
        steps = np.array([[strides[column] for column in reversed(workload.sets[one])] for one in members])
        sources = np.zeros((len(members), 1), np.int64)
        for axis, size in enumerate(sizes):
            codes = steps[:, axis, None] * np.arange(size)
            sources = (sources[:, :, None] + codes[:, None, :]).reshape(len(members), -1)
        starts = np.array([workload.slices[one].start for one in members])
        yield sizes, sources, starts[:, None] + np.arange(math.prod(sizes))


def _totals(table: Vector, levels: tuple[int, ...]) -> Vector:
    """Cell 0 of every axis replaced by the sum along it."""
    changed = np.array(table, np.float64)
    for after, size, before in _axes(levels):
        axes = changed.reshape(after, size, before)
        axes[:, 0] += axes[:, 1:].sum(axis=1)
    return changed


def _spread(totals: Vector, levels: tuple[int, ...]) -> Vector:
    """The adjoint of `_totals`: what stands at cell 0 is added to every other cell of its axis."""
    changed = np.array(totals, np.float64)
    for after, size, before in _axes(levels):
        axes = changed.reshape(after, size, before)
        axes[:, 1:] += axes[:, :1]
    return changed


def _axes(levels: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """For each column the cells of those after it, its own, and of those before it, which run faster."""
    before, universe = 1, math.prod(levels)
    for size in levels:
        yield universe // (before * size), size, before
        before *= size


# ---- The weights of all cells that fit released answers best: accelerated mirror descent -------------------


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
