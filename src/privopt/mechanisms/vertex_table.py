"""Vertices drawn from scores in which every item has its own weight at every draw: trees, pre-drawn levels."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.vertex_stream import ROUNDOFF, VertexState, VertexStream


@dataclass(frozen=True, kw_only=True, repr=False)
class VertexTable(VertexStream):
    """Step t draws `draws[t]` vertices from softmax(-(sum over items s of `weights[t][s]` * item_s / sensitivity_s)).

    A public table says which items count at which step, and for how much: an item may enter late, leave again or be
    replaced, as in the tree of a variance-reduced method. Items are added in order, as many between two steps as the
    solver likes; a step may be drawn once all items with a weight there have been added. An item is kept until the
    last step that has a weight for it.

    Args:
        weights: for each step the items that count there as (item, weight) pairs, weights at least 0. Public.
        draws, participation, largest_item, mixture: see `VertexStream`.
    Privacy:
        A unit in the items of a pattern moves the logits of step t by a vector of range at most the sum of its weights
        in row t; what that costs is argued in `VertexStream`. Rounding: a sum of k products errs by at most k + 2
        roundoffs of the sum of the sizes; the range of the difference of two data sets sees four such errors.
    """

    weights: tuple[tuple[tuple[int, float], ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(tuple((item, weight) for item, weight in row) for row in self.weights)
        object.__setattr__(self, "weights", rows)
        if len(self.weights) != len(self.draws):
            raise ValueError(
                f"every step needs a row of weights and a number of draws, got {len(self.weights)} rows and "
                f"{len(self.draws)} numbers of draws."
            )
        for step, row in enumerate(self.weights):
            if not all(item >= 0 and weight >= 0 and math.isfinite(weight) for item, weight in row):
                raise ValueError(
                    f"items and weights must be finite and at least 0, got {row} at step {step}."
                )
            if len({item for item, _ in row}) < len(row):
                raise ValueError(f"an item has two weights at step {step}: add them up.")
        if any(item >= self.items for row in self.weights for item, _ in row):
            raise ValueError(
                "participation must name every item, and no other: each unit's items are one of its tuples."
            )
        super().__post_init__()

    @property
    def items(self) -> int:
        """How many items are added."""
        return self._count

    @functools.cached_property
    def _count(self) -> int:
        return 1 + max((item for pattern in self.participation for item in pattern), default=-1)

    def scaled(self, factor: float) -> "VertexTable":
        """The same schedule with all weights times `factor`: rho times its square, up to the rounding."""
        rows = tuple(tuple((item, factor * weight) for item, weight in row) for row in self.weights)
        return replace(self, weights=rows)

    @functools.cached_property
    def _last_steps(self) -> dict[int, int]:
        """The last step that has a weight for an item."""
        return {item: step for step, row in enumerate(self.weights) for item, _ in row}

    def _shifts(self, patterns: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        present = np.zeros((self.items, len(patterns)))
        for column, pattern in enumerate(patterns):
            present[list(pattern), column] = 1.0
        shifts = np.zeros((len(patterns), self.steps))
        for step, row in enumerate(self.weights):
            for item, weight in row:
                shifts[:, step] += weight * present[item]
        return shifts

    def _rounding(self) -> NDArray[np.float64]:
        errors = [
            4 * (4 * len(row) + 16) * ROUNDOFF * 2.0 * math.fsum(weight for _, weight in row)
            for row in self.weights
        ]
        return self.largest_item * np.asarray(errors, dtype=np.float64)

    def _enter(self, state: VertexState, private_item: NDArray[np.float64]) -> None:
        if self._last_steps.get(state.added, -1) >= state.drawn:
            state.private_items[state.added] = private_item

    def _require_items(self, state: VertexState, step: int) -> None:
        needed = 1 + max((item for item, _ in self.weights[step]), default=-1)
        if state.added < needed:
            raise ValueError(f"step {step} is drawn after {needed} items, but {state.added} have been added.")

    def _logits(self, state: VertexState, step: int) -> NDArray[np.float64]:
        private_scores = np.zeros_like(state.private_scores)
        for item, weight in self.weights[step]:
            private_scores -= weight * state.private_items[item]
        return private_scores

    def _forget(self, state: VertexState, step: int) -> None:
        for item, _ in self.weights[step]:
            if self._last_steps[item] == step:
                del state.private_items[item]
