"""Settings of whitened user-level descent from public numbers and the released second moment.

The coordinates are those of `planning.whitening`, from the second moment in which every user counts once. In them, with
phi'' the curvature and C the steepest slope of the loss, r the length of a typical mapped row, h the released
eigenvalues, f the floor, lam the ridge, m the typical number of records of a user and N0 the noise of one mean
(`planning.users`):

    first clip      C_0 = C r max(1/20, m^-1/2) / 2: half of how far users' averages of m records are apart
    travel          A = D / (N0 C_0), what eta T / (1 - theta) may add up to: where the bias D^2 / A and the noise
                    (N0 C_0)^2 A of averaged descent balance. D is the spread of the optimum's predictions: 4 for
                    odds, less for losses of targets in [-1, 1]
    steps           T = A (1 - theta) phi'' / 1.5 at the bound on r and at m = 10, between 8 and 100, so that the plan
                    is fixed
    step size       at most 1.5 over the largest curvature in v, max_j (phi'' h_j + lam) / (h_j + f); momentum 1/2

Counts are relative to how large they were released to be, as in `planning.counts`: with m the mean and q the large
counts, the curvature is m, the slope `2 sqrt(m (q - m))`, twice the standard deviation of a count, the longest step
0.5 / (m + kappa), and kappa the anchor's strength around log m, from the noise of one mean at the first clip.

The default ridge is 1e-4 R^2, R that of the second moment, less where N0 is below 0.002. All of it concerns utility
only. Chosen on movietweetings, randhie and generated users at epsilon 1 and 3, see docs/benchmarks-users.md, and D by
the test loss of logistic, squared and Poisson fits by user on the tables for choosing at epsilon 0.1 to 3.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.counts import HURRY, RELATIVE, SPREAD, CountsRule, Level
from privopt.planning.task import Instance
from privopt.planning.user_gradient_descent import MOMENTUM, STEP_FACTOR, spread
from privopt.planning.users import LOGISTIC_DISTANCE, one_shot_noise
from privopt.planning.whitening import (
    NOISELESS_MOMENTUM,
    NOISELESS_STEPS,
    SHARE,
    LossConstants,
    WhiteningRule,
)

DISTANCE = 4.0  # D of the logistic loss
PLANNED_RECORDS = 10.0  # m of the steps: more of them, where people have more records, only add noise
FEWEST_STEPS, MOST_STEPS = 8, 100
RIDGE, RIDGE_NOISE = 1e-4, 0.002
USER_SLOPE = 2.0  # of counts, over their standard deviation
LEAST_VARIANCE = 0.5  # of counts, over the square of their mean


@dataclass(frozen=True, kw_only=True)
class UserWhiteningRule:
    """Everything about a whitened user-level problem that is known before, or follows from, the second moment.

    Attributes:
        whitening: the rule of the coordinates.
        noise: N0, of everything but the second moment's share.
        typical: m.
        distance: D.
    """

    whitening: WhiteningRule
    noise: float
    typical: float
    distance: float

    @classmethod
    def of(
        cls, instance: Instance, share: float, *, constants: LossConstants | None = None, beside: float = 0.0
    ) -> "UserWhiteningRule":
        """The rule for a problem and a budget, of which the second moment gets a share; see `WhiteningRule.of`."""
        whitening = WhiteningRule.of(instance, share, constants=constants, beside=beside)
        guess = descent_theory.guess(instance)
        full = whitening.gram_noise * math.sqrt(whitening.width / 2.0) / whitening.row_bound**2
        return cls(
            whitening=whitening.with_floor(full),  # a lower floor was measured for records only
            noise=one_shot_noise(instance) / math.sqrt(1.0 - share - beside),
            typical=instance.public.typical_records,
            distance=DISTANCE * guess.travel * guess.slope / LOGISTIC_DISTANCE,
        )

    @property
    def reach(self) -> float:
        """D / N0; infinite without noise."""
        return self.distance / self.noise if self.noise > 0 else math.inf

    def clip(self, signal: float) -> float:
        """C_0 for rows of a typical length; infinite without noise."""
        if self.noise == 0:
            return math.inf
        return self.whitening.constants.slope * max(signal, 1e-6) * spread(self.typical)

    def steps(self) -> int:
        """T, from public numbers alone."""
        if self.noise == 0:
            return NOISELESS_STEPS
        clip = self.whitening.constants.slope * self.whitening.most_signal * spread(PLANNED_RECORDS)
        travel = self.reach / clip
        wanted = travel * (1.0 - MOMENTUM) * self.whitening.constants.curvature / STEP_FACTOR
        return min(max(round(wanted), FEWEST_STEPS), MOST_STEPS)

    def fields(self, inner: Any) -> dict[str, Any]:
        """What is set of the descent where it was left open."""
        found = {"steps": self.steps(), "returns": "settled", "reach": self.reach if self.noise > 0 else None}
        return {name: value for name, value in found.items() if not inner.is_set(name)}

    def coordinates(self, released_moment: Array | NDArray[np.float64]) -> Coordinates:
        """The coordinates of a released second moment (d, d). Post-processing."""
        whitening = self.whitening
        rows = whitening.directions(released_moment)
        curved = whitening.constants.curvature * rows.damping + rows.ridge(whitening.ridge)
        stretch = float(np.min(rows.scale)) ** -0.5
        return self._coordinates(rows.map(), stretch, rows.signal, float(np.max(curved)))

    def planned(self) -> Coordinates:
        """The coordinates of no data, with the lengths of the longest typical row: for plans."""
        whitening = self.whitening
        matrix = np.eye(whitening.width) * whitening.floor**-0.5
        return self._coordinates(
            matrix, whitening.floor**-0.5, whitening.most_signal, whitening.constants.curvature
        )

    def _coordinates(
        self, matrix: NDArray[np.float64], stretch: float, signal: float, curvature: float
    ) -> Coordinates:
        return Coordinates(
            matrix=matrix,
            stretch=stretch,
            clip=self.clip(signal),
            smoothness=curvature / (1.0 if self.noise == 0 else STEP_FACTOR),
            ridge_smoothness=0.0,
            momentum=NOISELESS_MOMENTUM if self.noise == 0 else MOMENTUM,
        )


@dataclass(frozen=True, kw_only=True)
class UserCountsRule:
    """The rule for counts by user: everything is relative to how large the counts were released to be.

    Attributes:
        users: the rule in units of the mean count.
        counts: of the start.
    """

    users: UserWhiteningRule
    counts: CountsRule

    @classmethod
    def of(cls, instance: Instance, share: float, level_share: float) -> "UserCountsRule":
        """The rule for a problem and a budget, of which the second moment and the magnitudes get their shares."""
        users = UserWhiteningRule.of(instance, share, constants=RELATIVE, beside=level_share)
        return cls(users=users, counts=CountsRule.of(instance, share, level_share))

    @property
    def largest(self) -> float:
        """The public bound on a count."""
        return self.counts.largest

    def begin(self, start: Array, found: Level) -> Array:
        """As for records."""
        return self.counts.begin(start, found)

    def coordinates(
        self, released_moment: Array | NDArray[np.float64], found: Level, start: Array
    ) -> Coordinates:
        """The coordinates of a released second moment (d, d), anchored at a start in w. Post-processing."""
        plain, rows = self.users.coordinates(released_moment), self.users.whitening.rows(released_moment)
        typical = math.sqrt(found.mean * max(found.large - found.mean, LEAST_VARIANCE * found.mean))
        clip = plain.clip * USER_SLOPE * typical
        noise = self.users.noise / math.sqrt(self.users.whitening.parameters) * clip
        pull = noise**2 * rows.signal**2 / (SPREAD * found.mean)
        curvature = found.mean + float(np.max(rows.ridge(self.users.whitening.ridge)))
        return replace(plain, clip=clip, smoothness=(curvature + pull) / HURRY, pull=pull, anchor=start)


def default_user_ridge(instance: Instance) -> float:
    """A ridge strength for users' mean loss: it damps what noise does to directions that the data say little about."""
    noise = one_shot_noise(instance)
    bound = WhiteningRule.of(instance, SHARE).row_bound
    return RIDGE * bound**2 * min(1.0, noise / RIDGE_NOISE)
