"""How far apart the logistic gradients of two records can be at one public point: less than twice the largest slope.

Take a record with a row a, `|a| <= R`, and a target y in [-1, 1], at parameters w. With `b = -y a / R` and `rho = R
|w|`, which no prediction exceeds, its gradient is R times

    gamma(b) = sigmoid(rho x) b,    |b| <= 1,   x = the component of b along w.

All of these make up the set G(rho). It is star-shaped around gamma(0) = 0, which an absent record counts as: from b to
0, the length of gamma takes all values down to 0. Hence a clipped gradient, and a user's average of gradients with
weights that sum to at most 1, lie in the convex hull of G, whose largest norm and diameter are those of G:

    norm      sigmoid(rho)
    diameter  D(rho) = 2 max over x in [0, 1] of h(x),   h(x) = sqrt(1 - x^2) sigmoid(rho x).

Proof of the diameter. Let (x, p) and (x', p') be two b's, split along w and across, s = sigmoid(rho x), s' likewise.
The squared distance is `(s x - s' x')^2 + |s p - s' p'|^2`, at most `(s x - s' x')^2 + (h(x) + h(x'))^2`, with equality
where p and p' are as long as they can be and opposite: so a plane suffices, and both points are on the curve
`(f(x), h(x))`, f(x) = s x, the second one mirrored. To show: d^2 = (f - f')^2 + (h + h')^2 <= 4 max h^2.

1. With x = cos t, x' = cos t' and m = (t + t') / 2, d^2 = (s + s')^2 sin^2 m + (s - s')^2 cos^2 m. Turning the signs of
   both x and x' turns s + s' into 2 - (s + s') and changes nothing else, so let s + s' >= 1, that is x + x' >= 0. Let
   x < x' (x = x' gives d = 2 h); then x' > 0, and f < f' since f increases on [0, 1] and is negative before.
2. Let (z, 0) be as far from (f, h) as from (f', h'), at distance r: z = (s'^2 - s^2) / (2 (f' - f)) > 0, which is
   (f + f') / 2 + (h'^2 - h^2) / (2 (f' - f)). If z > f' then (f' - f)^2 < h'^2 - h^2, so
   d^2 < 2 h'^2 + 2 h h' <= 4 h'^2. If z < f, alike, d^2 <= 4 h^2.
3. Otherwise f <= z <= f', and f passes z at some x0 between x and x'. The squared distance of (f, h) from (z, 0) is
   z^2 + q(rho x), q(v) = sigmoid(v) (sigmoid(v) - k v), k = 2 z / rho > 0. The sign of q' is that of
   2 sigmoid(v) sigmoid(-v) - k (1 + v sigmoid(-v)). Where 1 + v sigmoid(-v) <= 0, which is below some v0, it is
   positive; above v0 it is that of 2 / N(v) - k, N(v) = 2 + v + e^v + (1 + v) e^-v, and N increases, as
   N' = 1 + e^v - v e^-v > 0. So q rises, then falls: at x0 it is at least its common value at x and x', and h(x0) >= r.
   By Pythagoras r^2 = ((f + f') / 2 - z)^2 + d^2 / 4, so h(x0) >= d / 2. (For rho = 0, d <= 1 = 2 h(0).)

D does not decrease with rho, since h(x) does not for x >= 0.

Source:
    Ours.
"""

import math
from typing import Any

import numpy as np

from privopt.later import is_jax, jax, jnp
from privopt.problems.glm import GLMLoss, Loss
from privopt.problems.losses import Capped, Huber, Logistic, Poisson, Quantile, Ramp, SmoothedHinge, Softmax

# Straight lines between these points lie above D (the points are raised where D is concave), by less than 0.1 %.
PREDICTION_BOUNDS = np.array([2.0 * math.sinh(k / 14.0) for k in range(56)])
DIAMETERS = np.array(
    [
        *(1.00001, 1.00255, 1.01003, 1.02209, 1.03824, 1.05793, 1.08067, 1.10599, 1.13348, 1.16279),
        *(1.19364, 1.22570, 1.25866, 1.29229, 1.32632, 1.36051, 1.39464, 1.42849, 1.46187, 1.49459),
        *(1.52648, 1.55742, 1.58727, 1.61596, 1.64339, 1.66953, 1.69433, 1.71778, 1.73987, 1.76062),
        *(1.78006, 1.79821, 1.81513, 1.83085, 1.84542, 1.85891, 1.87137, 1.88286, 1.89343, 1.90315),
        *(1.91206, 1.92022, 1.92769, 1.93452, 1.94075, 1.94643, 1.95160, 1.95630, 1.96058, 1.96446),
        *(1.96797, 1.97116, 1.97405, 1.97666, 1.97902, 1.98116),
    ]
)


# Their slopes keep within `lipschitz` for every finite target, on every path that computes them, by the formulas of
# `problems.losses`. A user's own loss, a subclass of these included, makes claims instead.
OF_BOUNDED_SLOPE = (Logistic, Huber, SmoothedHinge, Quantile, Poisson, Softmax, Ramp, Capped)


def is_bounded(loss: Loss) -> bool:
    """Whether the loss is one of the library's whose slope is bounded; a subclass is not, whatever it says."""
    return type(loss) in OF_BOUNDED_SLOPE


def norm_bound(loss: GLMLoss, prediction_bound: Any) -> Any:
    """A bound on one record's gradient norm at a point, in units of the row bound R.

    Args:
        loss: one for which `is_bounded` holds.
        prediction_bound: rho, R times the (Frobenius) norm of the parameters, so that no prediction is larger; a traced
            array in a compiled loop, else a number, which is answered by a number.
    Privacy:
        For all rows of norm at most R and all targets. It is `lipschitz`; a smaller one pays for the logistic loss
        only. Huber, quantile and the capped losses reach their largest slope at every point for some target, the ramp
        for a row across w, and the hinge unless all margins are small; softmax is shorter near 0, sqrt(1 - 1/K) in
        place of sqrt(2), but not below the clips it is used with.
    """
    if isinstance(loss, Logistic):
        return logistic_norm(prediction_bound)
    if is_jax(prediction_bound):
        return jnp.full_like(prediction_bound, loss.lipschitz)
    return loss.lipschitz


def diameter_bound(loss: GLMLoss, prediction_bound: Any) -> Any:
    """A bound on the distance of two records' gradients at a point, or of one's from 0; arguments as `norm_bound`."""
    if isinstance(loss, Logistic):
        return logistic_diameter(prediction_bound)
    return 2.0 * norm_bound(loss, prediction_bound)


def logistic_norm(prediction_bound: Any) -> Any:
    """The largest logistic gradient, in units of R; 1 where the bound is far or no number."""
    if is_jax(prediction_bound):
        return jnp.where(prediction_bound <= PREDICTION_BOUNDS[-1], jax.nn.sigmoid(prediction_bound), 1.0)
    return 1.0 / (1.0 + math.exp(-prediction_bound)) if prediction_bound <= PREDICTION_BOUNDS[-1] else 1.0


def logistic_diameter(prediction_bound: Any) -> Any:
    """D(rho), in units of R, rounded up; 2 where the bound is far or no number."""
    if is_jax(prediction_bound):
        return jnp.where(
            prediction_bound <= PREDICTION_BOUNDS[-1],
            jnp.interp(prediction_bound, PREDICTION_BOUNDS, DIAMETERS),
            2.0,
        )
    return (
        float(np.interp(prediction_bound, PREDICTION_BOUNDS, DIAMETERS))
        if prediction_bound <= PREDICTION_BOUNDS[-1]
        else 2.0
    )
