"""The coded tables, bits and half-spaces that synthesizers are measured on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.datasets import SHARED_DATA

BINS = 32  # of a number whose range holds more whole numbers than that


@dataclass(frozen=True)
class CodedTable:
    """Codes, and each column's cells, that of a missing value included."""

    name: str
    codes: NDArray[np.int64]
    levels: tuple[int, ...]


def coded_table(name: str, shared: str | Path = SHARED_DATA) -> CodedTable:
    """All columns of a table but its keys, coded by the schema's public ranges and levels."""
    columns: dict[str, Any] = json.loads((Path(shared) / "schema.json").read_text())[name]["columns"]
    rows = pq.read_table(Path(shared) / f"{name}.parquet")
    codes, levels = [], []
    for column, about in columns.items():
        if about["kind"] == "id":
            continue
        values = rows[column].to_pandas()
        if about["kind"] == "cat":
            places = {level: code for code, level in enumerate(about["levels"])}
            code = np.array([places.get(str(value), len(places)) for value in values])
            cells = len(places)
        else:
            low, high = (0, 1) if about["kind"] == "flag" else (about["low"], about["high"])
            cells = min(BINS, int(high - low) + 1) if float(high - low).is_integer() else BINS
            width = 1.0 if cells == high - low + 1 else (high - low) / cells
            numbers = np.asarray(values, np.float64)
            inside = np.clip(np.floor((np.nan_to_num(numbers) - low) / width), 0, cells - 1)
            code = np.where(np.isnan(numbers), cells, inside)
        codes.append(code)
        levels.append(cells + 1)
    return CodedTable(name, np.stack(codes, axis=1).astype(np.int64), tuple(levels))


def randhie_bits(shared: str | Path = SHARED_DATA) -> NDArray[np.int64]:
    """(20 190, 16) thresholds of randhie's columns, as statsmodels has them."""
    rows = pq.read_table(Path(shared) / "randhie.parquet").to_pandas()
    rows["lncoins"] = np.log(np.asarray(rows["coins"], np.float64) + 1.0)
    thresholds = {
        "mdvis": (1, 3, 7),
        "lncoins": (1e-6, 3.5),
        "idp": (0.5,),
        "lpi": (1e-6, 6.3),
        "fmde": (1e-6, 6.5),
        "physlm": (0.05,),
        "disea": (7, 12),
        "hlthg": (0.5,),
        "hlthf": (0.5,),
        "hlthp": (0.5,),
    }
    bits = [
        np.asarray(rows[column], np.float64) >= threshold
        for column, many in thresholds.items()
        for threshold in many
    ]
    return np.stack(bits, axis=1).astype(np.int64)


def half_spaces(width: int, queries: int) -> NDArray[np.float64]:
    """Random half-spaces of the cells of so many bits: (queries, 2^width) of 0 and 1."""
    rng = np.random.default_rng(0)
    cells = (np.arange(2**width)[:, None] >> np.arange(width)) & 1
    slopes, offsets = rng.normal(size=(queries, width)), rng.normal(size=queries)
    return (cells @ slopes.T - slopes.sum(axis=1) / 2 >= offsets / 2).T.astype(np.float64)
