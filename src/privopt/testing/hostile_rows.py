"""Neighbouring data sets that are hostile to a bound: numbers from 1e-323 to 1e308, NaN, infinities, twins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Storage
from privopt.data.units import Units
from privopt.public import INTEGER_STORAGES, Relation

Layout = Literal["dense", "csr", "dense users", "csr users"]

UNITS = 5
# Where squares, products and reciprocals of float32 and float64 numbers end, and the least size of a stored row.
EDGES = (-323, -308.5, -308, -162, -161.7, -160, -154, -46, -38.5, -24, -8, 0, 38, 154, 300, 307.7, 308)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is public about two neighbouring data sets, and how they are stored.

    Attributes:
        columns: d, features of a record.
        row_bound: rows are clipped to this l2 norm.
        levels: of a coded table, the cells of each column; empty for numbers.
        relation: which data sets are neighbours.
        storage: of the rows.
        layout: dense or CSR; a unit is a record, or a user of two.
        units: the public number of units.
    """

    columns: int
    row_bound: float = 1.0
    levels: tuple[int, ...] = ()
    relation: Relation = Relation.REPLACE_ONE
    storage: Storage = "float32"
    layout: Layout = "dense"
    units: int = UNITS

    def __str__(self) -> str:
        return f"{self.relation.value}, {self.storage}, {self.layout}"

    @property
    def of_users(self) -> bool:
        """Whether a unit owns two records."""
        return "users" in self.layout

    @property
    def records(self) -> int:
        """How many records all units have."""
        return self.units * (2 if self.of_users else 1)

    def generator(self, seed: int) -> np.random.Generator:
        """The random numbers of one pair: another pair in each setting."""
        return np.random.default_rng([seed, *f"{self.relation.value} {self.storage} {self.layout}".encode()])

    def stored(
        self, features: NDArray[Any], targets: NDArray[Any], owners: NDArray[np.int64] | None = None
    ) -> Units:
        """These records as units, some of which may be absent. Users own two in turn unless `owners` says more."""
        groups = None
        if self.of_users:
            groups = np.arange(len(features)) // 2 if owners is None else owners
        if self.levels:
            return Units.from_codes(
                features,
                levels=self.levels,
                relation=self.relation,
                n=self.units,
                groups=groups,
                max_records_per_user=2,
            )
        return Units.from_arrays(
            sparse.csr_array(features) if "csr" in self.layout else features,
            targets,
            row_bound=self.row_bound,
            relation=self.relation,
            n=self.units,
            storage=self.storage,
            groups=groups,
            max_records_per_user=2,
        )


def settings(
    columns: int,
    row_bound: float,
    levels: tuple[int, ...],
    *,
    relations: Sequence[Relation | str],
    layouts: Sequence[Layout],
    storages: Sequence[Storage],
) -> Iterator[Setting]:
    """Every way to store the data; a coded table has dense ones only, and sparse rows no grid."""
    for layout in layouts:
        if levels and "csr" in layout:
            continue
        for relation in relations:
            for storage in storages[:1] if levels else storages:
                if "csr" in layout and storage in INTEGER_STORAGES:
                    continue
                yield Setting(
                    columns=columns,
                    row_bound=row_bound,
                    levels=levels,
                    relation=Relation.parse(relation),
                    storage=storage,
                    layout=layout,
                )


