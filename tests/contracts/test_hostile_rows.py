"""No query moves by more than its sensitivity, whatever stands in a row: entries from 1e-320 to 1e308, both formats."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.contracts.queries import EVERY_QUERY, LEVELS, ROW_BOUND, D, concrete_queries, is_of_codes

from privopt.curator.audit import distance
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.ledger.sampling import EveryUnit
from privopt.precision import double_precision
from privopt.queries.base import (
    ArgminQuery,
    FunctionOfMean,
    MeanQuery,
    PassQuery,
    RecordsQuery,
    StatisticOfHeld,
)

N = 5
SLACK = 1.0 + 1e-12
STORAGES = ("float32", "float64")
OWN_RECORDS = (ArgminQuery, PassQuery, RecordsQuery)
# Where squares, products and reciprocals of float32 and float64 numbers end, and the least size of a stored row.
EDGES = (-323, -308.5, -308, -162, -161.7, -160, -154, -46, -38.5, -24, -8, 0, 38, 154, 300, 307.7, 308)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def hostile_numbers(rng, shape):
    """Numbers of either sign between 1e-323 and 1.7e308, rows mostly of one size."""
    rows = np.where(
        rng.random(shape[0]) < 0.5, rng.choice(EDGES, shape[0]), rng.uniform(-323.0, 308.2, shape[0])
    )
    spread = rng.choice([0.0, 0.3, 3.0, 20.0, 300.0], shape[0])
    exponents = rows[:, None] - spread[:, None] * rng.random(shape)
    numbers = rng.choice([-1.0, 1.0], shape) * 10.0 ** np.minimum(exponents, 308.2)
    return np.where(rng.random(shape) < 0.05, rng.choice([0.0, np.nan, np.inf, 1.0]), numbers)


def hostile_targets(rng, count):
    """Labels or classes, huge or ordinary numbers, or any."""
    kind = rng.integers(4)
    if kind == 3:
        return hostile_numbers(rng, (count, 1))[:, 0]
    return rng.choice([-1.0, 0.0, 1.0, 2.0], count) * (1.0, 1e290, 8e307)[kind]


def hostile_codes(rng, shape):
    """Codes, and numbers that are none."""
    return np.where(rng.random(shape) < 0.8, rng.integers(-1, 4, shape), hostile_numbers(rng, shape))


def hostile_pair(rng, relation, storage, layout, *, coded=False):
    """Two sets of units, records or users of two, that differ in one of them."""
    users = "users" in layout
    count = N * (2 if users else 1)
    changed = slice(count - (2 if users else 1), count)
    numbers = hostile_codes if coded else hostile_numbers
    rows, targets = numbers(rng, (count, D)), hostile_targets(rng, count)
    other, turned = rows.copy(), targets.copy()
    if rng.random() < 0.3:  # the opposite: what moves furthest if all is well
        turned[changed] = -targets[changed]
        other[changed] = rows[changed] * rng.choice([-1.0, 1.0])
    else:
        other[changed] = numbers(rng, (count, D))[changed]
        turned[changed] = hostile_targets(rng, count)[changed]
    if rng.random() < 0.3:  # nobody else pulls
        rows[: changed.start] = other[: changed.start] = 0.0
        targets[: changed.start] = turned[: changed.start] = 0.0
    kept = changed.start if relation == "add-or-remove-one" else count

    def units(x, y, size):
        groups = np.arange(size) // 2 if users else None
        if coded:
            return Units.from_codes(
                x[:size], levels=LEVELS, relation=relation, n=N, groups=groups, max_records_per_user=2
            )
        return Units.from_arrays(
            sparse.csr_array(x[:size]) if "csr" in layout else x[:size],
            y[:size],
            row_bound=ROW_BOUND,
            relation=relation,
            n=N,
            storage=storage,
            groups=groups,
            max_records_per_user=2,
        )

    return units(rows, targets, kept), units(other, turned, count)


def value(query, units):
    """What is released but for the noise; the implied noise at a fixed point where the noise is inside an objective."""
    engine = InProcessEngine(units)
    curator = LocalCurator(engine, Ledger(Budget(1.0, 1e-6), units.public.relation))
    if isinstance(query, ArgminQuery):
        point = np.linspace(-1.0, 2.0, D)
        return np.asarray(
            query.implied_noise(units.public, units.private_features, units.private_targets, point)
        )
    return np.asarray(curator.private_value(query, EveryUnit(), None))


def ratio(query, pair, of=value):
    """Distance moved over the stated sensitivity; infinite where something is not finite."""
    curator = LocalCurator(pair[0], Ledger(Budget(1.0, 1e-6), pair[0].public.relation))
    stated = float(curator._sensitivity(query, EveryUnit()))
    if isinstance(query, PassQuery):
        return moved_by_a_pass(query, pair) / stated
    with np.errstate(all="raise"):  # as a user may have set it
        left, right = (of(query, units) for units in pair)
    moved = distance(left, right, query.norm)
    if not np.isfinite(moved):
        return np.inf
    return 0.0 if moved == 0.0 else moved / stated


def moved_by_a_pass(query, pair):
    """What the sensitivity of a pass bounds, in one order, without noise."""
    records = [(units.private_features, units.private_targets) for units in pair]
    with np.errstate(all="raise"):
        moved = query.moved(pair[0].public, *records, np.array([3, 4, 0, 2, 1]), lambda k: np.zeros((k, D)))
    return moved if np.isfinite(moved) else np.inf


def by_general_path(query, units):
    return np.asarray(query.finish(jnp.asarray(InProcessEngine(units).general_sum(query)) / N))


def by_compiled_loop(query, units):
    arrays = InProcessEngine(units).traced_arrays()
    return np.asarray(query.finish(_traced(query, arrays, units.public) / N))


_traced = jax.jit(lambda query, arrays, public: traced_sum(query, public, arrays), static_argnames="public")


def largest_ratios(names, layouts, seeds, relations=("replace-one",), storages=STORAGES, of=value):
    """The largest ratio of each query over many pairs; nothing warns."""
    found = dict.fromkeys(names, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in names:
            query = EVERY_QUERY[name]
            for layout in layouts:
                if "users" in layout and isinstance(query, OWN_RECORDS):
                    continue
                if "csr" in layout and is_of_codes(query):
                    continue
                for relation in relations:
                    if relation == "add-or-remove-one" and isinstance(query, PassQuery):
                        continue
                    for storage in storages:
                        for seed in seeds:
                            key = f"{relation} {storage} {layout}".encode()  # another pair each
                            rng = np.random.default_rng([seed, *key])
                            pair = hostile_pair(rng, relation, storage, layout, coded=is_of_codes(query))
                            found[name] = max(found[name], ratio(query, pair, of))
    return found


def test_every_query_of_the_library_is_in_the_list():
    """Statistics of held points have searches of their own, over points; functions of held means stand beside it."""
    asked = {kind for kind in concrete_queries() if not issubclass(kind, StatisticOfHeld | FunctionOfMean)}
    assert {type(query) for query in EVERY_QUERY.values()} == asked


# One of each kind, and one on each path; the rest takes longer to compile.
FIRST_OF_ITS_KIND = {type(query): name for name, query in reversed(EVERY_QUERY.items())}
QUICK = [
    name
    for name, query in EVERY_QUERY.items()
    if name.startswith("gradient,") or name == FIRST_OF_ITS_KIND[type(query)]
]


@pytest.mark.parametrize("name", QUICK)
def test_no_query_moves_further_than_it_states_on_hostile_rows(name):
    found = largest_ratios([name], ["dense", "csr"], range(6))
    assert found[name] <= SLACK


@pytest.mark.audit
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("name", EVERY_QUERY)
def test_no_query_moves_further_than_it_states_on_many_hostile_rows(name, relation):
    found = largest_ratios([name], ["dense", "csr", "dense users", "csr users"], range(50), [relation])
    assert found[name] <= SLACK


@pytest.mark.audit
@pytest.mark.parametrize("path", [by_general_path, by_compiled_loop])
@pytest.mark.parametrize(
    "name", [name for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)]
)
def test_no_other_path_of_the_engine_moves_a_query_further(name, path):
    if path is by_compiled_loop and getattr(EVERY_QUERY[name], "on_host", False):
        pytest.skip("a loss that is called on the host is in no compiled loop")
    assert largest_ratios([name], ["dense"], range(50), of=path)[name] <= SLACK
