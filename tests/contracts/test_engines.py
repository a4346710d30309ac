"""Every path that computes a query is held to the plain one: kernels are checked, not trusted."""

import math

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.cases import BUDGET, EVERY_CASE, as_units, toy_arrays
from tests.contracts.queries import EVERY_QUERY, LEVELS, ROW_BOUND, D, is_of_codes, own_residual

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.instance import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.base import MeanQuery
from privopt.queries.gradient import ClippedGradient
from privopt.solve import minimize

ROWS = 60
SUMS = {name: query for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)}
# Fast and plain sums of all layouts are compared for some losses in tests/engine; here for every query, every
# second one at once, the others and other layouts in the audit.
OFTEN = dict(list(SUMS.items())[::2])
SELDOM = {name: query for name, query in SUMS.items() if name not in OFTEN}
LAYOUTS = [
    pytest.param("dense", OFTEN, id="dense"),
    pytest.param("dense", SELDOM, id="dense, the rest", marks=pytest.mark.audit),
    *(pytest.param(one, SUMS, id=one, marks=pytest.mark.audit) for one in ("sparse", "users", "float64")),
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


@pytest.mark.parametrize(("layout", "queries"), LAYOUTS)
def test_the_fast_engine_computes_what_the_plain_one_computes(layout, queries):
    engines = {
        coded: (engine_on(units, "fast"), engine_on(units, "reference"))
        for coded, units in ((False, units_in(layout)), (True, codes_in(layout)))
    }
    with double_precision():
        for name, query in queries.items():
            fast, plain = engines[is_of_codes(query)]
            some = np.arange(0, fast.units.private_count, 2)
            if name == "magnitudes of columns" and layout == "sparse":
                continue  # it reads every entry of a row, and is asked of dense rows only
            for draw in (None, some) if layout != "dense" or name.startswith("gradient") else (None,):
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


@pytest.mark.parametrize("loss", [losses.softmax(3), losses.RecordLoss(own_residual)])
@pytest.mark.parametrize("engine", [ReferenceEngine, InProcessEngine])
def test_a_contribution_is_rounded_alike_however_many_units_there_are(engine, loss):
    """One unit more must not re-round the others': a count, or a small clip of what cancels, would show it."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(2_060, 3)), rng.integers(0, 3, 2_060)
    point = rng.normal(size=(3, 3) if loss.outputs > 1 else 3)
    query = ClippedGradient(loss=loss, at=point, clip=math.inf)
    found = []
    for count in (40, 2_047, 2_048, 2_049, 2_060):
        units = Units.from_arrays(
            rows[:count], targets[:count], classes=[0, 1, 2] if loss.outputs > 1 else None, row_bound=2.0, n=2_060,
            groups=np.arange(count), max_records_per_user=2, relation="add-or-remove-one", noise=NoiseSource(1),
        )  # fmt: skip
        with double_precision():
            found.append(engine(units).gather(query)[:40])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
