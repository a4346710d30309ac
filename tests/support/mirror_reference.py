"""The reference data of Wang, Ye, Xu 2017's algorithms, and neighbours to audit on."""

import jax
import numpy as np
from tests.support.formula_noise import FormulaNoise
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.problems import losses
from privopt.problems.problem import Problem

WIDE = Budget(1e6, 1e-6)
CLOSE = {"rtol": 0, "atol": 1e-9}


def logistic(params, features, target):
    """The logistic loss of a record as a user writes it: its sensitivity is that of the clip alone."""
    return jax.nn.softplus(-target * (features @ params))


def plain_problem(constraint):
    return Problem(losses.RecordLoss(logistic), constraint=constraint)


def reference_units(**options):
    return Units.from_arrays(*reference_arrays(), row_bound=1.0, storage="float64", **options)


def solve_on(units, solver, problem, *, noise=None, start=None):
    """Run a configured solver under a ledger that holds its plan."""
    ledger = Ledger(WIDE, units.public.relation, plan=solver.event(units.public))
    noise = FormulaNoise() if noise is None else noise
    return solver.solve(LocalCurator(units, ledger, noise=noise), problem, start)


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
