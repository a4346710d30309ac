"""What needs too much of the units in this process is refused before a table that lies elsewhere is read."""

from pathlib import Path
from typing import Any

import pytest
from tests.tables.toy_tables import SCHEMA, write_forms

from privopt import Account, LogisticRegression, PrivateSearchCV, Table
from privopt.data.record_source import RecordSource
from privopt.errors import ArgumentError
from privopt.tables.table import EncodedRecords

MANY: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-12,
    "n": 2 * 10**8,
    "relation": "add-or-remove-one",
    "fit_intercept": False,
    "solver": "user-federated-averaging",
}


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


@pytest.mark.later("a search-ray", "strengths-ray")
@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("engine", ["stream", "ray"])
@pytest.mark.parametrize("asked", ["a fit", "strengths", "a search"])
def test_held_points_that_do_not_fit(asked: str, engine: str, folder: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    table = Table.open(folder / "four", SCHEMA, engine=engine, memory=10**6 if engine == "stream" else None)
    account = Account(9.0, 1e-3)
    options = {"account": account, **MANY, **({"alpha": "private"} if asked == "strengths" else {})}
    model: Any = LogisticRegression(**options)
    if asked == "a search":
        model = PrivateSearchCV(
            LogisticRegression(**{**MANY, "epsilon": None, "delta": None}),
            {"alpha": [0.1, 1.0]},
            epsilon=1.0,
            delta=1e-12,
            account=account,
        )
    with pytest.raises(
        ArgumentError, match=rf"holds .* numbers of the users .* engine='{engine}' .* Nothing was read"
    ):
        model.fit(table, groups="who")
    assert not account.entries


@pytest.mark.usefixtures("unread")
def test_rows_that_do_not_fit_the_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("privopt.engine.on_ray.engine.GATHERED_BYTES", 1000)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, solver="phased-sgd")
    with pytest.raises(ArgumentError, match=r"phased-sgd holds all rows at once .* engine='ray'"):
        model.fit(Table.open(folder / "four", SCHEMA, engine="ray"))
