"""Vertices drawn from the softmax of a running sum of items: mirror descent that touches the data through draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.vertex_stream import ROUNDOFF, Participation, VertexState, VertexStream


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
