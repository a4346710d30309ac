"""The best vertex in place of a drawn one: what the streams of drawn vertices become when the noise is off."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, NonPrivateEvent
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism
from privopt.mechanisms.noise import Noise, Shape
from privopt.mechanisms.vertex_draws import chosen_below


class BestVertexState(HiddenState):
    """The cumulative scores by item, as far as later items refer to them, and the best vertex of each step."""

    __slots__ = ("added", "best", "private_scores")

    def __init__(self, vertices: int) -> None:
        self.private_scores = {-1: np.zeros(vertices)}
        self.added = 0
        self.best: list[int] = []


@dataclass(frozen=True, kw_only=True)
class BestVertex(StreamMechanism):
    """Releases the vertex of the least score, the first of equals, as often as vertices would be drawn.

    Item i is added, times its weight, to the scores that `follows[i]` had; a step shows the scores of the last item.

    Args:
        weights: of the items.
        follows: for each item an earlier one, or -1 for scores of zero.
        draws: how often each step releases its vertex.
        mixture: whether a step releases the vertices of random steps so far in place of its own.
    Privacy:
        None: it protects nobody, and says so.
    """

    exact: ClassVar[bool] = True  # there is no noise
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, releases=False), "draw": Request(fed=False)}
    )
    norm: ClassVar[str] = "range"

    weights: tuple[float, ...]
    follows: tuple[int, ...]
    draws: tuple[int, ...]
    mixture: bool = False

    def __post_init__(self) -> None:
        if len(self.follows) != len(self.weights) or any(
            not -1 <= before < item for item, before in enumerate(self.follows)
        ):
            raise ValueError("follows must hold an earlier item, or -1, for each weight.")
        if not all(math.isfinite(weight) for weight in self.weights):
            raise ValueError("weights must be finite.")

    @classmethod
    def of_sums(cls, weights: tuple[float, ...], draws: tuple[int, ...], *, mixture: bool = False) -> Any:
        """Each step shows the weighted sum of all items so far."""
        return cls(weights=weights, follows=tuple(range(-1, len(weights) - 1)), draws=draws, mixture=mixture)

    def event(self) -> Event:
        """Nothing is protected."""
        return NonPrivateEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """Everything: nothing is protected."""
        del items
        return True

    def open(self, noise: Noise, shape: Shape) -> BestVertexState:
        """Start with scores of zero; `shape` is (number of vertices,)."""
        del noise
        return BestVertexState(shape[0])

    def add(
        self, state: BestVertexState, noise: Noise, private_item: ArrayLike, sensitivity: SupportsFloat
    ) -> None:
        """Add the next item; nothing is released."""
        del noise, sensitivity
        item = state.added
        private_before = state.private_scores[self.follows[item]]
        private_step = self.weights[item] * np.asarray(private_item, np.float64)
        still = {item, *self.follows[item + 1 :]}
        state.private_scores[item] = private_before + private_step
        state.private_scores = {
            key: private_kept for key, private_kept in state.private_scores.items() if key in still
        }
        state.added += 1

    def draw(self, state: BestVertexState, noise: Noise) -> NDArray[np.int64]:
        """Release the best vertex of the next step."""
        step = len(state.best)
        state.best.append(int(np.argmin(state.private_scores[state.added - 1])))
        count = self.draws[step]
        if not self.mixture:
            return np.full(count, state.best[-1], np.int64)
        chosen = chosen_below(noise.words((count,)), len(state.best))
        return np.asarray(state.best, np.int64)[chosen]
