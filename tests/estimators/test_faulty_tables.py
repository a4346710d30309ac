"""One table with the faults that tables have: once its schema says how cells are written, the model is the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.turns import but_later

from privopt import LogisticRegression, Table
from privopt.solvers import GradientDescent

ROWS = 60
COLUMNS: dict[str, Any] = {
    "x": {"kind": "num", "low": -1, "high": 1},
    "f": {"kind": "flag"},
    "c": {"kind": "cat", "levels": ["1", "2", "3"]},
    "y": {"kind": "flag"},
}


def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, ROWS).round(3)
    x[7] = np.nan
    flags, levels = draw.integers(0, 2, ROWS), draw.integers(1, 4, ROWS)
    return pd.DataFrame({"x": x, "f": flags, "c": levels, "y": (x > 0).astype(int)})


def csv(rows: pd.DataFrame, **options: Any) -> Callable[[Path], str]:
    return lambda folder: rows.to_csv(folder / "t.csv", index=False, **options) or "t.csv"


def behind_a_line(folder: Path) -> str:
    (folder / "t.csv").write_text("sep=;\n" + frame().to_csv(index=False, sep=";"))
    return "t.csv"


def two_files(second: pd.DataFrame) -> Callable[[Path], str]:
    def written(folder: Path) -> str:
        frame()[:30].to_parquet(folder / "a.parquet")
        second[30:].to_parquet(folder / "b.parquet")
        return "*.parquet"

    return written


F = frame()
CODES = {"y": {"kind": "flag", "true": "1", "false": "2"}}
WORDS = {"c": {"kind": "cat", "levels": ["Eins", "Zwei", "Dr\u00fci"]}}
NAMED = F.assign(c=np.array(["eins", " Zwei", "DRU\u0308I"])[F.c - 1])
# What is written, what the schema says of the columns, and of files.
FAULTS: dict[str, tuple[Callable[[Path], str], dict[str, Any], dict[str, Any]]] = {
    "yes and no": (csv(F.assign(y=np.where(F.y, "Yes", "no"), f=np.where(F.f, "t", "F"))), {}, {}),
    "truth values": (csv(F.assign(y=F.y == 1, f=F.f == 1)), {}, {}),
    "codes 1 and 2": (csv(F.assign(y=2 - F.y)), CODES, {}),
    "a decimal comma": (csv(F, sep=";", decimal=","), {}, {"separator": ";", "decimal": ","}),
    "levels after a gap": (csv(F.assign(c=F.c.astype(float))), {}, {}),
    "levels in words": (csv(NAMED), WORDS, {}),
    "UTF-16": (csv(NAMED, encoding="utf-16"), WORDS, {}),
    "a byte-order mark": (csv(NAMED, encoding="utf-8-sig"), WORDS, {}),
    "Western Windows": (
        csv(NAMED.assign(c=NAMED.c.str.replace("U\u0308", "\u00dc")), encoding="cp1252"),
        WORDS,
        {"encoding": "cp1252"},
    ),
    "a line that names the separator": (behind_a_line, {}, {}),
    "quotes": (csv(F.astype(object).where(F.notna(), ""), quoting=1), {}, {}),
    "lines of Windows": (csv(F, lineterminator="\r\n"), {}, {}),
    "other columns in another order": (csv(F.assign(z="a,b")[["z", "y", "c", "f", "x"]]), {}, {}),
    "a marker": (csv(F.fillna(-99)), {}, {"missing": ["-99"]}),
    "a marker in Parquet": (two_files(F.fillna(-99)), {}, {"missing": ["-99"]}),
    "files of several types": (two_files(F.assign(c=F.c.astype(float), y=np.where(F.y, "y", "n"))), {}, {}),
}


def fitted(place: Path, columns: dict[str, Any], file: dict[str, Any]) -> LogisticRegression:
    schema = {"target": "y", "columns": {**COLUMNS, **columns}, "file": file}
    model = LogisticRegression(epsilon=1.0, delta=1e-5, solver=GradientDescent(steps=2), random_state=0)
    return model.fit(Table.open(str(place), schema))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LogisticRegression:
    folder = tmp_path_factory.mktemp("plain")
    return fitted(folder / csv(F)(folder), {}, {})


@pytest.mark.later("yes and no")
@pytest.mark.parametrize("name", but_later(list(FAULTS)[::3], FAULTS))
def test_a_fault_that_the_schema_describes_changes_no_model(
    name: str, plain: LogisticRegression, tmp_path: Path
) -> None:
    write, columns, file = FAULTS[name]
    model = fitted(tmp_path / write(tmp_path), columns, file)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.intercept_, plain.intercept_)
