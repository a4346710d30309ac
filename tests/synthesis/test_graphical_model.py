"""Private-PGM on released marginals, where the package is installed."""

import numpy as np
import pytest

pytest.importorskip("mbi")

from privopt.problems.workload import Workload
from privopt.synthesis.base import ReleasedMarginal
from privopt.synthesis.finishing import fitted_by_pgm

LEVELS = (3, 2, 4)


def test_exact_marginals_are_fitted_and_samples_follow_them():
    rng = np.random.default_rng(0)
    work = Workload(LEVELS, sets=((2, 0), (1,), (0, 1)))
    table = rng.dirichlet(np.ones(24))
    measured = [
        ReleasedMarginal(columns, 0.5 * cells, 1e-4) for columns, cells in work.marginals(work.answers(table))
    ]
    model = fitted_by_pgm(measured, 0.5, LEVELS)
    np.testing.assert_allclose(model.answers(work), work.answers(table), atol=2e-3)
    assert model.marginal((2, 1)).sum() == pytest.approx(1.0)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    codes = model.sample(5000, rng)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert codes.shape == (5000, 3)
    found = np.bincount(codes[:, 2] + 4 * codes[:, 0], minlength=12) / 5000
    np.testing.assert_allclose(found, work.answers(table)[:12], atol=0.01)
    assert model.sample(0, rng).shape == (0, 3)
