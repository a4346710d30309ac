"""How far gradients of the data's mean loss can be from those of the distribution that the records come from."""

import math

import numpy as np

from privopt.problems.ball import smoothing_constant


def generalization_gap(
    *, n: int, d: int, lipschitz: float, reach: float, smoothing: float, failure: float
) -> float:
    """How far the gradients of the smoothed mean loss over n records can be from those of their distribution's mean.

    With probability at least 1 - zeta, at all points within R of the start at once,

        min over nu of (L / sqrt(n)) (1 + sqrt(2 (d ln(1 + 2 R / nu) + ln(1 / zeta)))) + 2 kappa_d L nu / alpha.

    So a point that is (alpha, b)-stationary for the smoothed loss of the data is (2 alpha, b + gap)-stationary for the
    mean loss of the population. Proof: bounded differences at one point, a net of width nu, and both gradients
    kappa_d L / alpha-Lipschitz. It needs alpha > 0. The paper's Proposition 5.1, which does without smoothing, is false
    for Lipschitz losses in general: let f(x; record) be the integral of independent signs, +1 with probability 3/4, on
    cells of width alpha 4^-n / n of the line. The population's slope is 1/2, yet some cell of every ball has only signs
    of -1 in the data, and the Goldstein norm of the data's mean loss is 0.

    Args:
        n: records, drawn independently.
        d: parameters.
        lipschitz: L of one record's loss.
        reach: R, at least the sum of all steps' lengths.
        smoothing: alpha, the radius of the smoothing ball, positive.
        failure: zeta in (0, 1).
    Source:
        Ours, in place of Kornowski, Liu, Talwar 2024, Proposition 5.1.
    """
    if not (smoothing > 0 and reach >= 0 and 0 < failure < 1):
        raise ValueError(
            f"smoothing must be positive, reach at least 0 and failure in (0, 1), got {smoothing!r}, {reach!r} and "
            f"{failure!r}: without smoothing no such bound holds for Lipschitz losses."
        )
    kappa = smoothing_constant(d)
    widths = smoothing / (kappa * math.sqrt(n)) * np.geomspace(1e-3, 1e3, 4001)
    spread = 2.0 * (d * np.log1p(2.0 * reach / widths) + math.log(1.0 / failure))
    gaps = lipschitz / math.sqrt(n) * (1.0 + np.sqrt(spread)) + 2.0 * kappa * lipschitz * widths / smoothing
    return float(np.min(gaps))
