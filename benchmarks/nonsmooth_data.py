"""Problems whose losses are neither smooth nor convex: visits to a doctor with a capped loss, and noisy labels.

`randhie` is the RAND health insurance experiment as statsmodels ships it: nine features over their public ranges and an
intercept, rows halved and cut to norm 1; predicted is log(1 + visits), by the absolute loss, capped at 1.5.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.bounded_losses import Ramp
from privopt.problems.problem import Problem

RANGES = {
    "logc": 6.0,
    "idp": 1.0,
    "lpi": 8.0,
    "fmde": 10.0,
    "physlm": 1.0,
    "disea": 60.0,
    "hlthg": 1.0,
    "hlthf": 1.0,
    "hlthp": 1.0,
}
CAP = 1.5
FLIPPED = 0.2


@dataclass(frozen=True, kw_only=True)
class Data:
    """Records and the problem on them; rows have norm at most 1."""

    name: str
    rows: NDArray[np.float64]
    targets: NDArray[np.float64]
    problem: Problem
    distance: float  # of a good point from 0, a guess made without the data

    @property
    def longest(self) -> float:
        """The longest gradient of a record: the steepest slope of the loss, since no row is longer than 1."""
        return self.problem.loss.lipschitz

    def units(self) -> Units:
        """The records, replaced one at a time."""
        return Units.from_arrays(self.rows, self.targets, row_bound=1.0, relation="replace-one")

    def loss(self, params: Any, problem: Problem | None = None) -> float:
        """The mean loss over all records: not private."""
        with double_precision():
            return float((problem or self.problem).objective(np.asarray(params), self.rows, self.targets))

    def gradient(self, params: NDArray[np.float64]) -> NDArray[np.float64]:
        """The gradient of the mean loss: not private."""
        loss: Any = self.problem.loss
        slopes = np.asarray(loss.slope(self.rows @ params, self.targets), np.float64)
        return self.rows.T @ slopes / len(self.rows)


def randhie(shared: Path, rows: int | None = None) -> Data:
    """Visits to a doctor; the first `rows` of a public shuffle."""
    table = pq.read_table(Path(shared) / "randhie.parquet", columns=[*RANGES, "mdvis"])
    columns = [table.column(name).to_numpy().astype(np.float64) / wide for name, wide in RANGES.items()]
    features = np.column_stack([*columns, np.ones(table.num_rows)])
    features /= 2.0 * np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True) / 2.0)
    targets = np.log1p(table.column("mdvis").to_numpy().astype(np.float64))
    kept = slice(None) if rows is None else np.random.default_rng(0).permutation(len(targets))[:rows]
    problem = Problem(losses.capped(CAP, width=0.0))
    return Data(name="randhie", rows=features[kept], targets=targets[kept], problem=problem, distance=4.0)


def flipped(n: int, d: int = 10, seed: int = 0) -> Data:
    """Labels of a random half-space, a fifth of them flipped, under the ramp loss; rows of norm 1 at most.

    Flips are made where the score is largest, so that a convex loss follows them.
    """
    generator = np.random.default_rng([seed, n, d])
    rows = generator.normal(size=(n, d))
    rows /= np.maximum(np.sqrt(d), np.linalg.norm(rows, axis=1, keepdims=True))
    truth = generator.normal(size=d)
    scores = rows @ truth
    labels = np.where(scores > 0, 1.0, -1.0)
    surest = np.argsort(-scores * np.where(generator.random(n) < 0.5, 1.0, 0.0))[: int(FLIPPED * n)]
    labels[surest] *= -1.0
    problem = Problem(Ramp(width=0.0))
    return Data(
        name=f"flipped, n = {n}", rows=rows, targets=labels, problem=problem, distance=np.sqrt(d) * 4.0
    )
