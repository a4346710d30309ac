"""Vertices drawn from the softmax of hidden scores: mirror descent that touches the data through draws only."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, NoEvent, ZCDPEvent
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism, checked_sensitivity
from privopt.mechanisms.noise import Noise, Shape

_ROUNDOFF = 2.0**-53


def inverse_cdf(masses: Any, uniforms: Any, xp: ModuleType = np) -> Any:
    """The index each uniform falls on, with probability proportional to the masses (last axis; one row a uniform)."""
    cumulative = xp.cumsum(masses, axis=-1)
    total = cumulative[..., -1:]
    found = xp.sum(cumulative <= uniforms[..., None] * total, axis=-1)
    last = xp.sum(
        cumulative < total, axis=-1
    )  # u * total may round up to the total; never an index without mass
    return xp.minimum(found, last)


def two_level_draw(private_scores: Any, uniforms: Any, xp: ModuleType = np) -> Any:
    """Draw indices from the softmax of the scores: a block by inverse CDF, then an index inside it.

    Args:
        private_scores: float64 scores, shape (d,).
        uniforms: independent float64 uniforms, shape (draws, 2).
        xp: `numpy`, or `jax.numpy` inside a compiled loop.
    Privacy:
        Exact up to `rounding_delta`. Gumbel-max would need d uniforms a draw and is biased for large d.
    Source:
        Devroye 1986, section III.2 (inversion). The two levels are ours: they cost d + draws * sqrt(d), not draws * d.
    """
    size = private_scores.shape[0]
    blocks, width = _grid(size)
    masses = xp.exp(private_scores - xp.max(private_scores))
    masses = xp.concatenate([masses, xp.zeros(blocks * width - size)]).reshape(blocks, width)
    draws = uniforms.shape[0]
    block_masses = xp.broadcast_to(xp.sum(masses, axis=-1), (draws, blocks))
    block = inverse_cdf(block_masses, uniforms[:, 0], xp)
    return block * width + inverse_cdf(masses[block], uniforms[:, 1], xp)


def rounding_delta(vertices: int, draws: int, epsilon: float) -> float:
    """What the rounding of `draws` two-level draws may add to delta: (1 + e^epsilon) draws (blocks + width) 2^-52."""
    blocks, width = _grid(vertices)
    return (1 + math.exp(min(epsilon, 700.0))) * draws * (blocks + width) * 2.0**-52


class VertexSamplerState(HiddenState):
    """The cumulative sum of the normalised items, and how many were added and drawn from."""

    __slots__ = ("added", "drawn", "private_scores")

    def __init__(self, vertices: int) -> None:
        self.private_scores = np.zeros(vertices)
        self.added = 0
        self.drawn = 0


@dataclass(frozen=True, kw_only=True, repr=False)
class VertexSampler(StreamMechanism):
    """Step t = 0, 1, ...: draw `draws[t]` vertices from softmax(-temperatures[t] * scores), then add item t to them.

    The scores are `sum over s < t of item_weights[s] * item_s / sensitivity_s` and never leave the stream; only drawn
    indices do. Every vertex is drawn with the exact softmax probability, so a drawn vertex is an unbiased play. The
    first step has seen no data and is free. `weighted_average` builds the schedule from step weights and inverse
    temperatures in the unit of the scores.

    Args:
        item_weights: what multiplies each sensitivity-normalised item, at least 0. Public.
        temperatures: what multiplies the scores at each step, at least 0, one a step. Public.
        draws: vertices drawn at each step, one number a step.
        participation: the items a single unit may be in, one tuple for each possible pattern. `every_item` and
            `one_item` write the two common ones.
        largest_item: the largest entry of an item over its sensitivity (half-range over range), for the rounding
            bound: n / (2 c) for a mean over n units clipped to [-L, L] with range sensitivity 2 c L / n.
    Privacy:
        The sensitivity of an item is the range, max - min, of the vector by which one unit moves it. A unit in the
        items of a pattern moves the logits of step t by a vector of range at most
        `e_t = temperatures[t] * sum of its item_weights before t`; each draw of step t is e_t-bounded range, rho =
        e_t^2 / 8. Given the drawn indices every item is a fixed function of the data, so the draws compose adaptively;
        disjoint patterns compose in parallel: the dearest pattern is charged. The scores persist, so sampling units
        amplifies nothing. The rounding of the score updates is added to e_t.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1; Cesar and Rogers 2021, Lemma 3.2 (e^2 / 8 for e^2 / 2).
    """

    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, releases=False), "draw": Request(fed=False)}
    )
    norm: ClassVar[str] = "range"

    item_weights: tuple[float, ...]
    temperatures: tuple[float, ...]
    draws: tuple[int, ...]
    participation: tuple[tuple[int, ...], ...]
    largest_item: float

    def __post_init__(self) -> None:
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
        if not all(count >= 0 for count in self.draws):
            raise ValueError(f"the number of draws of a step must be at least 0, got {self.draws}.")
        named = {item for pattern in self.participation for item in pattern}
        if named != set(range(len(self.item_weights))):
            raise ValueError(
                "participation must name every item, and no other: each unit's items are one of its tuples."
            )
        if not (self.largest_item >= 0.5 and math.isfinite(self.largest_item)):
            raise ValueError(
                f"largest_item must be at least 1/2 and finite, got {self.largest_item!r}: half-range over sensitivity."
            )

    def __repr__(self) -> str:
        return f"VertexSampler(steps={len(self.temperatures)}, draws={sum(self.draws)}, rho={self.rho():.6g})"

    @staticmethod
    def every_item(items: int) -> tuple[tuple[int, ...], ...]:
        """Every unit is in every item: full batches."""
        return (tuple(range(items)),)

    @staticmethod
    def one_item(items: int) -> tuple[tuple[int, ...], ...]:
        """Every unit is in one item: a single pass over disjoint batches."""
        return tuple((item,) for item in range(items))

    @classmethod
    def weighted_average(
        cls,
        *,
        step_weights: Sequence[float],
        inverse_temperatures: Sequence[float],
        draws: int,
        half_range: float,
        sensitivities: float | Sequence[float],
        participation: tuple[tuple[int, ...], ...] | None = None,
    ) -> "VertexSampler":
        """The sampler whose step t draws from softmax(-beta_t * weighted average of the items before t).

        Args:
            step_weights: w_s of the average, one an item.
            inverse_temperatures: beta_t, one a step, in one over the unit of the scores.
            draws: vertices drawn a step.
            half_range: the largest entry of an item, the clip L.
            sensitivities: by which range one unit moves an item, for instance 2 c L / n; one for all, or one an item.
            participation: see the class; the default is every item.
        """
        items = len(step_weights)
        ranges = [float(r) for r in np.broadcast_to(np.asarray(sensitivities, dtype=np.float64), (items,))]
        if not all(r > 0 and math.isfinite(r) for r in ranges) or not half_range > 0:
            raise ValueError("half_range and sensitivities must be positive and finite: clip the items.")
        weight_before = np.concatenate(([0.0], np.cumsum(np.asarray(step_weights, dtype=np.float64))))
        temperatures = [
            beta / weight if weight > 0 else 0.0
            for beta, weight in zip(inverse_temperatures, weight_before.tolist(), strict=False)
        ]
        if len(temperatures) != len(inverse_temperatures):
            raise ValueError(
                f"there may be at most one step more than items, got {len(inverse_temperatures)} inverse temperatures "
                f"for {items} items."
            )
        return cls(
            item_weights=tuple(w * r for w, r in zip(step_weights, ranges, strict=True)),
            temperatures=tuple(temperatures),
            draws=(draws,) * len(temperatures),
            participation=cls.every_item(items) if participation is None else participation,
            largest_item=max((half_range / r for r in ranges), default=0.5),
        )

    def range_bounds(self, pattern: Sequence[int]) -> NDArray[np.float64]:
        """The bounded range e_t of a draw at every step, for a unit in the items of this pattern."""
        weights = np.asarray(self.item_weights)
        shift = np.zeros(len(weights))
        shift[list(pattern)] = weights[list(pattern)]
        # One score update rounds by at most 4 roundoffs of the largest score; range and two data sets make four.
        rounding = 4 * (4 * len(weights) + 8) * _ROUNDOFF * self.largest_item * np.cumsum(weights)
        before = np.concatenate(([0.0], np.cumsum(shift) + rounding))[: len(self.temperatures)]
        return np.asarray(self.temperatures) * before

    def rho(self) -> float:
        """The zCDP cost of the whole schedule for the dearest participation pattern."""
        counts = np.asarray(self.draws, dtype=np.float64)
        costs = [
            float(np.sum(counts * self.range_bounds(pattern) ** 2)) / 8 for pattern in self.participation
        ]
        return max(costs, default=0.0)

    def event(self) -> Event:
        """The whole stream, charged once when it opens."""
        rho = self.rho()
        return ZCDPEvent(rho) if rho > 0 else NoEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """The items of one participation pattern."""
        return any(items.issubset(pattern) for pattern in self.participation)

    def open(self, noise: Noise, shape: Shape) -> VertexSamplerState:
        """Start with all scores zero; `shape` is (number of vertices,)."""
        del noise
        if len(shape) != 1 or shape[0] < 1:
            raise ValueError(f"the shape must be (vertices,) with at least 1 vertex, got {shape}.")
        return VertexSamplerState(shape[0])

    def add(
        self, state: VertexSamplerState, noise: Noise, private_item: ArrayLike, sensitivity: SupportsFloat
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
        if state.added >= len(self.item_weights):
            raise ValueError(f"the schedule holds {len(self.item_weights)} items, and all have been added.")
        if np.shape(private_item) != state.private_scores.shape:
            raise ValueError(f"an item has shape {state.private_scores.shape}, got {np.shape(private_item)}.")
        scale = checked_sensitivity(sensitivity, noisy=True)
        if scale == 0:
            raise ValueError(
                "an item of sensitivity 0 does not depend on the data: add it to the scores without this stream."
            )
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            private_step = np.asarray(private_item, dtype=np.float64) / scale
            state.private_scores = state.private_scores + self.item_weights[state.added] * private_step
        state.added += 1

    def draw(self, state: VertexSamplerState, noise: Noise) -> NDArray[np.int64]:
        """Release the vertices of the next step.

        Raises:
            ValueError: the schedule is used up, or holds an item before this step that has not been added.
        """
        step = state.drawn
        if step >= len(self.temperatures):
            raise ValueError(f"the schedule holds {len(self.temperatures)} steps, and all have been drawn.")
        if state.added != step:
            raise ValueError(f"step {step} is drawn after {step} items, but {state.added} have been added.")
        state.drawn += 1
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            private_logits = -self.temperatures[step] * state.private_scores
            indices = two_level_draw(private_logits, noise.uniform((self.draws[step], 2)))
        return np.asarray(indices, dtype=np.int64)


def _grid(vertices: int) -> tuple[int, int]:
    """Blocks and their width, near the square root of the number of vertices."""
    width = max(1, math.isqrt(vertices - 1) + 1) if vertices > 1 else 1
    return -(-vertices // width), width
