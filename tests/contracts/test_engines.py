"""Every path that computes a query is held to the plain one: kernels are checked, not trusted."""

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.cases import BUDGET, EVERY_CASE, as_units, toy_arrays
from tests.contracts.queries import EVERY_QUERY, ROW_BOUND, D

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.instance import Instance
from privopt.precision import double_precision
from privopt.queries.base import MeanQuery
from privopt.solve import minimize

ROWS = 60
SUMS = {name: query for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)}
# Fast and plain sums of all layouts are compared for some losses in tests/engine; here for every query.
LAYOUTS = ["dense", *(pytest.param(one, marks=pytest.mark.audit) for one in ("sparse", "users", "float64"))]
SAMPLED = {case.name: case for case in EVERY_CASE if case.name == "stochastic gradient descent"}


def units_in(layout):
    rng = np.random.default_rng(5)
    rows, labels = rng.normal(size=(ROWS, D)), rng.integers(0, 3, ROWS).astype(float)
    return Units.from_arrays(
        sparse.csr_array(rows) if layout == "sparse" else rows,
        labels - 1.0,
        row_bound=ROW_BOUND,
        groups=np.arange(ROWS) // 3 if layout == "users" else None,
        max_records_per_user=3,
        storage="float64" if layout == "float64" else "float32",
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fast_engine_computes_what_the_plain_one_computes(layout):
    units = units_in(layout)
    fast, plain = engine_on(units, "fast"), engine_on(units, "reference")
    some = np.arange(0, fast.units.private_count, 2)
    with double_precision():
        for name, query in SUMS.items():
            if name == "magnitudes of columns" and layout == "sparse":
                continue  # it reads every entry of a row, and is asked of dense rows only
            for draw in (None, some):
                np.testing.assert_allclose(
                    fast.clipped_sum(query, draw),
                    plain.clipped_sum(query, draw),
                    rtol=1e-8,
                    atol=1e-9,
                    err_msg=name,
                )


def test_a_view_and_other_units_are_computed_on_by_an_engine_of_the_same_kind():
    plain = engine_on(units_in("dense"), "reference")
    assert type(plain.view(np.eye(D), 2.0)) is type(plain.subset(np.arange(5), 5)) is type(plain)


@pytest.mark.parametrize("case", SAMPLED.values(), ids=SAMPLED)
def test_a_run_on_the_plain_engine_is_that_on_the_fast_one_and_replays(case):
    units = as_units(*toy_arrays(case), "replace-one", by_user=case.by_user)
    solver = case.solver.configure(Instance(case.problem, units.public, BUDGET))
    results = {}
    for engine in ("fast", "reference"):
        ledger = Ledger(BUDGET, "replace-one", plan=solver.event(units.public))
        curator = LocalCurator(units, ledger, noise=NoiseSource(1), engine=engine)
        results[engine] = solver.solve(curator, case.problem)
    np.testing.assert_allclose(results["reference"].params, results["fast"].params, rtol=1e-9, atol=1e-12)
    again = solver.solve(Replay(results["reference"].transcript, units.public), case.problem)
    assert np.array_equal(again.params, results["reference"].params)


def test_minimize_takes_the_plain_engine_and_refuses_another():
    case = EVERY_CASE[0]
    units = as_units(*toy_arrays(case), "replace-one", by_user=case.by_user)
    options = {"budget": BUDGET, "solver": "gradient-descent", "random_state": 0}
    fast = minimize(case.problem, units, **options)
    plain = minimize(case.problem, units, engine="reference", **options)
    np.testing.assert_allclose(plain.params, fast.params, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="engine must be 'fast' or 'reference', got 'cluster'"):
        minimize(case.problem, units, engine="cluster", **options)
