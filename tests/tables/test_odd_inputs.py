"""Some 320 odd inputs: each is read as it is meant, counts as missing and is counted, or is refused in words."""

import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.odd_inputs import CASES, OddInput, counts_by_kind, outcome_of
from tests.support.turns import but_later

from privopt import Account, LogisticRegression, SyntheticData
from privopt.estimators import table_source
from privopt.solvers import GradientDescent
from privopt.tables import Schema, TableError, TabularEncoder
from privopt.tables.coding import TableCoding
from privopt.tables.table import Table

A_TENTH = list(CASES)[::10]
REFUSED_FILES = [name for name, case in CASES.items() if case.kind == "files" and isinstance(case.right, str)]
WRITTEN = [
    name
    for name, case in CASES.items()
    if case.kind in ("flags", "numbers as text", "categories", "dates")
    and all(isinstance(cell, str) or cell is None for cell in case.made(Path())["v"])
]


@pytest.mark.later("frames: numbers of Polars")
@pytest.mark.parametrize("name", but_later(A_TENTH, CASES))
def test_nothing_is_silently_wrong(name: str, tmp_path: Path) -> None:
    if "Polars" in name:
        pytest.importorskip("polars")
    outcome = outcome_of(CASES[name], tmp_path)
    assert outcome in ("read", "missing", "refused"), f"{name}: {outcome}"


def test_there_are_25_and_more_of_each_kind() -> None:
    found = counts_by_kind()
    assert set(found) == {
        "labels",
        "flags",
        "numbers as text",
        "categories",
        "missing cells",
        "dates",
        "bounds",
        "names of columns",
        "frames",
        "files",
        "options",
        "users' keys",
    }
    assert not {kind: count for kind, count in found.items() if count < 25}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_file_that_is_refused_costs_nothing(name: str, tmp_path: Path) -> None:
    case, account = CASES[name], Account(9.0, 1e-3)
    made = case.made(tmp_path)
    data = SyntheticData(case.schema, epsilon=1.0, delta=1e-6, n=100, account=account)
    for table in (lambda: made, lambda: Table.open(made, case.schema)):
        with pytest.raises(TableError, match=re.escape(str(case.right))):
            data.fit(table())
    assert not account.entries


def fit(case: OddInput, folder: Path, account: Account) -> None:
    """Fit a model of labels, or synthetic data, to an input."""
    made = case.made(folder)
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "n": 100, "relation": "add-or-remove-one"}
    if case.classes is None:
        SyntheticData(case.schema, "1-way", bins=8, account=account, **asked).fit(made)
    else:
        solver = GradientDescent(steps=1)
        model = LogisticRegression(
            bounds=(0, 1), classes=list(case.classes), solver=solver, account=account, **asked
        )
        model.fit(np.zeros((len(made), 1)), made)


# Synthetic data take a dictionary; a model takes no labels that are tuples.
FITTED = [name for name in CASES if name not in ("frames: a dictionary", "labels: labels of two columns")]


@pytest.mark.parametrize("name", but_later(FITTED[::40], FITTED))
def test_what_is_refused_costs_nothing_and_what_is_read_is_paid_once(name: str, tmp_path: Path) -> None:
    if "Polars" in name:
        pytest.importorskip("polars")
    case, account = CASES[name], Account(9.0, 1e-3, relation="add-or-remove-one")
    if isinstance(case.right, str):
        with pytest.raises((TableError, TypeError), match=re.escape(case.right)):
            fit(case, tmp_path, account)
        assert not account.entries
    else:
        fit(case, tmp_path, account)
        assert len(account.entries) == 1


@pytest.mark.audit
def test_none_of_all_odd_inputs_is_silently_wrong(tmp_path: Path) -> None:
    outcomes = Counter(outcome_of(case, tmp_path).partition(":")[0] for case in CASES.values())
    assert set(outcomes) == {"read", "missing", "refused"}
    assert sum(outcomes.values()) == len(CASES)


def containers(texts: list[str | None], folder: Path) -> Iterator[tuple[str, Any]]:
    """A column of texts in all that may hold one."""
    polars = pytest.importorskip("polars")
    yield "objects", pd.DataFrame({"v": pd.Series(texts, dtype=object)})
    for kind in ("str", "string[python]", "string[pyarrow]", "category"):
        yield kind, pd.DataFrame({"v": pd.array(texts, dtype=kind)})
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield str(kind), pa.table({"v": pa.array(texts, kind)})
    yield "a dictionary of Arrow", pa.table({"v": pa.array(texts, pa.string()).dictionary_encode()})
    for kind in ("String", "Categorical"):
        yield kind, polars.DataFrame({"v": polars.Series(texts, dtype=getattr(polars, kind))})
    pq.write_table(pa.table({"v": pa.array(texts, pa.string())}), folder / "t.parquet")
    yield "Parquet", folder / "t.parquet"
    if None not in texts:
        written = io.StringIO()
        csv.writer(written).writerows([["v", "w"], *([text, "x"] for text in texts)])
        (folder / "t.csv").write_text(written.getvalue(), newline="")
        yield "CSV", folder / "t.csv"
        (folder / "t.csv.gz").write_bytes(gzip.compress(written.getvalue().encode()))
        yield "packed CSV", folder / "t.csv.gz"


def read_everywhere(made: Any, schema: dict[str, Any]) -> list[Any]:
    """What a model, dense and sparse, and synthetic data make of a column."""
    dense, sparse = (
        TabularEncoder(schema, missing="indicator", sparse_output=is_sparse) for is_sparse in (False, True)
    )
    table = Table.open(made, schema) if isinstance(made, Path) else made
    features = (
        np.concatenate(list(table.features(dense))) if isinstance(table, Table) else dense.transform(table)
    )
    if not isinstance(table, Table):
        np.testing.assert_array_equal(sparse.transform(table).toarray(), features)
    coding = TableCoding.of(Schema.from_json(schema), 1000)
    codes = table_source.codes_of(table, coding, len(features))
    np.testing.assert_array_equal(codes[:, 0] == coding.columns[0].known, features[:, -1] == 1.0)
    return [features.tolist(), codes.tolist()]


@pytest.mark.parametrize("name", but_later(WRITTEN[::10], WRITTEN))
def test_a_text_is_read_alike_whatever_holds_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    schema = case.schema if case.kind != "numbers as text" else {"file": {"decimal": "."}, **case.schema}
    (_, first), *others = containers(list(case.made(tmp_path)["v"]), tmp_path)
    expected = read_everywhere(first, schema)
    for kind, made in others:
        assert read_everywhere(made, schema) == expected, kind
