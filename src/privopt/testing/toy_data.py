"""Small data for a problem: what a solver is tried on, its neighbours, and data sets that have nothing in common."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.testing.hostile_rows import changed_place

Records = tuple[NDArray[np.float64], NDArray[np.float64]]


class Neighbours(NamedTuple):
    """Two data sets that differ in one unit.

    Attributes:
        name: what is put in its place.
        left: with the unit.
        right: with another one in its place, or without it.
        place: the position of the unit on the left.
    """

    name: str
    left: Units
    right: Units
    place: int


class TrialData(Protocol):
    """What a program is tried on."""

    @property
    def problem(self) -> Any:
        """What the program solves."""
        ...

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        ...

    @property
    def columns(self) -> int:
        """Features of a record."""
        ...

    @property
    def by_user(self) -> bool:
        """Whether two records are a user."""
        ...

    @property
    def seed(self) -> int:
        """Of the records."""
        ...

    def plain(self) -> Units:
        """The data themselves."""
        ...

    def neighbours(self, *, last: bool = False) -> Iterator[Neighbours]:
        """Pairs that differ in one unit, by what is put in its place: the last, the first or one in the middle."""
        ...

    def strangers(self) -> Iterator[tuple[str, Units]]:
        """Data sets of the same public description that are no neighbours."""
        ...

    def hopeless(self) -> Iterator[tuple[str, Units]]:
        """Data from which nothing can be learnt."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToyData:
    """Records of standard normal features, most of them longer than the row bound of 1, and targets of a loss's kind.

    Attributes:
        problem: whose loss says what targets are.
        relation: which data sets are neighbours.
        records: how many there are.
        columns: features of each.
        by_user: whether two records are a user, of at most three.
        seed: of the records.
    """

    problem: Problem
    relation: Relation
    records: int = 40
    columns: int = 5
    by_user: bool = False
    seed: int = 0

    def arrays(self) -> Records:
        """Features (records, columns), and targets."""
        return toy_arrays(self.problem, self.records, self.columns, self.seed)

    def units(self, features: NDArray[np.float64], targets: NDArray[np.float64]) -> Units:
        """Records as units. Which ones of a user are used is chosen alike every time."""
        if not self.by_user:
            return Units.from_arrays(features, targets, relation=self.relation, row_bound=1.0, n=self.records)
        return Units.from_arrays(
            features,
            targets,
            relation=self.relation,
            row_bound=1.0,
            n=self.records // 2,
            groups=np.arange(len(features)) // 2,
            max_records_per_user=3,
            noise=NoiseSource(7),
        )

    def plain(self) -> Units:
        """The data themselves."""
        return self.units(*self.arrays())

    def neighbours(self, *, last: bool = False) -> Iterator[Neighbours]:
        """Pairs that differ in one unit: its last record is another one, or the unit is gone.

        Args:
            last: whether it is always the last unit; otherwise the last, the first and one in the middle take turns.
        """
        features, _ = self.arrays()
        row = features[3]
        instead_of = {
            "another row": -row,
            "the opposite row": -features,
            "a huge row": np.full_like(row, 1e30),
            "a tiny row": np.full_like(row, 1e-30),
            "an empty row": np.zeros_like(row),
            "a row with NaN": np.full_like(row, np.nan),
            "an infinite row": np.full_like(row, -np.inf),
            "a duplicated row": row,
        }
        size = 2 if self.by_user else 1
        for number, (name, instead) in enumerate(instead_of.items()):
            place = changed_place(0 if last else number, self.records // size)
            end = size * (place + 1) - 1
            left, right = self.pair(instead[end] if instead.ndim > 1 else instead, place)
            yield Neighbours(name, left, right, place)

    def pair(self, instead: NDArray[np.float64], place: int) -> tuple[Units, Units]:
        """The data, and the same with another row of one unit; or the latter, and the same without the unit."""
        features, targets = self.arrays()
        size = 2 if self.by_user else 1
        end = size * (place + 1) - 1
        other, moved = features.copy(), targets.copy()
        other[end] = instead
        if isinstance(self.problem.loss, GroupedLoss):  # another label, in another group
            moved[end] = -np.sign(targets[end]) * (np.abs(targets[end]) % self.problem.loss.groups + 1)
        if self.relation is Relation.REPLACE_ONE:
            return self.units(features, targets), self.units(other, moved)
        kept = np.arange(self.records) // size != place
        return self.units(other, targets), self.units(other[kept], targets[kept])

    def strangers(self) -> Iterator[tuple[str, Units]]:
        """Data sets of the same public description that are no neighbours; the last one differs in its count alone."""
        features, targets = self.arrays()
        yield "other records", self.units(-3.0 * features[::-1], targets[::-1])
        huge = np.where(np.arange(self.columns) % 2, 1e300, -1e300) * np.sign(features)
        huge[::4] = np.nan
        yield "records that are huge or not numbers", self.units(huge, targets)
        if self.relation is Relation.ADD_OR_REMOVE_ONE:
            half = self.records // 4 * 2
            yield "half of the units", self.units(features[:half], targets[:half])

    def hopeless(self) -> Iterator[tuple[str, Units]]:
        """Data from which nothing can be learnt."""
        features, targets = self.arrays()
        for value in (np.nan, np.inf, 1e300, 0.0):
            yield f"rows of {value}", self.units(np.full_like(features, value), targets)


def toy_arrays(problem: Problem, records: int, columns: int, seed: int = 0) -> Records:
    """Features (records, columns) and targets of the kind that the problem's loss is of."""
    rng = np.random.default_rng(seed)
    loss: Any = problem.loss
    features = rng.normal(size=(records, columns))
    scores = features @ np.arange(1.0, columns + 1.0)
    if loss.outputs > 1:
        cuts = np.linspace(-3.0, 3.0, loss.outputs - 1)
        return features, np.digitize(scores, cuts).astype(np.float64)
    if isinstance(loss, GroupedLoss):
        groups = rng.integers(1, loss.groups + 1, records)
        return features, (groups * np.where(scores + rng.normal(size=records) > 0, 1.0, -1.0)).astype(
            np.float64
        )
    if loss.name in ("logistic", "smoothed hinge"):
        return features, np.where(scores + rng.normal(size=records) > 0, 1.0, -1.0)
    return features, np.tanh(scores)
