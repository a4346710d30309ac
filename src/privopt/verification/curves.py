"""Closed privacy curves in 50 digits: Gaussian noise, pure and zero-concentrated privacy.

Source:
    Balle, Wang 2018, theorem 8 (Gaussian); Canonne, Kamath, Steinke 2020, proposition 12 (zero-concentrated).
"""

from typing import Any

import mpmath

mp: Any = mpmath.mp.clone()  # a context of our own: whoever else uses mpmath keeps his precision
mp.dps = 50
mpf = mp.mpf
HALVINGS = 80
_FAR = 10**4


def gaussian_delta(mu: Any, epsilon: Any) -> Any:
    """The delta of Gaussian noise of sensitivity over deviation `mu`, at an epsilon of any sign; rounded up far out."""
    mu, epsilon = mpf(mu), mpf(epsilon)
    if mu == 0:
        return mpf(0) if epsilon >= 0 else 1 - mp.exp(epsilon)
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if abs(x) > _FAR:
        return mpf(1) if x < 0 else mp.exp(-x * x / 2) / 2
    # Beyond what mpmath evaluates, Mills' ratio is 1 / y within 1 / y^2; y = x + mu, so its e^epsilon cancels.
    far = mp.exp(-x * x / 2) / (y * mp.sqrt(2 * mp.pi))
    later = far if y > _FAR else mp.exp(epsilon) * mp.erfc(y / mp.sqrt(2)) / 2
    return mp.erfc(x / mp.sqrt(2)) / 2 - later


def zcdp_delta(rho: Any, epsilon: Any) -> Any:
    """The delta that rho-zCDP guarantees at an epsilon of at least 0.

    Any order gives a bound, so nothing rests on the search for the best one.
    """
    rho, epsilon = mpf(rho), mpf(epsilon)
    if rho == 0:
        return mpf(0)
    # The exponent's derivative in the order rises: rho (2 a - 1) - epsilon + log(1 - 1 / a).
    low, high = mpf(-200), mp.log(2 + 2 / rho + epsilon / rho)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        order = 1 + mp.exp(middle)
        rising = rho * (2 * order - 1) - epsilon + mp.log(1 - 1 / order) > 0
        low, high = (low, middle) if rising else (middle, high)
    order = 1 + mp.exp(high)
    exponent = (order - 1) * (order * rho - epsilon) + (order - 1) * mp.log(1 - 1 / order) - mp.log(order)
    return min(mpf(1), mp.exp(exponent))
