"""A million neighbours over all queries, engines and loops: none moves a value further than the query states."""

import pytest
from tests.audit.variations import varied
from tests.contracts.queries import (
    AT,
    EVERY_FUNCTION_OF_A_MEAN,
    EVERY_QUERY,
    ROW_BOUND,
    D,
    is_of_codes,
)

from privopt.ledger.events import Poisson
from privopt.public import Public
from privopt.queries.base import MeanQuery, PassQuery
from privopt.queries.lots import LotSum
from privopt.queries.received import RECEIVABLE
from privopt.queries.scores import HeldCount
from privopt.queries.users import ConcentrationScore, FriendlyWeight, HeldMean, HuberScore
from privopt.queries.values import called_on_host
from privopt.testing import search_neighbours
from privopt.testing.queries import SLACK
from privopt.testing.search import ROUND, applies
from privopt.testing.toy_data import settings

ORIGIN = 0.1 * AT
POINTS = EVERY_QUERY["gradient, squared"]
# Statistics of held points whose sensitivity holds for every two neighbours. Those that a test must go before
# (`FriendlyMean`, `AcceptedMean`, `HuberCentre`) have searches of their own, in tests/queries.
OF_POINTS = {
    "count of points": lambda held: HeldCount(held=held, centre=ORIGIN, radius=0.3),
    "mean of points": lambda held: HeldMean(held=held, centre=ORIGIN, radius=0.3),
    "weight of points": lambda held: FriendlyWeight(held=held, origin=ORIGIN, within=0.3),
    "concentration of points": lambda held: ConcentrationScore(held=held, origin=ORIGIN, within=0.3),
    "huber score of points": lambda held: HuberScore(held=held, origin=ORIGIN, radius=0.3, least=4, steps=40),
}
REPLACED_ONLY = {"weight of points", "concentration of points"}


def of_points(make):
    return lambda curator: make(curator.hold(POINTS))


def of_mean(case):
    return lambda curator: case.function(curator.hold_mean(case.held))


EVERYTHING = {
    **{name: of_points(make) for name, make in OF_POINTS.items()},
    **{name: of_mean(case) for name, case in EVERY_FUNCTION_OF_A_MEAN.items()},
    **EVERY_QUERY,
}
NAMES = list(EVERYTHING)
RELATIONS = ("replace-one", "add-or-remove-one")
STORAGES = ("float32", "int8", "float64", "int16")
FLOATS = STORAGES[::2]  # sparse rows have no grid
PARTS = 3  # units of a part where a table has several
LAYOUTS = ("dense", "csr", "dense users", "csr users")


def levels_of(name):
    """The cells of the coded table that a query is asked of, or that what it is a function of is; else none."""
    function = EVERY_FUNCTION_OF_A_MEAN.get(name)
    query = EVERY_QUERY.get(name, function and function.held)
    return query.workload.levels if is_of_codes(query) else ()


def loops(query):
    """The compiled loops that compute a mean: on samples too, where it may be asked of them."""
    try:
        query.sensitivity(Public(n=5, d=D), Poisson(0.5))
    except ValueError:
        return ["loop"]
    return ["loop", "sampled loop"]


def searches(name, share):
    """Which ways a query is searched by, and how many neighbours by each: the arguments of one search after another.

    A third member says whether a table has several parts: then a unit that comes or goes makes or ends one, and those
    who stay keep theirs. The fast engine meets everything. The plain one and compiled loops compile a program for every
    relation, format and layout: these take turns, so that queries meet each value and each pair of values.
    """
    turn, query = NAMES.index(name), EVERYTHING[name]
    relations = RELATIONS[: 1 if isinstance(query, PassQuery) or name in REPLACED_ONLY else 2]
    layouts = LAYOUTS[::2] if name == "magnitudes of columns" or is_of_codes(query) else LAYOUTS
    some = []
    if isinstance(query, MeanQuery):
        for place, relation in enumerate(relations):
            plain = layouts[(turn + place) % 2 :: 2]
            formats = FLOATS if "csr" in plain else STORAGES
            ways = {"relations": [relation], "storages": [formats[(turn + place) // 2 % len(formats)]]}
            some.append((share // 16, {**ways, "layouts": plain, "ways": ["reference"]}, False))
            nobody = (
                is_of_codes(query) and relation == "add-or-remove-one"
            )  # no code says that nobody is there
            if not (nobody or called_on_host(query) or isinstance(query, LotSum)):
                ways["layouts"] = ["dense"]
                some += [(share // 32, {**ways, "ways": [way]}, False) for way in loops(query)]
        if type(query).__name__ in RECEIVABLE:
            some.append((share // 100, {"layouts": ["dense"], "ways": ["told"]}, False))
    everything = {
        "relations": relations,
        "layouts": layouts,
        "storages": STORAGES,
        "ways": ["fast", "sample"],
    }
    if isinstance(query, MeanQuery):
        some.append((share // 8, everything, True))
    return [*some, (share - sum(count for count, *_ in some), everything, False)]


def test_every_search_has_data_and_a_way_to_be_tried_on():
    for name, query in EVERYTHING.items():
        levels = levels_of(name)
        for _, kinds, _ in searches(name, 1000):
            stored = {"layouts": LAYOUTS, "storages": FLOATS, "relations": RELATIONS, **kinds}
            ways = stored.pop("ways")
            found = settings(len(levels) or D, ROW_BOUND, levels, **stored)
            assert any(applies(way, query, setting) for setting in found for way in ways), (name, kinds)


@pytest.mark.audit
@pytest.mark.parametrize("name", EVERYTHING)
def test_no_neighbour_moves_a_value_further_than_its_query_states(name, evidence, neighbours, monkeypatch):
    query, codes, seed = EVERYTHING[name], levels_of(name), 1_000_000 * NAMES.index(name)
    data = {"columns": len(codes) or D, "row_bound": ROW_BOUND, "levels": codes}
    found = []
    for some, ways, parted in searches(name, -(-neighbours // len(NAMES))):
        vary = None if callable(query) else varied
        with monkeypatch.context() as patch:
            if parted:
                patch.setattr("privopt.engine.parts.PART_UNITS", PARTS)
            found.append(search_neighbours(query, **data, **ways, neighbours=some, seed=seed, vary=vary))
    worst = max(found, key=lambda one: one.largest)
    refused = sum(one.refused for one in found)
    evidence(
        "neighbours",
        name,
        tried=sum(one.tried for one in found),
        of="neighbours",
        largest=worst.largest,
        bound=1.0,
        again=worst.worst,
        note=f"{refused} rounds of {ROUND} asked it as given: public numbers drawn for it are refused."
        * (refused > 0),
    )
    assert worst.largest <= SLACK
