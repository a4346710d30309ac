"""The answers of a workload as a linear map of the joint table, and its adjoint, fast enough to descend with."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload, strides_of

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
