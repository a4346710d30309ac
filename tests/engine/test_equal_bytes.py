"""Every solver has one transcript and one result, to the byte, wherever its units lie and in any order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.contracts import game_cases, synthesis_cases
from tests.contracts.cases import BUDGET, CASES, EVERY_CASE, N, toy_arrays
from tests.contracts.game_cases import EVERY_GAME
from tests.contracts.synthesis_cases import EVERY_SYNTHESIZER, SYNTHESES
from tests.support.spooled import spooled

import privopt
from privopt.curator.local import LocalCurator
from privopt.data import blocks, places
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.engine.streamed import open_streamed
from privopt.games import registry as games
from privopt.games.base import GameSolver
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance, Task
from privopt.precision import double_precision
from privopt.solvers import registry as solvers
from privopt.solvers.base import Solver
from privopt.synthesis import registry as synthesis

pytest.importorskip("ray")

from tests.support.sharded import on_shards, sharded

SMALL = 5  # units of a part: 8 parts of records, 4 of users
STORAGES = ("float32", "float64", "int16", "int8")
SHARDS = [(workers, backwards) for workers in (1, 2, 3, 8) for backwards in (False, True)]
FEW = [(3, True)]
# Compiled over drawn rows; slopes that are kept, in a view; all rows at once; vectors that are held, of users; groups
# of units; and blocks of them, each of which compiles a program or few.
AT_ONCE = {
    "stochastic gradient descent",
    "continuous spider",
    "whitening",
    "objective perturbation",
    "user gradient descent",
    "phased group sgd",
    "correlated noise",
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", SMALL)
    monkeypatch.setattr("privopt.data.record_source.BLOCK_RECORDS", 7)
    for module in (blocks, places):  # cut in several hands
        monkeypatch.setattr(module, "DEALT", 7)
    with double_precision():
        yield


def read_everywhere(
    source: ArrayRecords, about: Description, folder: Path, shards: Any
) -> Iterator[tuple[str, Any]]:
    """The same records in memory, streamed, and read by shards."""
    private = source._private
    yield (
        "in memory",
        InProcessEngine(
            Units.from_arrays(
                private.private_features,
                private.private_targets,
                groups=private.private_keys,
                noise=NoiseSource(7),
                **about.arguments(),
            )
        ),
    )
    placement = Placement(spool=folder, memory=1)
    yield "streamed", open_streamed(source, about, placement, noise=NoiseSource(7))
    for workers, backwards in shards:
        engine = on_shards(source, about, workers=workers, backwards=backwards, noise=NoiseSource(7))
        yield f"{workers} workers, backwards={backwards}", engine


def require_equal(engines: Iterator[tuple[str, Any]], solve: Callable[[Any, Any], Any]) -> None:
    """One transcript, and one result, of what a function makes of a curator and public facts."""
    expected: Any = None
    for place, engine in engines:
        curator = LocalCurator(engine, Unlimited(engine.public.relation), noise=NoiseSource(3))
        params = solve(curator, engine.public).params
        leaves = [(np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(params)]
        found = (engine.public, leaves, curator.transcript.to_json(values=True))
        expected = found if expected is None else expected
        assert len(engine._private_ranges) > 2, place
        assert len(curator.transcript) > 0, place
        assert found == expected, place
        engine.close()


def solve_everywhere(case: Any, relation: str, storage: Any, folder: Path, shards: Any) -> None:
    """Of the toy data of a case, of users with two records each where it is about users."""
    features, targets = toy_arrays(case)
    keys = np.arange(N) // 2 if case.by_user else None
    users = {"max_records_per_user": 3} if case.by_user else {}
    n = N // 2 if case.by_user else N
    about = Description(row_bound=1.0, entry_bound=1.0, relation=relation, n=n, storage=storage, **users)
    require_equal(
        read_everywhere(ArrayRecords(features, targets, keys), about, folder, shards),
        lambda curator, public: case.solver.configure(Instance(case.problem, public, BUDGET)).solve(
            curator, case.problem
        ),
    )


@pytest.mark.at_once("stochastic gradient descent, replace-one")
@pytest.mark.parametrize(
    ("case", "relation"),
    [
        pytest.param(
            case,
            relation,
            id=f"{case.name}, {relation}",
            marks=() if case.name in AT_ONCE and relation == case.relations[0] else (pytest.mark.audit,),
        )
        for case, relation in CASES
    ],
)
def test_every_solver_is_the_same_in_every_place(case: Any, relation: str, tmp_path: Path) -> None:
    solve_everywhere(case, relation, "float32", tmp_path, SHARDS)


@pytest.mark.audit
@pytest.mark.parametrize("storage", STORAGES[1:])
@pytest.mark.parametrize(
    ("case", "relation"), [pytest.param(*pair, id=f"{pair[0].name}, {pair[1]}") for pair in CASES]
)
def test_every_solver_is_the_same_in_every_storage(
    case: Any, relation: str, storage: str, tmp_path: Path
) -> None:
    solve_everywhere(case, relation, storage, tmp_path, FEW)


def play_everywhere(case: Any, relation: str, folder: Path, shards: Any) -> None:
    features, targets = game_cases.toy_rows(case)
    keys = np.arange(game_cases.N) // 2 if case.by_user else None
    users = {"max_records_per_user": 3} if case.by_user else {}
    n = game_cases.N // 2 if case.by_user else game_cases.N
    about = Description(row_bound=4.0, relation=relation, n=n, storage="float64", **users)
    require_equal(
        read_everywhere(ArrayRecords(features, targets, keys), about, folder, shards),
        lambda curator, public: case.solver.configure(Task(case.game, public, case.budget)).solve(
            curator, case.game
        ),
    )


@pytest.mark.parametrize(
    ("case", "relation"),
    [
        pytest.param(
            case,
            relation,
            id=f"{case.name}, {relation}",
            marks=() if (case, relation) == (EVERY_GAME[0], "replace-one") else (pytest.mark.audit,),
        )
        for case in EVERY_GAME
        for relation in case.relations
    ],
)
def test_every_solver_of_games_is_the_same_in_every_place(case: Any, relation: str, tmp_path: Path) -> None:
    play_everywhere(case, relation, tmp_path, SHARDS)


@pytest.mark.parametrize(
    ("case", "relation"),
    [
        pytest.param(
            case,
            relation,
            id=f"{case.name}, {relation}",
            marks=() if (case, relation) == SYNTHESES[0] else (pytest.mark.audit,),
        )
        for case, relation in SYNTHESES
    ],
)
def test_every_synthesizer_is_the_same_in_every_place(case: Any, relation: str, tmp_path: Path) -> None:
    units = synthesis_cases.as_units(case, synthesis_cases.toy_codes(), relation)

    def engines() -> Iterator[tuple[str, Any]]:
        yield "in memory", InProcessEngine(units)
        yield "streamed", spooled(units, tmp_path)
        for workers, backwards in SHARDS:
            yield f"{workers} workers", sharded(units, workers=workers, backwards=backwards)

    def solve(curator: LocalCurator, public: Any) -> Any:
        program = case.synthesizer.configure(Task(case.workload, public, synthesis_cases.BUDGET))
        result = program.solve(curator, case.workload)
        return result._replace(params=result.params.answers(case.workload))

    require_equal(engines(), solve)


def kinds_of(solver: Any) -> set[type]:
    """The class of a solver, and of those that it runs inside."""
    inner = getattr(solver, "inner", None)
    return {type(solver)} | (set() if inner is None else kinds_of(inner))


def test_every_solver_is_tried() -> None:
    """A new one is missed here until it is in a list of cases."""
    tried = set[type]().union(*(kinds_of(case.solver) for case in (*EVERY_CASE, *EVERY_GAME)))
    named = set[type]().union(
        *(kinds_of(room.named(name)) for room in (solvers, games) for name in room.NAMES)
    )
    public = (getattr(privopt, name) for name in privopt.__all__)
    both = (Solver, GameSolver)
    assert named | {each for each in public if isinstance(each, type) and issubclass(each, both)} <= tried
    assert {type(synthesis.named(name)) for name in synthesis.NAMES} <= {
        type(case.synthesizer) for case in EVERY_SYNTHESIZER
    }
    assert {case.name for case in EVERY_CASE} >= AT_ONCE
