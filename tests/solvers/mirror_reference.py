"""The reference data of Wang, Ye, Xu 2017's algorithms, noise that follows a formula, and neighbours to audit on."""

from dataclasses import dataclass, field

import jax
import numpy as np

from privopt.curator import Curator
from privopt.data import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.replay import Audit

WIDE = Budget(1e6, 1e-6)
CLOSE = {"rtol": 0, "atol": 1e-9}


@dataclass
class CosineNoise:
    """The k-th draw, k = 0, 1, ..., is cos(1 + k + 0.7 j), whatever the law."""

    seeded: bool = True
    count: int = 0
    units_generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def normal(self, shape):
        self.count += 1
        return np.cos(self.count + 0.7 * np.arange(np.prod(shape))).reshape(shape)

    gumbel = normal


def logistic(params, features, target):
    """The logistic loss of a record as a user writes it: its sensitivity is that of the clip alone."""
    return jax.nn.softplus(-target * (features @ params))


def plain_problem(constraint):
    return Problem(losses.RecordLoss(logistic), constraint=constraint)


def reference_units(**options):
    i, j = np.arange(8)[:, None], np.arange(3)[None, :]
    rows = np.sin(0.5 + 1.3 * i + 0.7 * j)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    signs = np.where(np.cos(2 * np.arange(8)) > 0, 1.0, -1.0)
    return Units.from_arrays(rows, signs, row_bound=1.0, storage="float64", **options)


def solve_on(units, solver, problem, *, noise=None, start=None):
    """Run a configured solver under a ledger that holds its plan."""
    ledger = Ledger(WIDE, units.public.relation, plan=solver.event(units.public))
    noise = CosineNoise() if noise is None else noise
    return solver.solve(Curator(units, ledger, noise=noise), problem, start)


def neighbours(seed, *, keep_label):
    """40 records of 5 features of length about 1, and the same with one row negated."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    signs = np.where(rng.random(40) < 0.5, 1.0, -1.0)
    other, turned = rows.copy(), signs.copy()
    other[7] *= -1.0
    turned[7] *= 1.0 if keep_label else -1.0
    return [Units.from_arrays(x, y, row_bound=1.0) for x, y in ((rows, signs), (other, turned))]


def largest_move(solver, problem, left, right):
    """The largest distance that a query moved between two neighbours, over its stated sensitivity."""
    ledger = Ledger(WIDE, left.public.relation, plan=solver.event(left.public))
    audit = Audit(left, right, ledger, noise=NoiseSource(5))
    solver.solve(audit, problem)
    return max(ratio for _, ratio in audit.moves)
