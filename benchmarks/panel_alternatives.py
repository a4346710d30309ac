"""What the landed default's excess consists of: its descent with one part changed or taken away, all seeds at once.

With two classes, on sixteen problems of the choosing half (six seeds), the descent without noise in its gradients
leaves more than half of the excess on most: noise is the larger part on small widths ("fair", "adult: six columns") and
on some of compas, what the ridge and few steps leave undone elsewhere. At epsilon 1 and 3 leaving out the ridge's
gradient alone takes california at n/4 from .045 to .029 and from .029 to .006; it makes "compas: re-arrest" worse.
A part taken away by `noise` or `clip` is no rule: it spends more than the budget, and says where a rule could gain.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_rules import outward, whitened
from privopt.planning.averaging import mixing_ratios
from privopt.planning.whitening import SHARE, WhiteningRule

Floats = NDArray[np.float64]


def varied(
    cell: Cell,
    *,
    strength: float | None = None,
    noise: float = 1.0,
    clip: float = 1.0,
    pace: float = 1.0,
    share: float = SHARE,
) -> Floats:
    """Whitened descent as landed, with parts of it changed; w, (seeds, d). Without arguments it is `landed`.

    Args:
        cell: the cell, of one output.
        strength: of the ridge on the columns that have one, instead of the default's; the floor follows it.
        noise: factor of the gradients' noise; 0 takes it away. Below 1 it is no private rule.
        clip: factor of the clip. The noise grows with it unless `noise` is 0.
        pace: factor of T.
        share: of mu^2 for the second moment.
    Raises:
        ValueError: more than one output.
    """
    if cell.outputs > 1:
        raise ValueError("only models with one output are taken apart")
    rule = WhiteningRule.of(cell.instance, share)
    steps, landed_ridge = max(1, round(pace * rule.steps())), rule.ridge
    if strength is not None:
        rule = replace(rule, ridge=strength, least_floor=rule.gram_noise * math.sqrt(rule.width / 2.0))
    mapped, coordinates, _, _ = whitened(cell, rule, share)
    limit = clip * np.asarray([one.clip for one in coordinates])
    sigma = noise * math.sqrt(steps) * cell.noise_of_one(limit, 1.0 - share)[:, None]
    lengths = np.asarray([[1.0 / (one.smoothness + one.ridge_smoothness)] for one in coordinates])
    factor = 1.0 if strength is None else strength / landed_ridge if landed_ridge > 0 else 0.0

    generator = cell.generator("steps")
    params = at = average = cell.start()
    for ratio in mixing_ratios(rule.constants.returns, steps):
        gradient = cell.gradients(mapped, at, limit, balanced=coordinates[0].balanced)
        gradient = gradient + sigma * generator.standard_normal(params.shape)
        gradient = gradient + factor * cell.ridge_gradient(mapped, at)
        moved = at - lengths * gradient
        at = moved + coordinates[0].momentum * (moved - params)
        params = moved
        average = average + ratio * (params - average)
    return outward(mapped, average)


def noise_ridge(cell: Cell, ratio: float, *, share: float = SHARE) -> Floats:
    """The landed descent with a ridge of `ratio` times the noise scale of the released moment; w, (seeds, d)."""
    return varied(cell, strength=ratio * WhiteningRule.of(cell.instance, share).gram_noise, share=share)
