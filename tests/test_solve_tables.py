"""`minimize` and `minimax` on a table in files: its users, its relation, its formats, as from arrays to the byte."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.tables.toy_tables import SCHEMA, toy_table, write_forms

from privopt import Account, Budget, SaddleProblem, Table, TabularEncoder, Units, losses, minimax, minimize
from privopt.data.read_units import read_units, stated_public
from privopt.data.record_source import ArrayRecords, Description, RecordSource
from privopt.engine.placement import PlaceName
from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.problems.constraints import L1Ball, Simplex
from privopt.solvers import SampledDualAveraging
from privopt.tables import user_keys
from privopt.tables.table import EncodedRecords

BUDGET = Budget(1.0, 1e-6)
DESCENT: dict[str, Any] = {"budget": BUDGET, "random_state": 1, "solver": "gradient-descent"}
HELD: dict[str, Any] = {"budget": Budget(1.0, 1e-12), "solver": "user-federated-averaging"}
MANY: dict[str, Any] = {"relation": "add-or-remove-one", "groups": "who", "max_records_per_user": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    write_forms(path)
    return path


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: RecordSource, *where: Any) -> Any:
        raise AssertionError("records are read")

    monkeypatch.setattr(EncodedRecords, "blocks", read)


def units(**described: Any) -> Units:
    table, encoder = toy_table(), TabularEncoder(SCHEMA)
    described = {"row_bound": encoder.row_norm_bound_, **described}
    return Units.from_arrays(encoder.transform(table), table["ill"].to_numpy(), classes=[0, 1], **described)


def bytes_of(result: Any) -> bytes:
    return np.asarray(result.params).tobytes()


@pytest.mark.later("stream")
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_users_of_a_table_are_those_of_arrays(engine: PlaceName, folder: Path) -> None:
    """None has more records than the cap: which of them are kept is a secret, and would differ."""
    table = Table.open(folder / "four", SCHEMA, engine=engine)
    keys = user_keys(toy_table(), "who")
    plain = minimize(losses.logistic, units(groups=keys, max_records_per_user=50), **DESCENT)
    found = minimize(losses.logistic, table, groups="who", max_records_per_user=50, **DESCENT)
    public = found.plan.public
    assert bytes_of(found) == bytes_of(plain)
    assert (public.unit, public.n, public.records_per_unit) == ("user", 89, 50)
    assert public == plain.plan.public


def test_records_of_a_table_may_come_and_go(folder: Path) -> None:
    options: dict[str, Any] = {"relation": "add-or-remove-one", "n": 700}
    table = Table.open(folder / "four", SCHEMA, n=700)
    found = minimize(losses.logistic, table, relation="add-or-remove-one", **DESCENT)
    assert bytes_of(found) == bytes_of(minimize(losses.logistic, units(**options), **DESCENT))
    with pytest.raises(ValueError, match="n is missing"):
        minimize(
            losses.logistic, Table.open(folder / "four", SCHEMA), relation="add-or-remove-one", **DESCENT
        )


def test_what_says_whose_its_records_are_is_told_of_a_table_alone(folder: Path) -> None:
    table = Table.open(folder / "four", SCHEMA)
    for given in ({"groups": "who"}, {"relation": "add-or-remove-one"}, {"max_records_per_user": 3}):
        for data in (units(), table.engine()):
            (name,) = given
            with pytest.raises(ArgumentTypeError, match=f"{name} was given beside .* Units.from_arrays"):
                minimize(losses.logistic, data, **given, **DESCENT)
    with pytest.raises(ArgumentTypeError, match="groups was given beside Units"):
        minimax(game(), units(), groups="who", budget=BUDGET)
    with pytest.raises(ArgumentError, match="max_records_per_user is a cap on the records of a user: name"):
        minimize(losses.logistic, table, max_records_per_user=3, **DESCENT)
    with pytest.raises(ArgumentError, match="groups of a table must be the name of a column"):
        minimize(losses.logistic, table, groups=[1, 2], **DESCENT)


@pytest.mark.at_once("float64")
@pytest.mark.parametrize("storage", ["int16", "int8", "float64"])
def test_rows_are_stored_in_the_format_that_is_asked_for(storage: Any, folder: Path) -> None:
    engine = Table.open(folder / "four", SCHEMA).engine(storage=storage)
    bound = (
        1.0 if storage.startswith("int") else None
    )  # of encoded entries: the grid is as fine as they allow
    plain = units(storage=storage, entry_bound=bound)
    assert engine.public == plain.public
    found = minimize(losses.logistic, engine, **DESCENT)
    assert bytes_of(found) == bytes_of(minimize(losses.logistic, plain, **DESCENT))


def test_a_grid_holds_the_constant_and_no_more_than_the_rows(folder: Path) -> None:
    table = Table.open(folder / "four", SCHEMA)
    for described, entry in (
        ({"intercept": 2.0}, 2.0),
        ({"row_bound": 0.5}, 0.5),
        ({"entry_bound": 3.0}, 3.0),
    ):
        assert table.engine(storage="int8", **described).public.entry_bound == entry
    assert table.engine().public.entry_bound is None
    with pytest.raises(ValueError, match="storage must be"):
        table.engine(storage="int4")


@pytest.mark.later("described0-who", "described1-who")
@pytest.mark.parametrize("groups", [None, "who"])
@pytest.mark.parametrize("described", [{}, {"storage": "int8", "intercept": 1.0}])
def test_what_is_said_ahead_is_what_the_engine_states(groups: Any, described: Any, folder: Path) -> None:
    said = list[Any]()
    for place in ("memory", "stream"):
        table = Table.open(folder / "four", SCHEMA, engine=place)
        engine = table.engine(groups=groups, ahead=lambda *told: said.append(told), **described)
        public, placement = said.pop()
        assert (public, placement.engine) == (engine.public, place)
        engine.close()


def test_what_is_said_of_sparse_records_is_what_is_stated() -> None:
    rows = sparse.random_array((40, 6), density=0.3, format="csr", random_state=0)
    described = Description(row_bound=1.0, n=20, classes=[0, 1, 2], intercept=1.0, max_records_per_user=3)
    for keys in (None, np.arange(40) % 20):
        source = ArrayRecords(rows, np.arange(40) % 3, keys)
        source.row_entries = 6
        description = described if keys is not None else replace(described, n=None)
        assert stated_public(source, description) == read_units(source, description).public


def game() -> SaddleProblem:
    def pay(x: Any, y: Any, features: Any, target: Any) -> Any:
        return (features @ x) * y[0] - 0.1 * jnp.sum(y * y) * (1.0 + 0.0 * target)

    return SaddleProblem(pay, x=L1Ball(2.0), y=Simplex(), sizes=(3, 2))


def test_a_game_is_played_on_a_table(folder: Path) -> None:
    options: dict[str, Any] = {"budget": BUDGET, "solver": SampledDualAveraging(steps=3), "random_state": 0}
    found = minimax(game(), Table.open(folder / "four", SCHEMA), **options)
    plain = minimax(game(), units(), **options)
    assert np.array_equal(found.params[0], plain.params[0])
    assert "Rows were read from files and kept in the memory of this process." in found.report.declared
    assert "Schema, given by the user: the kinds and bounds or levels of" in found.report.declared[0]
    assert found.report.declared[1].startswith("Missing cells: a number became the middle of its bounds")
    played = minimax(game(), Table.open(folder / "four", SCHEMA), groups="who", **options)
    assert played.plan.public.unit == "user"


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("engine", ["stream", "ray"])
def test_held_points_that_do_not_fit_are_refused_before_records_are_read(
    engine: PlaceName, folder: Path
) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    memory = 10**6 if engine == "stream" else None
    table = Table.open(folder / "four", SCHEMA, n=2 * 10**8, engine=engine, memory=memory)
    account = Account(9.0, 1e-3)
    with pytest.raises(
        ArgumentError, match=rf"holds .* numbers of the users .* engine='{engine}' .* Nothing was read"
    ):
        minimize(losses.logistic, table, account=account, **MANY, **HELD)
    assert not account.entries
