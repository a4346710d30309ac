"""What is said of a model of a table: its marginals beside the released ones, in tables, pictures and sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from privopt.planning.picture import Picture, bars
from privopt.planning.plan import UNREAD_CELLS, Finding
from privopt.planning.row_length import LEAST_SHARE, SURE
from privopt.planning.usable import CELL_CAUSES
from privopt.problems.workload import Workload, codes_of
from privopt.report.model import ModelSummary
from privopt.synthesis.base import Model
from privopt.synthesis.measured import ReleasedMarginal, estimated
from privopt.tables.coding import ColumnCoding, TableCoding

MOST_PICTURES, MOST_BARS = 4, 40
MOST_NAMED = 12  # columns in a sentence


def marginal_table(
    model: Model,
    measured: Sequence[ReleasedMarginal],
    total: float,
    coding: TableCoding,
    places: Sequence[int],
) -> pd.DataFrame:
    """A row for each cell of a marginal, see `SyntheticData.marginal`.

    Args:
        model: of the table.
        measured: the released marginals.
        total: the total weight of the units over n, as released; shares are of the units that are there.
        coding: the columns' cells.
        places: the columns.
    """
    codes = codes_of(coding.levels, places)
    columns: dict[str, Any] = {
        coding.names[place]: np.array(coding.columns[place].labels, dtype=object)[codes[:, at]]
        for at, place in enumerate(places)
    }
    found = estimated(measured, coding.levels, places)
    columns["share"] = model.marginal(tuple(places))
    columns["released"] = np.nan if found is None else found.shares / total
    columns["stddev"] = np.nan if found is None else found.stddev / total
    return pd.DataFrame(columns)


def pictures(
    model: Model, measured: Sequence[ReleasedMarginal], total: float, coding: TableCoding
) -> tuple[Picture, ...]:
    """Some columns as released, with error bars of two standard deviations, beside the model."""
    shown: list[Picture] = []
    for place, column in enumerate(coding.columns):
        found = estimated(measured, coding.levels, (place,))
        if found is None or column.cells > MOST_BARS or len(shown) == MOST_PICTURES:
            continue
        shares, error = found.shares / total, 2.0 * found.stddev / total
        shown.append(
            Picture(
                title=f"{column.spec.name}: released, and in the sample",
                caption="Error bars are two standard deviations of the noise."
                + ("" if column.spec.required else " The last cell is for missing values."),
                x=column.spec.name,
                y="share of the units",
                series=(
                    bars("released", shares.tolist(), [error] * len(shares)),
                    bars("synthetic", model.marginal((place,)).tolist()),
                ),
                categories=tuple(column.labels),
            )
        )
    return tuple(shown)


def unread_cells(
    measured: Sequence[ReleasedMarginal], total: float, coding: TableCoding
) -> dict[str, Finding]:
    """The notice on columns of which fewer than 95 % of the cells could be read, by two standard deviations.

    It is read off the released marginals, at no further price; a `required` column has no cell for what is missing.
    """
    told: list[str] = []
    for place, column in enumerate(coding.columns):
        found = None if column.spec.required else estimated(measured, coding.levels, (place,))
        if found is None:
            continue
        read, deviation = 1.0 - float(found.shares[-1]) / total, found.stddev / total
        if SURE * deviation < LEAST_SHARE and read + SURE * deviation < LEAST_SHARE:
            share = 100.0 * min(max(read, 0.0), 1.0)
            told.append(f"{share:.0f} % (± {max(100.0 * deviation, 0.1):.1f}) of {column.spec.name}")
    if not told:
        return {}
    more = f" and of {len(told) - MOST_NAMED:,} more columns likewise" if len(told) > MOST_NAMED else ""
    meaning = (
        f"of the cells only these shares could be read: {', '.join(told[:MOST_NAMED])}{more}; the others are missing "
        f"in the model. {CELL_CAUSES}"
    )
    return {UNREAD_CELLS: Finding(len(told), meaning)}


def model_summary(model: Model, coding: TableCoding) -> ModelSummary:
    """The model's share of every value of every column."""
    names = [f"{name} = {label}" for name, column in _named(coding) for label in column.labels]
    shares = np.concatenate([model.marginal((place,)) for place in range(len(coding.columns))])
    return ModelSummary.of(
        "SyntheticData",
        shares,
        features=names,
        meaning="Each number is the share of the sampled rows that have this value in that column. How columns go "
        "together is in the model as well.",
    )


def declared_facts(coding: TableCoding, workload: Workload) -> tuple[str, ...]:
    """What the user declared public, in sentences."""
    names = ", ".join(map(repr, coding.names[:MOST_NAMED])) + (
        f" and {len(coding.names) - MOST_NAMED} more" if len(coding.names) > MOST_NAMED else ""
    )
    numbers = [column for column in coding.columns if column.spec.kind in ("num", "date")]
    facts = [
        f"The levels and ranges of the columns {names} are public. A value outside of them counts as missing, a number "
        "outside of its range as its nearer end."
    ]
    required = [column.spec.name for column in coding.columns if column.spec.required]
    if required:
        facts.append(
            f"Never missing, as the schema says: {', '.join(map(repr, required[:MOST_NAMED]))}"
            f"{f' and {len(required) - MOST_NAMED} more' if len(required) > MOST_NAMED else ''}. A cell of these that "
            "cannot be read counts as the first level, 0, or the middle of the range."
        )
    if numbers:
        finest = ", ".join(f"{one.spec.name!r} {one.known}" for one in numbers[:MOST_NAMED])
        facts.append(f"Numbers are cut into public bins, within which sampled ones are uniform: {finest}.")
    what = f"{len(workload.sets):,} marginals" if workload.sets else f"{workload.size:,} queries"
    facts.append(f"The model was made to answer {what}, which are public.")
    return tuple(facts)


def _named(coding: TableCoding) -> list[tuple[str, ColumnCoding]]:
    return list(zip(coding.names, coding.columns, strict=True))
