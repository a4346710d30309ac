"""What theory promises of private accelerated descent on a convex problem, and the steps that balance its two terms.

Source:
    Wang, Ye, Xu 2017, Theorem 5.4, with noise in both of its steps and its constants worked out.
"""

import math


def accelerated_bound(
    *, smoothness: float, distance: float, steps: int, noise: float, parameters: int
) -> float:
    """Expected excess after T steps: `4 L W^2 / (T + 1)^2 + T (T + 3) s^2 p / (6 L)`.

    Args:
        smoothness: L of the mean loss.
        distance: W, from the start to the optimum.
        steps: T.
        noise: s, standard deviation of one gradient's noise a coordinate, had the whole budget bought that one.
        parameters: p.
    """
    optimisation = 4.0 * smoothness * distance**2 / (steps + 1) ** 2
    privacy = steps * (steps + 3) * noise**2 * parameters / (6.0 * smoothness)
    return optimisation + privacy


def balanced_steps(*, smoothness: float, distance: float, noise: float, parameters: int) -> float:
    """The T that about minimises `accelerated_bound`: `(24 L^2 W^2 / (s^2 p))^(1/4)`; infinite without noise."""
    spread = noise**2 * parameters
    return math.inf if spread == 0 else (24.0 * smoothness**2 * distance**2 / spread) ** 0.25
