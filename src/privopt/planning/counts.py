"""Settings of whitened descent for counts: everything is relative to how large the counts were released to be.

The public bound on a count says little about its size. So `TargetMagnitudes` is released first. With s the noise of its
entries and m_k the mean by the entries kept before, at least s, entry k is left out unless it is above

    s sqrt(4 + 2 log max(1, 10 u_k s / m_k))

so that noise alone seldom adds more than a tenth of what was found below it, however large the bound. With what is left

    mean            m = sum_k u_k value_k
    large counts    q = sum_k u_k^2 value_k (3/4 from the second interval on) / m, about E y^2 / E y
    start           the constant column's coefficient is log m, so that descent begins at the best constant
    curvature       m, that of exp at the start
    slope           2 q
    anchor          a ridge around the start, in v, of strength kappa = m (s_1 / m)^2 D / 0.3: s_1 the noise of one
                    gradient that had the whole rest, D = sum h_j / (h_j + f). It is the posterior's where log-rates
                    have variance 0.3 around their mean, and keeps weak data near the constant.

The rest is the rule of `planning.whitening` for slope and curvature 1 in units of m:

    share           of mu^2 for the magnitudes (100 / (n mu))^2, at least 0.05 and at most half of what the second
                    moment leaves: their noise is relative to 1 / n
    noise excess    V = V_1 (2 q / m)^2, V_1 that of the rule
    cap             0.2 - 0.15 log10 V, between 0.4 and 1; the clip is cap * 2 q * r
    steps           0.5 V_1^-0.48 at the bound on r, between 4 and 100
    step size       0.5 / (m + kappa + lam |B|^2); momentum 0.5

The constants were chosen on the counts of the half of the panel that is there to choose on, and on made-up ones. All of
it concerns utility only.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.planning.coordinates import Coordinates
from privopt.planning.instance import Instance
from privopt.planning.whitening import LossConstants, WhiteningRule
from privopt.problems.losses import Poisson
from privopt.problems.magnitudes import interval_ends
from privopt.problems.problem import Problem

LEVEL_REACH, LEAST_LEVEL_SHARE = 100.0, 0.05
SIGNIFICANT = 2.0  # standard deviations of an entry whose noise is at most a tenth of the mean
FAINT = 0.1  # that tenth
FILLED = 0.75  # E y^2 / (u E y) of a count spread over (u / 2, u]
SLOPE = 2.0  # of the large counts
HURRY = 0.5
SPREAD = 0.3  # variance of log-rates around their mean
RELATIVE_SETTINGS = ("inner.clip", "inner.step_size", "inner.smoothness")  # of a plan: at a mean of 1
RELATIVE_TO_THE_MEAN = (
    "the clip and the step size of the plan are in units of the mean count, which no plan can know: the run releases "
    "it first, then clips in proportion to it and steps in inverse proportion."
)
RELATIVE = LossConstants(slope=1.0, curvature=1.0, cap=(0.2, 0.15, 0.4), pace=0.5)


class Level(NamedTuple):
    """How large counts are, as released: m and q."""

    mean: float
    large: float


def constant_column(problem: Problem) -> int | None:
    """The column of ones of a model of counts; None without one, and for other losses."""
    return problem.constant if isinstance(problem.loss, Poisson) else None


def level_share(instance: Instance, share: float) -> float:
    """The fraction of mu^2 for the magnitudes, from public numbers; 0 where their release is of no use.

    Args:
        instance: the problem and the budget.
        share: of mu^2 for the second moment; of the rest the magnitudes get no more than half.
    """
    if not instance.is_private or instance.public.by_user or constant_column(instance.problem) is None:
        return 0.0
    wanted = (LEVEL_REACH / (instance.public.n * instance.mu)) ** 2
    return min(max(wanted, LEAST_LEVEL_SHARE), 0.5 * (1.0 - share))


def level(released_magnitudes: Array | NDArray[np.float64], stddev: float, largest: float) -> Level:
    """m and q of released magnitudes; where all of them drown, the largest alone. Post-processing.

    Args:
        released_magnitudes: as `TargetMagnitudes` gives them, (k,).
        stddev: of the noise of an entry.
        largest: the public bound on a count.
    """
    ends = interval_ends(largest)
    values = np.nan_to_num(np.asarray(released_magnitudes, np.float64))
    kept, below = np.zeros_like(values), stddev
    for k, end in enumerate(ends):
        reach = math.log(max(1.0, end * stddev / (FAINT * below))) if stddev else 0.0
        if values[k] > stddev * math.sqrt(SIGNIFICANT**2 + 2.0 * reach):
            kept[k] = values[k]
            below = max(float(kept @ ends), stddev)
    if not np.any(kept > 0.0):
        kept[0] = max(float(np.max(values)), 0.1 * stddev, 1e-6)
    mean = min(float(kept @ ends), largest)
    shares = kept * ends / mean
    return Level(mean=mean, large=float(shares @ (ends * np.where(ends <= 1.0, 1.0, FILLED))))


@dataclass(frozen=True, kw_only=True)
class CountsRule:
    """Everything about whitened counts that is known before, or follows from, what is released of them.

    Attributes:
        whitening: the rule, in units of the mean count.
        column: of ones.
        largest: the public bound on a count.
    """

    whitening: WhiteningRule
    column: int
    largest: float

    @classmethod
    def of(cls, instance: Instance, share: float, level_share: float) -> "CountsRule":
        """The rule for a problem and a budget, of which the second moment and the magnitudes get their shares."""
        column, loss = constant_column(instance.problem), instance.problem.loss
        assert column is not None
        assert isinstance(loss, Poisson)
        rule = WhiteningRule.of(instance, share, constants=RELATIVE, beside=level_share)
        return cls(whitening=rule, column=column, largest=loss.max_count)

    def begin(self, start: Array, found: Level) -> Array:
        """Zeros with the logarithm of the mean in the constant column; another start stays as it is."""
        if np.any(np.asarray(start)):
            return start
        return jnp.asarray(start).at[self.column].set(math.log(found.mean))

    def coordinates(
        self, released_moment: Array | NDArray[np.float64], found: Level, start: Array
    ) -> Coordinates:
        """The coordinates of a released second moment (d, d), anchored at a start in w. Post-processing."""
        rule, slope = self.whitening, SLOPE * found.large
        plain = rule.coordinates(released_moment)
        assert plain.rows is not None
        signal = plain.rows.signal
        directions = signal**2
        clip = rule.cap(signal, slope / found.mean) * slope * max(signal, 1e-6)
        pull = (rule.unit_noise * clip) ** 2 * directions / (SPREAD * found.mean)
        return replace(
            plain,
            clip=clip,
            smoothness=(found.mean + pull) / HURRY,
            ridge_smoothness=float(np.max(plain.rows.ridge(rule.ridge))) / HURRY,
            pull=pull,
            anchor=start,
        )
