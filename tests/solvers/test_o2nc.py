"""Reference runs of online-to-non-convex descent, and what its file promises."""

import math

import numpy as np
import pytest
from tests.support.formula_noise import FormulaNoise
from tests.support.nonsmooth_reference import ReluAbsolute, formula, reference_rows

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.planning import o2nc as planning
from privopt.planning.instance import Instance
from privopt.precision import double_precision
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.o2nc import O2NC

CLOSE = {"rtol": 0, "atol": 1e-8}
PROBLEM = Problem(ReluAbsolute())
GUARANTEE = {
    "mode": "guarantee",
    "radius": 0.3,
    "step_size": 0.15,
    "window": 5,
    "steps": 20,
    "certificate_share": 0.0,
}


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def units_of(relation="replace-one", scale=1.0):
    rows, targets = reference_rows()
    return Units.from_arrays(rows, targets, row_bound=1.0 + 1e-6, storage="float64", relation=relation)


def solve(noise=None, units=None, problem=PROBLEM, start=None, **settings):
    """A run whose noise has a standard deviation of 0.05: 1.25 times the sensitivity 2 * 0.8 / 40."""
    units = units or units_of()
    settings = {"clip": 0.8, "noise_multiplier": 1.25, "places": "middle", **settings}
    solver = O2NC(**settings).filled(Instance(problem, units.public, Budget(1.0, 1e-6)))
    ledger = Ledger(Budget(1e6, 1e-6), units.public.relation, plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=noise or FormulaNoise(formula))
    return solver.solve(curator, problem, start)


def test_the_reference_run():
    result = solve(**GUARANTEE, returns="last")
    np.testing.assert_allclose(result.params, [1.4280598570, -0.2912600793, -0.0218020862], **CLOSE)


def test_the_reference_run_cut_after_a_window():
    result = solve(**{**GUARANTEE, "steps": 9}, returns="last")  # one window of 5
    np.testing.assert_allclose(result.params, [0.0596087979, -0.0304062476, -0.0201235931], **CLOSE)
    assert result.transcript.releases == 5


def gradients_of(result):
    return [np.asarray(release.released[0]) for release in result.transcript if release.sensitivity.size]


def test_the_released_windows_of_the_reference_run():
    released = np.array(gradients_of(solve(**GUARANTEE, returns="last")))
    norms = np.linalg.norm(released.reshape(4, 5, 3).mean(axis=1), axis=1)
    np.testing.assert_allclose(norms, [0.2029348055, 0.2138771442, 0.1218689450, 0.0553027838], **CLOSE)


def test_the_practical_reference_run():
    """Noise of 0.02 sets the step size, 0.05 is drawn: the reference keeps the two apart."""
    louder = FormulaNoise(lambda k, shape: 2.5 * formula(k, shape))
    result = solve(louder, oracle="gradients", distance=2.0, steps=60, window=4, noise_multiplier=0.5)
    np.testing.assert_allclose(result.params, [1.7801320633, -0.8912944539, 1.5653941901], **CLOSE)


def test_the_schedule_of_the_practical_mode():
    public = Public(n=20_190, d=10, row_bound=1.0)
    solver = O2NC(distance=4.0, clip=1.0).configure(Instance(PROBLEM, public, Budget(1.0, 1e-6)))
    sigma = planning.deviation(solver, public)
    assert sigma == pytest.approx(0.007248497753, rel=1e-3)  # calibration leaves a little
    exact = 2.0 * math.sqrt(300) / (20_190 * gaussian_mu(1.0, 1e-6))
    assert exact == pytest.approx(0.007248497753, abs=1e-10)
    longest, step_sizes = planning.schedule(solver, parameters=10, stddev=0.007248497753)
    radii = planning.radii(solver)
    for t, a, length, eta in (
        (1, 1.016666666667, 0.096825396825, 0.287838601244),
        (300, 0.02, 0.001904761905, 0.005662398713),
    ):
        assert radii[t - 1] == pytest.approx(a, abs=1e-10)
        assert longest[t - 1] == pytest.approx(length, abs=1e-10)
        assert step_sizes[t - 1] == pytest.approx(eta, abs=1e-10)
