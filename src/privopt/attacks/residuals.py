"""What is wrong with Gaussian noise, by name: used again, not independent, too small."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from privopt.attacks.confidence import deviation_bounds

FALSE_ALARM = 1e-6  # of each of the two statistical tests
_FEWEST = 2  # coordinates from which on equal noise is no chance
_SLACK = 1e-4  # of the deviation: rounding to a lattice


def noise_faults(runs: Sequence[Sequence[NDArray[np.float64]]]) -> Iterator[str]:
    """What is wrong, in words that begin with its name.

    Args:
        runs: for each run, the noise of its Gaussian releases in order, in standard deviations that are claimed.
    Privacy:
        Noise that is right is accused with probability 2e-6 at most: what follows another release is projected on its
        direction, which gives independent standard normals whose sum is tested; all squares are tested by chi-square.
        That two independent draws of two coordinates agree in every bit never happens.
    """
    drawn = [noise for run in runs for noise in run]
    if not drawn:
        return
    wide = [noise.tobytes() for noise in drawn if noise.size >= _FEWEST]
    if len(set(wide)) < len(wide):
        yield "noise reused: two releases have the same noise, and their difference is released without any"
        return
    along = [
        float(after @ before) / float(np.linalg.norm(before))
        for run in runs
        for before, after in pairwise(run)
        if before.shape == after.shape and before.any()
    ]
    if along and abs(sum(along)) / math.sqrt(len(along)) > -float(norm.ppf(FALSE_ALARM / 2)):
        yield "noise not independent: that of a release resembles that of the release before"
        return
    squares = sum(float(noise @ noise) for noise in drawn)
    _, high = deviation_bounds(squares, sum(noise.size for noise in drawn), 1 - 2 * FALSE_ALARM)
    if high < 1 - _SLACK:
        yield f"noise too small: it is at most {high:.3g} times what is claimed"
