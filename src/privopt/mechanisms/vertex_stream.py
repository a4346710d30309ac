"""What streams of drawn vertices share: who pays for which draw, and the hidden scores behind them."""

import abc
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Self, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, NoEvent, SelectionsEvent
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism, checked_sensitivity
from privopt.mechanisms.noise import Noise, Shape
from privopt.mechanisms.vertex_draws import (
    MOST_VERTICES,
    RELATIVE_ROUNDING,
    WORDS,
    chosen_below,
    softmax_draws,
)

Participation = tuple[tuple[int, ...], ...]
ROUNDOFF = 2.0**-53
_LARGEST_TABLE = 2_000_000  # numbers at once, of ranges by pattern and step


class VertexState(HiddenState):
    """How many items were added and steps drawn, the scores, and vertices that were drawn ahead of their release."""

    __slots__ = ("added", "chosen", "drawn", "private_ahead", "private_items", "private_scores")

    def __init__(self, vertices: int) -> None:
        self.private_scores = np.zeros(vertices)
        self.private_items: dict[int, NDArray[np.float64]] = {}
        self.added = 0
        self.drawn = 0
        # Of a mixture: at which step each vertex is drawn, in the order of release, and those that are drawn.
        self.chosen = np.empty(0, dtype=np.int64)
        self.private_ahead = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, repr=False)
