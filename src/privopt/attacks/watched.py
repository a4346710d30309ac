"""A run that is watched: of every Gaussian release, what it says for one data set against its neighbour.

The observer knows both data sets and asks which one it was. Given what was released before, a release is normal around
the value on either side, so the log-likelihood ratio of the whole transcript is the sum over its releases: no test of
any observer is stronger (Neyman, Pearson).
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.payer import Payer
from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.queries.base import ArgminQuery, PassQuery, Query, Scalar


class Watched(Audit):
    """Runs a solver on `left` and notes what each release would tell somebody who knows both sides.

    Attributes:
        log_ratios: of each Gaussian release on everybody, log-likelihood under `left` minus that under `right`, by the
            noise that is claimed.
        shifts: how far such a release moved, in standard deviations of the noise that is claimed.
        residuals: of each, what was released less the value on `left`, in those standard deviations.
        unwatched: the names of releases of any other kind.
    """

    def __init__(self, left: Units, right: Units, ledger: Payer, *, noise: NoiseSource | None = None) -> None:
        """Open the run; see `Audit`."""
        super().__init__(left, right, ledger, noise=noise)
        self.log_ratios: list[float] = []
        self.shifts: list[float] = []
        self.residuals: list[NDArray[np.float64]] = []
        self.unwatched: list[str] = []

    def _pair(self, left: LocalCurator, right: LocalCurator, ledger: Payer) -> Self:
        child = super()._pair(left, right, ledger)
        child.log_ratios, child.shifts = self.log_ratios, self.shifts
        child.residuals, child.unwatched = self.residuals, self.unwatched
        return child

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        if (
            not isinstance(mechanism, Gaussian)
            or not isinstance(sampling, EveryUnit)
            or isinstance(query, ArgminQuery | PassQuery)
            or mechanism.noise_multiplier == 0
        ):
            self.unwatched.append(query.name)
            return super()._answer(query, mechanism, sampling, sensitivity)
        query = self._left.with_lots(query)
        left, right = (
            np.asarray(side.private_value(query, sampling, None), np.float64)
            for side in (self._left, self._right)
        )
        self._note(query, float(np.linalg.norm(left - right)), float(sensitivity))
        released = np.asarray(mechanism.release(self._noise, left, float(sensitivity)), np.float64)
        scale = mechanism.noise_multiplier * float(sensitivity)
        if scale > 0:
            residual, shift = np.ravel(released - left) / scale, np.ravel(left - right) / scale
            length = float(np.linalg.norm(shift))
            self.log_ratios.append(float(residual @ shift) + length**2 / 2)
            self.shifts.append(length)
            self.residuals.append(residual)
        return released
