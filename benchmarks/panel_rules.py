"""Rules that the panel compares: what the library did before, the peers that an oracle tunes, candidates."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell, Mapped
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.coordinates import Coordinates
from privopt.planning.whitening import SHARE, WhiteningRule

Floats = NDArray[np.float64]


def whitened(
    cell: Cell, rule: WhiteningRule, share: float
) -> tuple[Mapped, list[Coordinates], Floats, Floats]:
    """The coordinates of every seed, the spectrum h (seeds, d) and the axes (seeds, d, d)."""
    key = ("whitened", share, rule.floor)
    if key not in cell._maps:
        spectra = [rule.directions(moment) for moment in cell.moment(share)]
        cell._maps[(*key, "spectra")] = spectra  # type: ignore[assignment]
        cell.mapped(key, lambda: np.stack([rows.map() for rows in spectra]))
    found: Any = cell._maps[(*key, "spectra")]
    coordinates = [
        rule._coordinates(
            np.zeros((0, 0)),
            float(np.min(rows.scale)) ** -0.5,
            rows.signal,
            float(np.max(rows.ridge(rule.ridge))),
            rows,
        )
        for rows in found
    ]
    eigenvalues, axes = (
        np.stack([getattr(rows, name) for rows in found]) for name in ("eigenvalues", "axes")
    )
    return cell._maps[key], coordinates, eigenvalues, axes


def descend(
    cell: Cell,
    mapped: Mapped,
    *,
    clip: Floats,
    step_size: Floats,
    momentum: float,
    steps: int,
    share: float,
    balanced: bool,
    returns: Average,
    purpose: str = "steps",
) -> Floats:
    """Gradient descent with momentum in other coordinates, as the library's; v, not w."""
    params = at = average = cell.start()
    generator = cell.generator(purpose)
    wide = (slice(None), *(None,) * (params.ndim - 1))
    noise = cell.noise_of_one(clip, share)[wide] * math.sqrt(steps)
    for ratio in mixing_ratios(returns, steps):
        gradient = cell.gradients(mapped, at, clip, balanced=balanced)
        gradient = (
            gradient + noise * generator.standard_normal(params.shape) + cell.ridge_gradient(mapped, at)
        )
        moved = at - step_size[wide] * gradient
        at = moved + momentum * (moved - params)
        params = moved
        average = average + ratio * (params - average)
    return average


def outward(mapped: Mapped, params: Floats) -> Floats:
    """w = B v."""
    return np.einsum("sij,sj...->si...", mapped.matrix, params)


def landed(cell: Cell, *, steps: int | None = None, share: float = SHARE) -> Floats:
    """The default of before: whitened descent, its steps from public numbers alone.

    Args:
        cell: the cell.
        steps: T, if not the rule's.
        share: of the second moment.
    """
    rule = WhiteningRule.of(cell.instance, share)
    mapped, coordinates, _, _ = whitened(cell, rule, share)
    params = descend(
        cell,
        mapped,
        clip=np.asarray([one.clip for one in coordinates]),
        step_size=np.asarray([1.0 / (one.smoothness + one.ridge_smoothness) for one in coordinates]),
        momentum=coordinates[0].momentum,
        steps=rule.steps() if steps is None else steps,
        share=1.0 - share,
        balanced=coordinates[0].balanced,
        returns=rule.constants.returns,
    )
    return outward(mapped, params)


def plain_descent(cell: Cell, *, steps: int, clip: float, step_size: float, returns: Average) -> Floats:
    """DP-GD as it is usually written, without momentum; what an oracle tunes."""
    params = average = cell.start()
    generator = cell.generator("plain")
    noise = float(cell.noise_of_one(clip, 1.0)[0]) * math.sqrt(steps)
    ridge = cell.ridge[:, None] if params.ndim == 3 else cell.ridge
    for ratio in mixing_ratios(returns, steps):
        gradient = cell.gradients(None, params, clip) + noise * generator.standard_normal(params.shape)
        params = params - step_size * (gradient + ridge * params)
        average = average + ratio * (params - average)
    return average
