"""Every path that computes a query is held to the plain one: kernels are checked, not trusted."""

import functools

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.cases import BUDGET, EVERY_CASE, as_units, toy_arrays
from tests.contracts.queries import EVERY_QUERY, LEVELS, ROW_BOUND, D, is_of_codes

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.places import Stretch
from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.queries.base import MeanQuery
from privopt.solve import minimize

ROWS = 60
SUMS = {name: query for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)}
LAYOUTS = ("dense", "sparse", "users", "float64")
# Fast and plain sums of all layouts are compared for some losses in tests/engine; here for every query, every
# second one at once, the others and other layouts in the audit.
EVERY_SUM = [
    pytest.param(layout, name, marks=(pytest.mark.audit,) if layout != "dense" or place % 2 else ())
    for layout in LAYOUTS
    for place, name in enumerate(SUMS)
    if (layout, name)
    != ("sparse", "magnitudes of columns")  # it reads every entry of a row: of dense rows only
]
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


def codes_in(layout):
    rows = np.random.default_rng(5).integers(-1, 4, (ROWS, D))
    groups = np.arange(ROWS) // 3 if layout == "users" else None
    return Units.from_codes(rows, levels=LEVELS, groups=groups, max_records_per_user=3)


@functools.cache
def engines_on(layout, coded):
    """The fast and the plain engine on the rows of a layout."""
    units = codes_in(layout) if coded else units_in(layout)
    return engine_on(units, "fast"), engine_on(units, "reference")


@pytest.mark.at_once(
    "dense-average of a unit",
    "dense-counts of norms, own loss",
    "dense-gradient and count, mapped",
    "dense-gradient norm",
    "dense-gradient, logistic",
    "dense-gradient, own loss, tiny clip",
    "dense-gradient, squared",
    "dense-gradient, squared, huge clip",
    "dense-payoffs, offsets",
    "dense-polytope scores",
    "dense-slope of a player, along vertices",
    "dense-top curvature",
    "dense-total weight",
    "dense-value gradient in parameters, rows that stretch",
    "dense-value gradient, two blocks, own loss",
    "dense-vertex scores",
    "dense-vertex slopes",
    "dense-vertex slopes, listed, no kernel",
)
@pytest.mark.parametrize(("layout", "name"), EVERY_SUM)
def test_the_fast_engine_computes_what_the_plain_one_computes(layout, name):
    query = SUMS[name]
    fast, plain = engines_on(layout, is_of_codes(query))
    some = np.arange(0, fast.units.private_count, 2)
    for draw in (None, some) if layout != "dense" or name.startswith("gradient") else (None,):
        with double_precision():
            np.testing.assert_allclose(
                fast.clipped_sum(query, draw), plain.clipped_sum(query, draw), rtol=1e-8, atol=1e-9
            )


def test_a_view_and_other_units_are_computed_on_by_an_engine_of_the_same_kind():
    plain = engine_on(units_in("dense"), "reference")
    assert type(plain.view(np.eye(D), 2.0)) is type(plain.subset(Stretch(0, 5), 5)) is type(plain)


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