def hostile_numbers(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Numbers of either sign between 1e-323 and 1.7e308, rows mostly of one size, and a few zeros, NaN, infinities."""
    rows = np.where(
        rng.random(shape[0]) < 0.5, rng.choice(EDGES, shape[0]), rng.uniform(-323.0, 308.2, shape[0])
    )
    spread = rng.choice([0.0, 0.3, 3.0, 20.0, 300.0], shape[0])
    exponents = rows[:, None] - spread[:, None] * rng.random(shape)
    numbers = rng.choice([-1.0, 1.0], shape) * 10.0 ** np.minimum(exponents, 308.2)
    return np.where(rng.random(shape) < 0.05, rng.choice([0.0, np.nan, np.inf, 1.0]), numbers)


def hostile_targets(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Labels or classes, huge or ordinary numbers, or any."""
    kind = int(rng.integers(4))
    if kind == 3:
        return hostile_numbers(rng, (count, 1))[:, 0]
    return rng.choice([-1.0, 0.0, 1.0, 2.0], count) * (1.0, 1e290, 8e307)[kind]


def hostile_codes(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Codes, and numbers that are none."""
    return np.where(rng.random(shape) < 0.8, rng.integers(-1, 4, shape), hostile_numbers(rng, shape))


class Pair(NamedTuple):
    """Two sets of units that differ in one.

    Attributes:
        left: without it, under add-or-remove-one.
        right: with it.
        place: its position on the right.
    """

    left: Units
    right: Units
    place: int


def changed_place(number: int, units: int) -> int:
    """Which unit differs in one of several pairs: the last, the first and one in the middle, in turn."""
    return (units - 1, 0, units // 2)[number % 3]


def hostile_pair(seed: int, setting: Setting) -> Pair:
    """Two sets of units that differ in one, by all that may stand in a record, or by its absence."""
    rng, count = setting.generator(seed), setting.records
    numbers = hostile_codes if setting.levels else hostile_numbers
    size, place = count // setting.units, changed_place(seed, setting.units)
    changed = np.arange(count) // size == place
    first = size * place
    rows, targets = numbers(rng, (count, setting.columns)), hostile_targets(rng, count)
    other, turned = rows.copy(), targets.copy()
    if rng.random() < 0.3:  # the opposite: what moves furthest if all is well
        turned[changed] = -targets[changed]
        other[changed] = rows[changed] * rng.choice([-1.0, 1.0])
    else:
        other[changed] = numbers(rng, (count, setting.columns))[changed]
        turned[changed] = hostile_targets(rng, count)[changed]
    others = rng.random()
    if others < 0.3:  # nobody else pulls
        rows[~changed] = other[~changed] = 0.0
        targets[~changed] = turned[~changed] = 0.0
    elif others < 0.45:  # everybody is a twin of the one that changes
        rows[~changed], targets[~changed] = rows[first], targets[first]
        other[~changed], turned[~changed] = rows[first], targets[first]
    if setting.relation is Relation.REPLACE_ONE:
        return Pair(setting.stored(rows, targets), setting.stored(other, turned), place)
    # Beside the one that comes or goes there are all others, or few: means divide by the public number.
    gone = 0 if rng.random() < 0.7 else int(rng.integers(setting.units - 1))
    there = changed | (np.cumsum(~changed) > gone * size)
    left, right = there & ~changed, there
    return Pair(
        setting.stored(rows[left], targets[left]),
        setting.stored(other[right], turned[right]),
        int(np.sum(left[:first])) // size,
    )


def ordinary_pair(seed: int, setting: Setting, *, target_scale: float, present: int) -> Pair:
    """Two sets of units of ordinary rows that differ in one: another of the opposite sign, or none.

    Args:
        seed: of the rows.
        setting: how they are stored.
        target_scale: how large the targets are.
        present: under add-or-remove-one, how many units there are with the one that comes or goes.
    """
    rng, count = setting.generator(seed), setting.records
    size = 2 if setting.of_users else 1
    if setting.levels:
        rows = np.stack([rng.integers(0, cells, count) for cells in setting.levels], axis=1).astype(float)
        targets = np.zeros(count)
    else:
        rows = rng.normal(size=(count, setting.columns))
        rows *= setting.row_bound / np.linalg.norm(rows, axis=1, keepdims=True)
        targets = target_scale * rng.choice([-1.0, 1.0], count)
    if setting.relation is Relation.ADD_OR_REMOVE_ONE:
        rows, targets = rows[: present * size], targets[: present * size]
        place = changed_place(seed, present)
        kept = np.arange(present * size) // size != place
        return Pair(setting.stored(rows[kept], targets[kept]), setting.stored(rows, targets), place)
    other, turned = rows.copy(), targets.copy()
    place = changed_place(seed, setting.units)
    changed = np.arange(count) // size == place
    if setting.levels:
        other[changed] = np.asarray(setting.levels) - 1.0 - rows[changed]
    elif seed % 2:
        other[changed] *= -1.0
    else:
        turned[changed] *= -1.0
    return Pair(setting.stored(rows, targets), setting.stored(other, turned), place)
