"""Checks that somebody else's query, mechanism, solver or engine keeps the promises that privacy rests on."""

from privopt.testing.engines import check_engine
from privopt.testing.games import check_game
from privopt.testing.mechanisms import check_mechanism
from privopt.testing.queries import check_query
from privopt.testing.search import Search, search_neighbours
from privopt.testing.solvers import check_solver
from privopt.testing.synthesizers import check_synthesizer
from privopt.testing.toy_data import ContractViolation, Rule

__all__ = [
    "ContractViolation",
    "Rule",
    "Search",
    "check_engine",
    "check_game",
    "check_mechanism",
    "check_query",
    "check_solver",
    "check_synthesizer",
    "search_neighbours",
]
