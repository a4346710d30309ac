"""The twelve records and the noise that the reference values of the methods for the KL condition are computed on."""

import numpy as np
from tests.support.formula_noise import FormulaNoise, silence
from tests.support.plain_logistic import PlainLogistic

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.problems.problem import Problem

N, D = 12, 3
RHO = 2.0
LOGISTIC = Problem(PlainLogistic())  # the sensitivity of the clip, the same at every point


def cosines(k, shape):
    """Entry j of the k-th draw, k = 0, 1, ..., is cos(1 + 2 k + 3 j)."""
    return np.cos(1 + 2 * k + 3 * np.arange(np.prod(shape))).reshape(shape)


NOISES = {"zero": silence, "cos": cosines}


def twelve_records(relation="replace-one"):
    """Rows of norm at most 1, every third of the positive class."""
    i, j = np.arange(N)[:, None], np.arange(D)[None, :]
    rows = np.sin(1 + i + 2 * j) / np.sqrt(3)
    targets = np.where(np.arange(N) % 3 == 0, 1.0, -1.0)
    return Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=N, storage="float64")


def reference_run(solver, noise, *, relation="replace-one", units=None, problem=LOGISTIC):
    """The result of a solver whose fields are all given, on noise that follows a formula."""
    units = twelve_records(relation) if units is None else units
    ledger = Ledger(Budget(1e6, 1e-6), relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=FormulaNoise(NOISES[noise])), problem)
