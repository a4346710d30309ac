"""What a Gaussian release on a secret Poisson sample says, to somebody who knows which others were drawn.

The record in question is in the sample with the sampling rate, so the release is from a mixture on either side. To know
the others only helps the attacker, and the guarantee holds against that as well: units are drawn independently.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from privopt.attacks.laws import Law, Lean
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource

Values = NDArray[np.float64]
_CELLS = 4000
_REACH = 12.0  # standard deviations beyond the means: what is farther away is never drawn, which only lowers a bound
_IN_LINE = 1e-9  # relative


def sampled_law(
    mechanism: Gaussian,
    values: tuple[Values, Values, Values],
    rate: float,
    sensitivity: float,
    noise: NoiseSource,
    lean: Lean,
) -> Law | None:
    """Answer for the left side; None where the three values are not in line, which makes it no question of one number.

    Args:
        mechanism: with its noise on.
        values: without the record in question; with the left one; with the right one.
        rate: with which each record is drawn.
        sensitivity: as stated, above 0.
        noise: what the mechanism draws from.
        lean: gives t of `laws` for the spread of the answer.
    """
    without, left, right = (np.ravel(value) for value in values)
    scale = mechanism.noise_multiplier * sensitivity
    apart = float(np.linalg.norm(left - right))
    released = np.asarray(mechanism.release(noise, values[0], sensitivity), np.float64)
    if apart == 0:
        return Law(released=released, log_ratio=0.0, log_weight=0.0, spread=0.0)
    axis = (left - right) / apart
    places = [float((side - without) @ axis) for side in (left, right)]
    beside = [
        float(np.linalg.norm(side - without - at * axis))
        for side, at in zip((left, right), places, strict=True)
    ]
    if max(beside) > _IN_LINE * max(apart, *map(abs, places)):
        return None
    at_left, at_right = (place / scale for place in places)
    edges = np.linspace(
        min(0.0, at_left, at_right) - _REACH, max(0.0, at_left, at_right) + _REACH, _CELLS + 1
    )
    chances = [_log_chances(edges, at, rate) for at in (at_left, at_right)]
    ratios = chances[0] - chances[1]
    spread = 2 * float(np.exp(chances[0]) @ ratios)
    leaning = chances[0] + lean(spread) * ratios
    leaning = np.exp(leaning - np.logaddexp.reduce(leaning))
    cell = min(int(np.searchsorted(np.cumsum(leaning), float(noise.uniform(())))), _CELLS - 1)
    width = edges[1] - edges[0]
    place = float(edges[cell] + width * noise.uniform(()))
    log_left, log_right = (_log_density(place, at, rate) for at in (at_left, at_right))
    along = place * scale - float((np.ravel(released) - without) @ axis)
    return Law(
        released=released + np.reshape(along * axis, released.shape),
        log_ratio=log_left - log_right,
        log_weight=log_left - math.log(float(leaning[cell]) / width),
        spread=spread,
    )


def _log_density(place: float, at: float, rate: float) -> float:
    """Of the mixture of unit normals around 0 and around `at`."""
    parts = (math.log1p(-rate) - place**2 / 2, math.log(rate) - (place - at) ** 2 / 2)
    return float(np.logaddexp(*parts)) - math.log(2 * math.pi) / 2


def _log_chances(edges: Values, at: float, rate: float) -> Values:
    """The logarithms of the chances of the cells, summing to nearly 1."""
    cells = [
        math.log(share) + _log_between(edges[:-1] - mean, edges[1:] - mean)
        for share, mean in ((1 - rate, 0.0), (rate, at))
    ]
    return np.logaddexp(*cells)


def _log_between(low: Values, high: Values) -> Values:
    """The logarithm of the chance of a normal to be between, from the nearer tail."""
    near, far = np.where(high > 0, -low, high), np.where(high > 0, -high, low)
    upper = np.asarray(log_ndtr(near), np.float64)
    return upper + np.log(-np.expm1(np.asarray(log_ndtr(far), np.float64) - upper))
