"""Statistics of the panel: one rule's mean excess over another's, cell by cell, with tables weighing alike.

A cell is a problem, a loss and an epsilon; its ratio is that of two means over the same seeds. The geometric mean is
taken within tables first, then over tables, and intervals come from drawing tables with replacement: problems of one
table are alike, so that they are no independent witnesses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import Record, select

Floats = NDArray[np.float64]
CellKey = tuple[str, str, float]

LEAST_EXCESS = 1e-7  # below which an excess is the rounding of the non-private optimum
TOLERATED = 1.05  # of the constant model's excess
DRAWS, LEVEL, SEED = 4_000, 0.95, 1326


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One cell: how much of the other's mean excess a rule leaves.

    Attributes:
        table: the table.
        data: the problem.
        epsilon: the budget.
        ratio: mean excess over the other's mean excess.
        error: its standard error over the paired seeds; 0 where they are not paired.
    """

    table: str
    data: str
    epsilon: float
    ratio: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A statistic and its bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def key(record: Record) -> CellKey:
    """What a cell is known by: problem, loss, epsilon."""
    return record["data"], record["what"], record["epsilon"]


def by_cell(records: Sequence[Record], **fields: object) -> dict[CellKey, Record]:
    """The records with these values, by cell."""
    return {key(one): one for one in select(records, **fields)}


def ratios(rule: Mapping[CellKey, Record], base: Mapping[CellKey, Record]) -> list[Ratio]:
    """The cells that both have, in the order of the rule's."""
    return [_ratio(one, base[cell]) for cell, one in rule.items() if cell in base]


def _ratio(one: Record, other: Record) -> Ratio:
    ours, theirs = max(one["excess"], LEAST_EXCESS), max(other["excess"], LEAST_EXCESS)
    ratio, error = ours / theirs, 0.0
    left, right = np.asarray(one["excesses"]), np.asarray(other["excesses"])
    if len(left) == len(right) > 1:  # the delta method for a ratio of means
        error = float(np.std(left - ratio * right, ddof=1) / np.sqrt(len(left)) / theirs)
    return Ratio(table=one["table"], data=one["data"], epsilon=one["epsilon"], ratio=ratio, error=error)


def by_table(found: Sequence[Ratio]) -> dict[str, list[Ratio]]:
    """The cells of each table."""
    tables: dict[str, list[Ratio]] = {}
    for one in found:
        tables.setdefault(one.table, []).append(one)
    return tables


def geometric_mean(found: Sequence[Ratio]) -> float:
    """Of the ratios, cells weighing alike."""
    return float(np.exp(np.mean(np.log([one.ratio for one in found])))) if found else float("nan")


def table_means(found: Sequence[Ratio]) -> dict[str, float]:
    """The geometric mean of each table's cells."""
    return {table: geometric_mean(cells) for table, cells in by_table(found).items()}


def overall(found: Sequence[Ratio]) -> Interval:
    """The geometric mean with tables weighing alike."""
    logs = np.log(np.asarray(list(table_means(found).values())))
    return _bootstrapped(logs, lambda drawn: np.exp(np.mean(drawn, axis=-1)))


def share_above(found: Sequence[Ratio], limit: float) -> Interval:
    """The share of cells whose ratio is above a limit, tables weighing alike."""
    shares = [np.mean([one.ratio > limit for one in cells]) for cells in by_table(found).values()]
    return _bootstrapped(np.asarray(shares, float), lambda drawn: np.mean(drawn, axis=-1))


def against_constant(records: Mapping[CellKey, Record]) -> list[Ratio]:
    """Each cell's mean excess over that of the model that knows a released base rate and nothing else."""
    constant = {
        cell: {**one, "excess": one["constant"], "excesses": one["constants"]}
        for cell, one in records.items()
    }
    return ratios(records, constant)


def best_peer(records: Sequence[Record], peers: Sequence[str], **fields: object) -> dict[CellKey, Record]:
    """The record of the peer with the least mean excess, cell by cell."""
    best: dict[CellKey, Record] = {}
    for one in select(records, **fields):
        if one["method"] in peers and one["excess"] < best.get(key(one), {"excess": np.inf})["excess"]:
            best[key(one)] = one
    return best


def _bootstrapped(values: Floats, statistic: Callable[[Floats], Floats]) -> Interval:
    """A statistic of one number a table; the interval from tables drawn with replacement."""
    if not len(values):
        return Interval(value=float("nan"), low=float("nan"), high=float("nan"))
    drawn = values[np.random.default_rng(SEED).integers(len(values), size=(DRAWS, len(values)))]
    low, high = np.quantile(statistic(drawn), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(value=float(statistic(values)), low=float(low), high=float(high))
