"""Small data for a problem: what a solver is tried on, its neighbours, and data sets that have nothing in common."""

import abc
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Storage
from privopt.data.units import Units
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.public import INTEGER_STORAGES, Relation

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


@dataclass(frozen=True, kw_only=True)
class TrialData(abc.ABC):
    """What a program is tried on.

    Attributes:
        problem: what the program solves.
        relation: which data sets are neighbours.
        records: how many there are.
        columns: features of each.
        by_user: whether two records are a user, of at most three.
        seed: of the records.
    """

    problem: Any
    relation: Relation
    records: int
    columns: int
    by_user: bool = False
    seed: int = 0

    of_no_use: ClassVar[tuple[float, ...]]  # what rows hold from which nothing can be learnt

    @abc.abstractmethod
    def arrays(self) -> Records:
        """Features (records, columns), and targets."""

    @abc.abstractmethod
    def stored(self, features: NDArray[np.float64], targets: NDArray[np.float64], **described: Any) -> Units:
        """Records as units of this description."""

    @abc.abstractmethod
    def instead_of(self) -> dict[str, NDArray[np.float64]]:
        """What is put in a record's place, by name: one row, or one for each record."""

    @abc.abstractmethod
    def others(self) -> dict[str, Records]:
        """As many records that have nothing in common with these, by name."""

    def turned(self, targets: NDArray[np.float64], place: int) -> NDArray[np.float64]:
        """The targets with that of a record whose row is another one."""
        del place
        return targets

    @property
    def size(self) -> int:
        """Records of a unit."""
        return 2 if self.by_user else 1

    def units(self, features: NDArray[np.float64], targets: NDArray[np.float64]) -> Units:
        """Records as units. Which ones of a user are used is chosen alike every time."""
        described: dict[str, Any] = {"relation": self.relation, "n": self.records // self.size}
        if self.by_user:
            groups = np.arange(len(features)) // 2
            described |= {"groups": groups, "max_records_per_user": 3, "noise": NoiseSource(7)}
        return self.stored(features, targets, **described)

    def plain(self) -> Units:
        """The data themselves."""
        return self.units(*self.arrays())

    def neighbours(self, *, last: bool = False) -> Iterator[Neighbours]:
        """Pairs that differ in one unit: its last record is another one, or the unit is gone.

        Args:
            last: whether it is always the last unit; otherwise the last, the first and one in the middle take turns.
        """
        for number, (name, instead) in enumerate(self.instead_of().items()):
            place = changed_place(0 if last else number, self.records // self.size)
            end = self.size * (place + 1) - 1
            left, right = self.pair(instead[end] if instead.ndim > 1 else instead, place)
            yield Neighbours(name, left, right, place)

    def pair(self, instead: NDArray[np.float64], place: int) -> tuple[Units, Units]:
        """The data, and the same with another row of one unit; or the latter, and the same without the unit."""
        features, targets = self.arrays()
        end = self.size * (place + 1) - 1
        other = features.copy()
        other[end] = instead
        if self.relation is Relation.REPLACE_ONE:
            return self.units(features, targets), self.units(other, self.turned(targets, end))
        kept = np.arange(self.records) // self.size != place
        return self.units(other, targets), self.units(other[kept], targets[kept])

    def strangers(self) -> Iterator[tuple[str, Units]]:
        """Data sets of the same public description that are no neighbours; the last one differs in its count alone."""
        for name, records in self.others().items():
            yield name, self.units(*records)
        if self.relation is Relation.ADD_OR_REMOVE_ONE:
            half = self.records // 4 * 2
            features, targets = self.arrays()
            yield "half of the units", self.units(features[:half], targets[:half])

    def hopeless(self) -> Iterator[tuple[str, Units]]:
        """Data from which nothing can be learnt."""
        features, targets = self.arrays()
        for value in self.of_no_use:
            yield f"rows of {value}", self.units(np.full_like(features, value), targets)


@dataclass(frozen=True, kw_only=True)
class ToyData(TrialData):
    """Records of standard normal features, most longer than the row bound of 1, and targets of a loss's kind."""

    of_no_use: ClassVar[tuple[float, ...]] = (np.nan, np.inf, 1e300, 0.0)

    def arrays(self) -> Records:
        """Features (records, columns), and targets."""
        return toy_arrays(self.problem, self.records, self.columns, self.seed)

    def stored(self, features: NDArray[np.float64], targets: NDArray[np.float64], **described: Any) -> Units:
        """Records as units of this description."""
        return Units.from_arrays(features, targets, row_bound=1.0, **described)

    def instead_of(self) -> dict[str, NDArray[np.float64]]:
        """Other rows, very large and very small ones, and what is none."""
        features, _ = self.arrays()
        row = features[3]
        return {
            "another row": -row,
            "the opposite row": -features,
            "a huge row": np.full_like(row, 1e30),
            "a tiny row": np.full_like(row, 1e-30),
            "an empty row": np.zeros_like(row),
            "a row with NaN": np.full_like(row, np.nan),
            "an infinite row": np.full_like(row, -np.inf),
            "a duplicated row": row,
        }

    def turned(self, targets: NDArray[np.float64], place: int) -> NDArray[np.float64]:
        """Of a loss of groups, another label in another group."""
        if not isinstance(self.problem.loss, GroupedLoss):
            return targets
        moved = targets.copy()
        moved[place] = -np.sign(targets[place]) * (np.abs(targets[place]) % self.problem.loss.groups + 1)
        return moved

    def others(self) -> dict[str, Records]:
        """Others, and such as are huge or not numbers."""
        features, targets = self.arrays()
        huge = np.where(np.arange(self.columns) % 2, 1e300, -1e300) * np.sign(features)
        huge[::4] = np.nan
        return {
            "other records": (-3.0 * features[::-1], targets[::-1]),
            "records that are huge or not numbers": (huge, targets),
        }


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


# ------------------------------------------------------------------------------------------------------------
# Neighbouring data sets that are hostile to a bound: numbers from 1e-323 to 1e308, NaN, infinities, twins.


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
    def arguments(self) -> str:
        """Those of a check that tries this setting alone."""
        return f"relations=[{self.relation.value!r}], layouts=[{self.layout!r}], storages=[{self.storage!r}]"

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


# ------------------------------------------------------------------------------------------------------------
# What a check raises: the promise that was broken, by its name, the case that broke it and how to repeat
# it.


class Rule(enum.Enum):
    """The promises that a third party's parts are held to; the value is the fault's name.

    `CLIP`: a unit's contribution is mapped into the ball of the stated radius.
    `SENSITIVITY`: no unit moves a value by more than its sensitivity.
    `NOT_FINITE`: what is not finite counts as zero.
    `COUNT`: the private number of units shows nowhere; means divide by the public n.
    `SHAPE`: values have the shape that is stated.
    `QUIET`: nothing raises or warns because of what stands in a record.
    `NOISE_REUSED`: every release, and every entry of it, has noise of its own.
    `NOISE_AMOUNT`: the noise is that of the event that is paid for.
    `VALUE`: a mechanism is a value: equal to its copy, hashable, and of one price.
    `GUARDS`: a mechanism acts on value / sensitivity, and refuses a sensitivity that no noise can match.
    `PATHS`: all paths compute the same: host and compiled loop, fast engine and plain one.
    `HIDDEN`: what a stream keeps secret is neither printed nor copied.
    `HIDDEN_MOVE`: no unit moves hidden scores, which vertices are drawn from, by more than was paid for.
    `DRAW`: who takes part in a sample does not depend on what units hold.
    `CONTROL`: what is asked for, how often and with how much noise depends on public numbers and releases.
    `RESULT`: the result is a function of the releases.
    `REPEATABLE`: a run on the same answers gives the same bits.
    `PLAN`: a run releases what its plan prices, no more and no less.
    `FINITE_RESULT`: whatever the data, the parameters are finite and the ending is an ordinary one.
    `NAMES`: a solver names nothing private.
    """

    CLIP = "clip forgotten"
    SENSITIVITY = "sensitivity understated"
    NOT_FINITE = "value that is not finite survives"
    COUNT = "private count leaked"
    SHAPE = "shape other than stated"
    QUIET = "data raise or warn"
    NOISE_REUSED = "noise reused"
    NOISE_AMOUNT = "noise other than priced"
    VALUE = "mechanism is not a value"
    GUARDS = "sensitivity not respected"
    PATHS = "paths that disagree"
    HIDDEN = "hidden state shown"
    HIDDEN_MOVE = "hidden scores move too far"
    DRAW = "sample that depends on data"
    CONTROL = "data-dependent stop"
    RESULT = "result that knows more than the releases"
    REPEATABLE = "run that cannot be repeated"
    PLAN = "releases other than planned"
    FINITE_RESULT = "parameters that are not finite"
    NAMES = "private name in a solver"


class ContractViolation(AssertionError):
    """A part broke a promise that privacy rests on.

    Attributes:
        rule: which promise.
        subject: the class of what was checked.
        found: what happened.
        case: on what.
        repeat: the call that shows it again.
    """

    def __init__(self, rule: Rule, subject: object, found: str, *, case: str, repeat: str) -> None:
        self.rule, self.found, self.case, self.repeat = rule, found, case, repeat
        self.subject = subject.__name__ if isinstance(subject, type) else type(subject).__name__
        super().__init__(
            f"{self.subject}, {rule.value}: {found}.\n  on: {case}\n  again: privopt.testing.{repeat}"
        )
