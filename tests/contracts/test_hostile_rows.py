"""No query moves by more than its sensitivity, whatever stands in a row: entries from 1e-320 to 1e308, both formats."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.queries import (
    EVERY_QUERY,
    FIRST_OF_ITS_KIND,
    LEVELS,
    ROW_BOUND,
    D,
    concrete_queries,
    is_of_codes,
)
from tests.support.loop_sums import loop_sum

from privopt.curator.audit import distance
from privopt.curator.local import LocalCurator
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.precision import double_precision
from privopt.queries.base import FunctionOfMean, MeanQuery, PassQuery, StatisticOfHeld
from privopt.queries.lots import LotSum
from privopt.testing import check_query
from privopt.testing.queries import SLACK, quietly
from privopt.testing.toy_data import UNITS, hostile_pair, settings


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def asked_of(query):
    """The arguments that say of which data a query is asked."""
    return {"columns": D, "row_bound": ROW_BOUND, "levels": LEVELS if is_of_codes(query) else ()}


def by_general_path(query, units):
    return np.asarray(query.finish(jnp.asarray(InProcessEngine(units).general_sum(query)) / UNITS))


def by_compiled_loop(query, units):
    return np.asarray(query.finish(jnp.asarray(loop_sum(InProcessEngine(units), query)) / UNITS))


def test_every_query_of_the_library_is_in_the_list():
    """Statistics of held points have searches of their own, over points; functions of held means stand beside it."""
    asked = {kind for kind in concrete_queries() if not issubclass(kind, StatisticOfHeld | FunctionOfMean)}
    assert {type(query) for query in EVERY_QUERY.values()} == asked


# One of each kind, and one on each path; the rest takes longer to compile.
QUICK = [name for name in EVERY_QUERY if name.startswith("gradient,") or name in FIRST_OF_ITS_KIND]
STORAGES = ("float32", "float64")


@pytest.mark.at_once(
    "answers to queries",
    "average of a pass",
    "average of a unit",
    "difference",
    "gradient norm",
    "gradient, logistic",
    "gradient, logistic, balanced",
    "gradient, own loss, tiny clip",
    "gradient, poisson",
    "gradient, ramp",
    "gradient, softmax",
    "gradient, squared",
    "gradient, squared, huge clip",
    "gradient, squared, tiny clip",
    "marginals",
    "payoffs",
    "second moment",
    "total weight",
    "usable units",
)
@pytest.mark.parametrize("name", QUICK)
def test_no_query_moves_further_than_it_states_on_hostile_rows(name):
    """Gradients in both storages; the others in one, in turn (kernels are held to the plain path in `tests/engine`)."""
    query, turn = EVERY_QUERY[name], QUICK.index(name) % 2
    storages = STORAGES if name.startswith("gradient,") else STORAGES[turn : turn + 1]
    ways = {"layouts": ["dense", "csr"], "storages": storages}
    check_query(query, **asked_of(query), relations=["replace-one"], **ways)


# Whose value depends on where a unit stands, and one whose does not; the others below.
BY_PLACE = [name for name, query in EVERY_QUERY.items() if isinstance(query, LotSum)]


@pytest.mark.at_once("gradient, logistic")
@pytest.mark.parametrize("name", ["gradient, logistic", *BY_PLACE])
def test_no_query_moves_further_than_it_states_whichever_unit_leaves(name):
    """The last, the first and one in the middle: pairs take turns."""
    query = EVERY_QUERY[name]
    ways = {"layouts": ["dense"], "storages": ["float32"], "pairs": 3}
    check_query(query, **asked_of(query), relations=["add-or-remove-one"], **ways)


@pytest.mark.audit
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("name", EVERY_QUERY)
def test_no_query_moves_further_than_it_states_on_many_hostile_rows(name, relation):
    """Neighbours differ in the last unit, in the first and in one in the middle, in turn."""
    query = EVERY_QUERY[name]
    if isinstance(query, PassQuery) and relation == "add-or-remove-one":
        pytest.skip("a pass is cut by the number of records, which replace-one makes public")
    layouts = ["dense", "csr", "dense users", "csr users"]
    check_query(query, **asked_of(query), relations=[relation], layouts=layouts, pairs=50)


# What is computed of rows on a grid is what is computed of the decoded ones, see `tests/engine/test_grid_rows.py`.
FIRST_ON_A_GRID = next(name for name in EVERY_QUERY if name.startswith("gradient,"))
OF_NUMBERS = [name for name, query in EVERY_QUERY.items() if not is_of_codes(query)]
ON_A_GRID = [
    pytest.param(name, storage, 50, marks=pytest.mark.audit)
    for name in OF_NUMBERS
    for storage in ("int16", "int8")
]


@pytest.mark.parametrize(("name", "storage", "pairs"), [(FIRST_ON_A_GRID, "int8", 6), *ON_A_GRID])
def test_no_query_moves_further_than_it_states_on_rows_on_a_grid(name, storage, pairs):
    query, few = EVERY_QUERY[name], {"relations": ["replace-one"]} if pairs < 50 else {}
    layouts = ["dense", "dense users"]
    check_query(query, **asked_of(query), **few, layouts=layouts, storages=[storage], pairs=pairs)


@pytest.mark.audit
@pytest.mark.parametrize("path", [by_general_path, by_compiled_loop])
@pytest.mark.parametrize(
    "name", [name for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)]
)
def test_no_other_path_of_the_engine_moves_a_query_further(name, path):
    query = EVERY_QUERY[name]
    if path is by_compiled_loop and getattr(query, "on_host", False):
        pytest.skip("a loss that is called on the host is in no compiled loop")
    storages = ["float32", "float64", "int16", "int8"]
    ways = {"relations": ["replace-one"], "layouts": ["dense"], "storages": storages}
    for setting in settings(*asked_of(query).values(), **ways):
        for seed in range(50):
            pair = hostile_pair(seed, setting)[:2]
            curator = LocalCurator(pair[0], Unlimited(setting.relation))
            stated = float(curator._sensitivity(query, EveryUnit()))
            with quietly(query, f"pair {seed}"), np.errstate(all="raise"):  # as a user may have set it
                left, right = (path(query, units) for units in pair)
            assert distance(left, right, query.norm) <= stated * SLACK
