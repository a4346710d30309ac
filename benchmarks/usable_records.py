"""What fits report of the records of six tables: price and error of the number of usable ones, and columns named.

    python -m benchmarks.usable_records [--epsilons 0.1 1 10]

Of each table a tenth of the targets, drawn at random, is made missing. The default reports the number of usable records
by the trace of a second moment that it releases anyway, for nothing, or by a count; a fit by gradient descent, which
releases no second moment, by a count for 1 % of the budget. Their errors are compared with the stated deviations. No
column of these tables is unreadable, so every column that a fit names is named wrongly. Then all number columns are
emptied, and the table says how many of them a fit names.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.datasets import SHARED_DATA
from privopt import LinearRegression, LogisticRegression, Table
from privopt.planning.plan import UNSEEN_COLUMNS, USABLE

TABLES = ("adult", "california", "compas", "fars", "german", "randhie")
MISSING, DELTA = 0.1, 1e-7


class Told(NamedTuple):
    """What a fit says of its records: their number, its stated deviation, and its share of the budget."""

    said: int | None
    deviation: float | None
    share: float

    @classmethod
    def of(cls, model: Any) -> "Told":
        """What a fitted model says."""
        plan = model.plan_
        deviation = plan.indicators[USABLE].value if model.usable_ is not None else None
        return cls(model.usable_, deviation, float(plan.settings.get("count_share", 0.0)))

    @property
    def cells(self) -> str:
        """The three of them."""
        price = "none" if self.share == 0.0 else f"{100 * self.share:g} %"
        return f"{_number(self.said)} | {_number(self.deviation)} | {price}"


class Row(NamedTuple):
    """One table at one epsilon: what was true, and what fits said."""

    table: str
    epsilon: float
    n: int
    true: int
    default: Told
    descent: Told
    wrongly: int
    columns: int
    emptied: int
    noticed: int


def rows(epsilons: Sequence[float]) -> Iterator[Row]:
    """Every table at every epsilon."""
    schema = json.loads((SHARED_DATA / "schema.json").read_text())
    with TemporaryDirectory() as folder:
        for name in TABLES:
            entry, draw = schema[name], np.random.default_rng(1)
            frame = pd.read_parquet(SHARED_DATA / f"{name}.parquet")
            target = entry["target"]
            kept = frame[target].notna().to_numpy() & (draw.random(len(frame)) >= MISSING)
            frame[target] = frame[target].astype(float).where(kept)
            numbers = [
                column
                for column, spec in entry["columns"].items()
                if spec["kind"] == "num" and column != target
            ]
            for epsilon in epsilons:
                model = _fitted(frame, entry, Path(folder), epsilon)
                emptied = [one for one in numbers if one in _features(model)]
                blank = frame.assign(**dict.fromkeys(emptied, np.nan))
                other = _fitted(blank, entry, Path(folder), epsilon)
                yield Row(
                    table=name,
                    epsilon=epsilon,
                    n=len(frame),
                    true=int(kept.sum()),
                    default=Told.of(model),
                    descent=Told.of(_fitted(frame, entry, Path(folder), epsilon, solver="gradient-descent")),
                    wrongly=_named(model),
                    columns=len(_features(model)),
                    emptied=len(emptied),
                    noticed=_named(other),
                )


def _features(model: Any) -> list[str]:
    return [block.column for block in model.encoder_.blocks_]


def _number(value: float | None) -> str:
    return "not reported" if value is None else f"{value:,.0f}"


def _named(model: Any) -> int:
    found = model.privacy_.findings
    return int(found[UNSEEN_COLUMNS].value) if UNSEEN_COLUMNS in found else 0


def _fitted(frame: pd.DataFrame, entry: Any, folder: Path, epsilon: float, solver: str = "auto") -> Any:
    """The model of a table, on a file that is written for it."""
    frame.to_parquet(folder / "table.parquet")
    table = Table.open(folder / "table.parquet", entry)
    options: Any = {"epsilon": epsilon, "delta": DELTA, "random_state": 1, "solver": solver}
    kind = entry["columns"][entry["target"]]["kind"]
    model: Any = LinearRegression(**options) if kind == "num" else LogisticRegression(**options)
    return model.fit(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line a fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.1, 1.0, 10.0])
    options = parser.parse_args(arguments)
    print(
        "| table | n | epsilon | usable | default | deviation | price | gradient descent | deviation | price "
        "| named wrongly | emptied, named |"
    )
    print(f"| --- |{' ---: |' * 11}")
    for row in rows(options.epsilons):
        print(
            f"| {row.table} | {row.n:,} | {row.epsilon:g} | {row.true:,} | {row.default.cells} "
            f"| {row.descent.cells} | {row.wrongly} of {row.columns} | {row.noticed} of {row.emptied} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
