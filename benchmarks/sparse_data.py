"""Logistic problems on an l1 ball with features in [-1, 1]: generated ones, and parities of real bits.

    generated   a_ij = sign(N(0, 1) + c c_i), c_i ~ N(0, 1) common to the row, c = 0.15; true weights +-R/8 on 8 random
                coordinates, R = 4; labels logistic in <w, a_i>
    parities    13 bits of randhie (statsmodels) as signs, the constant, and all products of two and three of them: 378
                features; the label says whether there was any visit; R = 3

Every entry of a row is 1 or -1, so the rows have the length sqrt(d): they are divided by it for the library, and the
radius is multiplied by it, which leaves the predictions as they are.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from privopt.data.units import Units
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem
from privopt.public import Relation

RADIUS, SUPPORT, COMMON = 4.0, 8, 0.15
TEST_ROWS = 20_000
PARITY_TEST_ROWS, PARITY_RADIUS = 5_000, 3.0
# (column, thresholds): a bit is 1 where the value is at least the threshold.
BITS = (
    ("mdvis", (1.0, 3.0, 7.0)),
    ("lncoins", (1e-6, 3.5)),
    ("idp", (0.5,)),
    ("lpi", (1e-6, 6.3)),
    ("fmde", (1e-6, 6.5)),
    ("physlm", (0.05,)),
    ("disea", (7.0, 12.0)),
    ("hlthg", (0.5,)),
    ("hlthf", (0.5,)),
    ("hlthp", (0.5,)),
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SignedData:
    """Training and test rows of signs, labels -1 and 1, and the radius of the ball.

    Attributes:
        name: what results call it.
        rows, labels: for training, (n, d) of int8 and (n,).
        test_rows, test_labels: the rest.
        radius: R, of the ball for rows of signs.
        truth: the weights that made the labels; None for real data.
    """

    name: str
    rows: NDArray[np.int8]
    labels: NDArray[np.float64]
    test_rows: NDArray[np.int8]
    test_labels: NDArray[np.float64]
    radius: float
    truth: NDArray[np.float64] | None = None

    @property
    def entry_bound(self) -> float:
        """The size of every entry of a row of length 1."""
        return 1.0 / math.sqrt(self.rows.shape[1])

    @property
    def problem(self) -> Problem:
        """Logistic loss on the ball of the rows of length 1."""
        return Problem(losses.logistic, constraint=L1Ball(self.radius / self.entry_bound))

    def units(self, relation: str = Relation.REPLACE_ONE.value) -> Units:
        """The training rows, of length 1."""
        rows = self.rows * np.float32(self.entry_bound * (1.0 - 1e-6))  # rounding must not shorten a row
        return Units.from_arrays(rows, self.labels, relation=relation, row_bound=1.0, n=len(rows))

    def test_loss(self, params: NDArray[np.float64]) -> float:
        """The mean logistic loss of the test rows, for parameters of rows of length 1."""
        weights = np.asarray(params, np.float64) * self.entry_bound
        return float(np.mean(np.logaddexp(0.0, -self.test_labels * (self.test_rows @ weights))))

    def loss(self, params: NDArray[np.float64]) -> float:
        """The same of the training rows."""
        weights = np.asarray(params, np.float64) * self.entry_bound
        return float(np.mean(np.logaddexp(0.0, -self.labels * (self.rows @ weights))))


def generated(n: int, d: int, *, seed: int = 0, test: int = TEST_ROWS) -> SignedData:
    """The generated problem with n rows for training."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(d)
    truth[rng.choice(d, SUPPORT, replace=False)] = rng.choice([-1.0, 1.0], SUPPORT) * RADIUS / SUPPORT
    total = n + test
    rows = np.empty((total, d), np.int8)
    for begin in range(0, total, 4096):  # the normal draws of a block only
        part = rows[begin : begin + 4096]
        drawn = rng.standard_normal(part.shape) + COMMON * rng.standard_normal((len(part), 1))
        part[...] = np.where(drawn > 0, 1, -1)
    labels = np.where(rng.random(total) < expit(rows @ truth), 1.0, -1.0)
    return SignedData(
        name=f"generated, d = {d}",
        rows=rows[:n],
        labels=labels[:n],
        test_rows=rows[n:],
        test_labels=labels[n:],
        radius=RADIUS,
        truth=truth,
    )


def randhie_bits() -> NDArray[np.int8]:
    """The 16 bits of every row, in the order of `BITS`."""
    from statsmodels.datasets import randhie

    table: Any = randhie.load_pandas().data
    columns = [table[name].to_numpy(np.float64) >= least for name, thresholds in BITS for least in thresholds]
    return np.stack(columns, axis=1).astype(np.int8)


def parities(*, seed: int = 0) -> SignedData:
    """The parity features of randhie; 5000 random rows are kept for the test."""
    bits = randhie_bits()
    signs = (2 * bits[:, 3:] - 1).astype(np.int8)
    products = [
        np.prod(signs[:, list(chosen)], axis=1, dtype=np.int8)
        for size in (1, 2, 3)
        for chosen in combinations(range(signs.shape[1]), size)
    ]
    rows = np.stack([np.ones(len(signs), np.int8), *products], axis=1)
    labels = np.where(bits[:, 0] == 1, 1.0, -1.0)
    order = np.random.default_rng(seed).permutation(len(rows))
    test, train = order[:PARITY_TEST_ROWS], order[PARITY_TEST_ROWS:]
    return SignedData(
        name="randhie, parities",
        rows=rows[train],
        labels=labels[train],
        test_rows=rows[test],
        test_labels=labels[test],
        radius=PARITY_RADIUS,
    )
