"""A candidate for the default with two classes: a ridge as small as the noise, and half a Newton step at the end.

Measured on the choosing half, four fifths of what the landed rule leaves at its own T is no noise at all: it is what
the default ridge and the few steps leave undone. Two things change, and nothing else: second moment, floor, map, clip,
T, step size, momentum, weights of the iterates and prices are those of `panel_rules.landed`.

1. The ridge. Its strength follows the noise of the released moment instead of 1 / n,

    lambda = 0.015 sigma_G,    sigma_G = sqrt(factor) R^2 / (n mu sqrt(q)),

   so that in v, where it is lambda / (h_j + f) with f = sigma_G sqrt(d / 2), its strength in directions that the
   moment says nothing of is 0.015 sqrt(2 / d) at every budget. A ridge that the user sets stays as it is.

2. The end. The T released gradients y_t (ridge included) at the points u_t have plain means y, u. With the model
   A_j = max(D_j, 0.05) / 4 + lambda / (h_j + f), D_j = h_j / (h_j + f), of the curvature in the eigenbasis of the
   released moment, y = A (u - v*) + N(0, s1^2): all T releases count alike, whichever points they were made at,

    s1 = factor cap r / (n mu sqrt(1 - q)),    v_newton = start + (A + s1)^-1 (A (u - start) - y),
    v = (v_average + v_newton) / 2,            w = B v.

   The average has weights min(t + 1, 8)^3, so at T = 4 it uses half of the releases' information, and has less error
   where the loss is far from quadratic; the Newton end has the rest. s1 in units of curvature is a ridge (signals of
   size 1 in v); half or twice of it changes the mean by less than 0.01.

Privacy: post-processing. lambda, s1 and T are public or follow from the released moment; means are of releases.

Edge cases: T = 1: u is the start, y its released gradient. No signal: both ends stay near the start. Moment singular or
not finite: h from the trace, or all equal, as landed; A is at least 0.0125, so nothing is divided by zero. No noise:
s1 = 0 and v_average alone is returned (500 steps have arrived). Values that are not finite stop the descent as now. No
constant column: nothing changes. More than two classes are refused: measured for two only.
"""

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_rules import outward, whitened
from privopt.planning.averaging import mixing_ratios
from privopt.planning.whitening import SHARE, WhiteningRule

Floats = NDArray[np.float64]

RIDGE = 0.015  # of the noise of the released moment; .03 and min(.03, 1 / n) are as good in the mean
LEAST_SIGNAL = 0.05  # of D
NEWTON = 0.5  # the weight of the Newton end


def halfway(
    cell: Cell,
    *,
    ridge: float = RIDGE,
    newton: float = NEWTON,
    steps: int | None = None,
    share: float = SHARE,
) -> Floats:
    """Whitened descent with a ridge as small as the noise, and half a Newton step at the end, (seeds, d).

    Args:
        cell: the cell, of two classes.
        ridge: its strength over sigma_G.
        newton: the weight of the Newton end.
        steps: T, if not the landed rule's.
        share: of mu^2 for the second moment.
    Raises:
        ValueError: more than two classes.
    """
    if cell.outputs > 1:
        raise ValueError("the Newton end is for models with one output")
    rule = WhiteningRule.of(cell.instance, share)
    mapped, coordinates, spectrum, axes = whitened(cell, rule, share)
    steps = rule.steps() if steps is None else steps
    strength = ridge * rule.gram_noise * (cell.ridge > 0)
    scale = spectrum + rule.floor
    clip = np.asarray([one.clip for one in coordinates])
    noise = cell.noise_of_one(clip, 1.0 - share)[:, None]
    steepest = np.max(strength) / np.min(scale, axis=1, keepdims=True)
    step_size = np.asarray([[1.0 / one.smoothness] for one in coordinates]) * 0.25 / (0.25 + steepest)

    generator, start = cell.generator("steps"), cell.start()
    params = at = average = start
    point = gradient = np.zeros_like(start)
    for t, ratio in enumerate(mixing_ratios(rule.constants.returns, steps)):
        released = cell.gradients(mapped, at, clip, balanced=coordinates[0].balanced)
        released = released + noise * math.sqrt(steps) * generator.standard_normal(start.shape)
        outer = strength * outward(mapped, at)
        released = released + np.einsum("sji,sj->si", mapped.matrix, outer)
        point = point + (at - point) / (t + 1)
        gradient = gradient + (released - gradient) / (t + 1)
        moved = at - step_size * released
        at = moved + coordinates[0].momentum * (moved - params)
        params = moved
        average = average + ratio * (params - average)
    if rule.unit_noise == 0:
        return outward(mapped, average)
    bend = np.maximum(spectrum / scale, LEAST_SIGNAL) / 4.0 + np.max(strength) / scale
    along = np.einsum("sij,si->sj", axes, point - start)
    pull = bend * along - np.einsum("sij,si->sj", axes, gradient)
    end = start + np.einsum("sij,sj->si", axes, pull / (bend + noise))
    return outward(mapped, (1.0 - newton) * average + newton * end)