class VertexStream(StreamMechanism):
    """Step t = 0, 1, ... draws `draws[t]` vertices from a softmax of hidden scores; items are added in between.

    Args:
        draws: vertices drawn at each step, one number a step.
        participation: the items a single unit may be in, one tuple for each possible pattern. `every_item` and
            `one_item` write the two common ones.
        largest_item: the largest entry of an item over its sensitivity (half-range over range), for the rounding
            bound: n / (2 c) for a mean over n units clipped to [-L, L] with range sensitivity 2 c L / n.
        mixture: draw from the average of the softmaxes of steps 0 to t, with equal weights, in place of the last one.
    Privacy:
        The sensitivity of an item is the range, max - min, of the vector by which one unit moves it. If the units of a
        pattern move the logits of step t by a vector of range at most e_t, each draw of step t is e_t-bounded range:
        rho = e_t^2 / 8 of zCDP, and e_t of pure privacy. Given the drawn indices every item is a fixed function of the
        data, so the draws compose adaptively, in both currencies; disjoint patterns compose in parallel: the dearest
        pattern is charged. The scores persist, so sampling units amplifies nothing. The rounding of the scores and of
        the draws is in e_t (`vertex_draws`), so no part of delta is spent on it.

        That rounding is bounded by the entries of an item, so they are held to what is declared. Of each item its least
        entry is subtracted, which changes no draw, then every entry is cut at 2 `largest_item`; an item of that
        half-range loses nothing. If a unit moves an item by v, its least entry moves by some c with min v <= c <=
        max v, so what is left moves by v - c, whose entries lie in an interval of length range(v) that holds 0, and
        cutting moves each entry between 0 and what it was. Both steps round an entry by two roundoffs of itself.

        A vertex of a mixture is drawn from the softmax of a step that is chosen uniformly, without looking at data.
        Were the choice revealed, it would be e_s-bounded range for the step s it fell on; so the draw is charged at
        the largest range so far. (As a distribution of its own the average is not e_t-bounded range: its parts have
        different normalisers.)
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithms 1 and 5; Cesar and Rogers 2021, Lemma 3.2 (e^2 / 8 for e^2 / 2).
    """

    exact: ClassVar[bool] = True
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, releases=False), "draw": Request(fed=False)}
    )
    norm: ClassVar[str] = "range"

    draws: tuple[int, ...]
    participation: Participation
    largest_item: float
    mixture: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "draws", tuple(self.draws))
        object.__setattr__(self, "participation", tuple(tuple(pattern) for pattern in self.participation))
        if not all(count >= 0 for count in self.draws):
            raise ValueError(f"the number of draws of a step must be at least 0, got {self.draws}.")
        named = {item for pattern in self.participation for item in pattern}
        if named != set(range(self.items)):
            raise ValueError(
                "participation must name every item, and no other: each unit's items are one of its tuples."
            )
        if not (self.largest_item >= 0.5 and math.isfinite(self.largest_item)):
            raise ValueError(
                f"largest_item must be at least 1/2 and finite, got {self.largest_item!r}: half-range over sensitivity."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(steps={self.steps}, draws={sum(self.draws)}, rho={self.rho():.6g})"

    @staticmethod
    def every_item(items: int) -> Participation:
        """Every unit is in every item: full batches."""
        return (tuple(range(items)),)

    @staticmethod
    def one_item(items: int) -> Participation:
        """Every unit is in one item: a single pass over disjoint batches."""
        return tuple((item,) for item in range(items))

    @property
    def steps(self) -> int:
        """How often vertices are drawn."""
        return len(self.draws)

    @property
    @abc.abstractmethod
    def items(self) -> int:
        """How many items are added."""

    @abc.abstractmethod
    def scaled(self, factor: float) -> Self:
        """The same schedule with all temperatures times `factor`: rho times its square, up to the rounding."""

    @abc.abstractmethod
    def _shifts(self, patterns: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """The range by which each pattern moves the logits of each step, in exact arithmetic: (patterns, steps)."""

    @abc.abstractmethod
    def _rounding(self) -> NDArray[np.float64]:
        """How much more the rounding of the scores may move the logits of each step, 0 before the first item."""

    @abc.abstractmethod
    def _enter(self, state: VertexState, private_item: NDArray[np.float64]) -> None:
        """Take the next item, a fresh array that was divided by its sensitivity, into the hidden state."""

    @abc.abstractmethod
    def _require_items(self, state: VertexState, step: int) -> None:
        """Refuse a step before its items."""

    @abc.abstractmethod
    def _logits(self, state: VertexState, step: int) -> NDArray[np.float64]:
        """The hidden logits of a step."""

    def _ranges(self, patterns: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        rounding = self._rounding()
        ranges = self._shifts(patterns) + rounding + 4 * RELATIVE_ROUNDING * (rounding > 0)
        return np.maximum.accumulate(ranges, axis=1) if self.mixture else ranges

    def range_bounds(self, pattern: Sequence[int]) -> NDArray[np.float64]:
        """The bounded range e_t of a draw at every step, for a unit in the items of this pattern."""
        return self._ranges([pattern])[0]

    @functools.cached_property
    def _costs(self) -> tuple[float, float]:
        rho = pure = 0.0
        drawn = np.asarray(self.draws) > 0
        counts = np.asarray(self.draws, dtype=np.float64)[drawn]
        for patterns in self._some_patterns():
            ranges = self._ranges(patterns)[:, drawn]
            if not np.all(np.isfinite(ranges)):
                raise ValueError("a draw would move by an infinite range: lower the weights or temperatures.")
            rho = max(rho, float(np.max(ranges**2 @ counts)) / 8)
            pure = max(pure, float(np.max(ranges @ counts)))
        return rho, pure

    def _some_patterns(self) -> Iterator[Sequence[Sequence[int]]]:
        patterns = list(dict.fromkeys(self.participation))
        together = max(1, _LARGEST_TABLE // max(1, self.steps, self.items))
        for start in range(0, len(patterns), together):
            yield patterns[start : start + together]

    def rho(self) -> float:
        """The zCDP cost of the whole schedule for the dearest participation pattern."""
        return self._costs[0]

    def pure_epsilon(self) -> float:
        """The pure epsilon of the whole schedule for the dearest participation pattern."""
        return self._costs[1]

    def event(self) -> Event:
        """The whole stream, charged once when it opens."""
        return SelectionsEvent(*self._costs) if self.pure_epsilon() > 0 else NoEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """The items of one participation pattern."""
        return any(items.issubset(pattern) for pattern in self.participation)

    def open(self, noise: Noise, shape: Shape) -> VertexState:
        """Start with all scores zero; `shape` is (number of vertices,)."""
        if len(shape) != 1 or not 1 <= shape[0] <= MOST_VERTICES:
            raise ValueError(
                f"the shape must be (vertices,) with at least 1 vertex and at most 2^36, got {shape}."
            )
        state = VertexState(shape[0])
        if self.mixture:
            released = np.repeat(np.arange(self.steps), self.draws)
            state.chosen = chosen_below(noise.words((len(released),)), released + 1)
            state.private_ahead = np.zeros(len(released), dtype=np.int64)
        return state

    def add(
        self, state: VertexState, noise: Noise, private_item: ArrayLike, sensitivity: SupportsFloat
    ) -> None:
        """Add the next item to the hidden scores; nothing is released.

        Args:
            state: from `open`.
            noise: not read.
            private_item: a mean gradient, one entry a vertex; smaller entries are better.
            sensitivity: the range by which one unit moves it. Public.
        Raises:
            ValueError: there is no such item, its shape is wrong, or the sensitivity is zero or not finite.
        """
        del noise
        if state.added >= self.items:
            raise ValueError(f"the schedule holds {self.items} items, and all have been added.")
        if np.shape(private_item) != state.private_scores.shape:
            raise ValueError(f"an item has shape {state.private_scores.shape}, got {np.shape(private_item)}.")
        scale = checked_sensitivity(sensitivity, noisy=True)
        if scale == 0:
            raise ValueError(
                "an item of sensitivity 0 does not depend on the data: add it to the scores without this stream."
            )
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            private_given = np.nan_to_num(np.asarray(private_item, dtype=np.float64))
            private_above = (private_given - np.min(private_given)) / scale
            self._enter(state, np.minimum(private_above, 2.0 * self.largest_item))
        state.added += 1

    def draw(self, state: VertexState, noise: Noise) -> NDArray[np.int64]:
        """Release the vertices of the next step, an array of `draws[t]` indices.

        Raises:
            ValueError: the schedule is used up, or holds an item before this step that has not been added.
        """
        step = state.drawn
        if step >= self.steps:
            raise ValueError(f"the schedule holds {self.steps} steps, and all have been drawn.")
        self._require_items(state, step)
        state.drawn += 1
        count, first = self.draws[step], sum(self.draws[:step])
        # Vertices of this step's softmax that later steps of a mixture release are drawn now: the softmax is not kept.
        now = state.chosen == step
        private_drawn = self._drawn(state, noise, step, int(now.sum()) if self.mixture else count)
        self._forget(state, step)
        if not self.mixture:
            return private_drawn
        state.private_ahead[now] = private_drawn
        return state.private_ahead[first : first + count].copy()

    def log_chances(self, state: VertexState) -> NDArray[np.float64]:
        """The logarithms of the chances that the next step draws each vertex with: what an audit compares. PRIVATE.

        Raises:
            ValueError: the schedule holds an item before that step that has not been added.
        """
        self._require_items(state, state.drawn)
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            private_logits = self._logits(state, state.drawn)
            return private_logits - np.logaddexp.reduce(private_logits)

    def _forget(self, state: VertexState, step: int) -> None:
        """Drop what no step after this one needs."""

    def _drawn(self, state: VertexState, noise: Noise, step: int, count: int) -> NDArray[np.int64]:
        if count == 0:
            return np.empty(0, dtype=np.int64)
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            return softmax_draws(self._logits(state, step), noise.words((count, 2, WORDS)))


# ------------------------------------------------------------------------------------------------------------
# Vertices drawn from the softmax of a running sum of items: mirror descent that touches the data through
# draws.


@dataclass(frozen=True, kw_only=True, repr=False)
class VertexSampler(VertexStream):
    """Step t = 0, 1, ...: draw `draws[t]` vertices from softmax(-temperatures[t] * scores), then add item t to them.

    The scores are `sum over s < t of item_weights[s] * item_s / sensitivity_s` and never leave the stream; only drawn
    indices do. A drawn vertex is an unbiased play. The first step has seen no data and is free. `weighted_average`
    builds the schedule from step weights and inverse temperatures in the unit of the scores. Where the weight of an
    item differs from draw to draw in another way, see `VertexTable`.

    Args:
        item_weights: what multiplies each sensitivity-normalised item, at least 0. Public.
        temperatures: what multiplies the scores at each step, at least 0, one a step. Public.
        draws, participation, largest_item, mixture: see `VertexStream`.
    Privacy:
        A unit in the items of a pattern moves the logits of step t by a vector of range at most
        `e_t = temperatures[t] * sum of its item_weights before t`; what that costs is argued in `VertexStream`.
        Rounding: one score update errs by at most 4 roundoffs of the largest score, and so do a logit and all items
        together; the range of the difference of two data sets sees four such errors.
    """

    item_weights: tuple[float, ...]
    temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "item_weights", tuple(self.item_weights))
        object.__setattr__(self, "temperatures", tuple(self.temperatures))
        steps = len(self.temperatures)
        if len(self.draws) != steps or steps - 1 > len(self.item_weights) or len(self.item_weights) > steps:
            raise ValueError(
                "every step needs a temperature and a number of draws, and every step but perhaps the last needs an "
                f"item: got {steps} temperatures, {len(self.draws)} numbers of draws, {len(self.item_weights)} items."
            )
        if not all(
            number >= 0 and math.isfinite(number) for number in (*self.item_weights, *self.temperatures)
        ):
            raise ValueError("item_weights and temperatures must be finite and at least 0.")
        super().__post_init__()

    @classmethod
    def weighted_average(
        cls,
        *,
        step_weights: Sequence[float],
        inverse_temperatures: Sequence[float],
        draws: int | Sequence[int],
        half_range: float,
        sensitivities: float | Sequence[float],
        participation: Participation | None = None,
        mixture: bool = False,
    ) -> "VertexSampler":
        """The sampler whose step t draws from softmax(-beta_t * weighted average of the items before t).

        Args:
            step_weights: w_s of the average, one an item.
            inverse_temperatures: beta_t, one a step, in one over the unit of the scores.
            draws: vertices drawn a step, one number for all or one a step.
            half_range: the largest entry of an item, the clip L.
            sensitivities: by which range one unit moves an item, for instance 2 c L / n; one for all, or one an item.
            participation: see the class; the default is every item.
            mixture: see `VertexStream`.
        """
        items, steps = len(step_weights), len(inverse_temperatures)
        ranges = [float(r) for r in np.broadcast_to(np.asarray(sensitivities, dtype=np.float64), (items,))]
        if not all(r > 0 and math.isfinite(r) for r in ranges) or not half_range > 0:
            raise ValueError("half_range and sensitivities must be positive and finite: clip the items.")
        if steps > items + 1:
            raise ValueError(
                f"there may be at most one step more than items, got {steps} inverse temperatures for {items} items."
            )
        weight_before = np.concatenate(([0.0], np.cumsum(np.asarray(step_weights, dtype=np.float64))))
        temperatures = [
            beta / weight if weight > 0 else 0.0
            for beta, weight in zip(inverse_temperatures, weight_before.tolist(), strict=False)
        ]
        return cls(
            item_weights=tuple(w * r for w, r in zip(step_weights, ranges, strict=True)),
            temperatures=tuple(temperatures),
            draws=(draws,) * steps if isinstance(draws, int) else tuple(draws),
            participation=cls.every_item(items) if participation is None else participation,
            largest_item=max((half_range / r for r in ranges), default=0.5),
            mixture=mixture,
        )

    @property
    def items(self) -> int:
        """How many items are added."""
        return len(self.item_weights)

    def scaled(self, factor: float) -> "VertexSampler":
        """The same schedule with all temperatures times `factor`: rho times its square, up to the rounding."""
        return replace(self, temperatures=tuple(factor * one for one in self.temperatures))

    def _shifts(self, patterns: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        weights = np.asarray(self.item_weights)
        shifts = np.zeros((len(patterns), self.items + 1))
        for row, pattern in enumerate(patterns):
            named = list(dict.fromkeys(pattern))
            shifts[row, np.asarray(named, dtype=np.int64) + 1] = weights[named]
        before = np.cumsum(shifts, axis=1)[:, : self.steps]
        return before * np.asarray(self.temperatures)

    def _rounding(self) -> NDArray[np.float64]:
        added = np.concatenate(([0.0], np.cumsum(self.item_weights)))[: self.steps]
        errors = 4 * (4 * self.items + 16) * ROUNDOFF * 2.0 * self.largest_item
        return errors * added * np.asarray(self.temperatures)

    def _enter(self, state: VertexState, private_item: NDArray[np.float64]) -> None:
        private_item *= self.item_weights[state.added]  # a fresh quotient
        state.private_scores += private_item

    def _require_items(self, state: VertexState, step: int) -> None:
        if state.added != step:
            raise ValueError(f"step {step} is drawn after {step} items, but {state.added} have been added.")

    def _logits(self, state: VertexState, step: int) -> NDArray[np.float64]:
        return -self.temperatures[step] * state.private_scores


# ------------------------------------------------------------------------------------------------------------
# Vertices drawn from scores in which every item has its own weight at every draw: trees, pre-drawn levels.


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
