"""Permute-and-flip: a single selection under pure privacy, never worse than the exponential mechanism's."""

import math
from dataclasses import dataclass

import numpy as np

from privopt.ledger.events import Event, NonPrivateEvent, PureEvent
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.mechanisms.noisy_choice import choice_exponent


@dataclass(frozen=True)
class PermuteAndFlip(ExponentialMechanism):
    """Choose the index with the largest epsilon * score_i / sensitivity + E_i, E_i exponential with mean 1.

    The sensitivity is the range by which one unit moves the scores, as in `ExponentialMechanism`. At the same pure
    epsilon the chosen score is, in expectation, at least as good, its shortfall between half and all of that
    mechanism's. It is for a final selection with delta = 0 only: it is not bounded range, so that several selections
    cost less with the exponential mechanism, and its choices are no unbiased draws from a softmax.

    Args:
        epsilon: the pure epsilon of one choice; `math.inf` takes the best score and protects nobody.
    Privacy:
        Pure epsilon-DP. A constant added to all scores changes no choice, so scores of range sensitivity D may be
        centred to move by at most D / 2 in either direction, and permute-and-flip with exp(epsilon score / (2 D / 2))
        is epsilon-DP. The largest of the scores with exponential noise has the same law; on integers, as it is drawn,
        `noisy_choice` shows the same without it.
    Source:
        McKenna and Sheldon 2020, theorem 1; Ding, Kifer, Steinke, Wang, Xiao, Zhang 2021 (exponential noise).
    """

    def event(self) -> Event:
        """Pure privacy, or a choice that nothing protects."""
        return PureEvent(self.epsilon) if math.isfinite(self.epsilon) else NonPrivateEvent()

    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Exponential noise of scale 1: the size of a Laplace variable."""
        if noise.exact:
            return np.abs(noise.rounded_laplace(shape, choice_exponent(self.epsilon)))
        return np.exp(-noise.gumbel(shape))
