"""Small hostile tables and the units that change in them: drawn at random, or a step away from the worst one so far."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.public import Relation
from privopt.testing.hostile_rows import Setting, hostile_codes, hostile_numbers, hostile_targets

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    """The records of one unit, as its owner gives them: features (records, d) and targets (records,), any numbers."""

    features: Numbers
    targets: Numbers


@dataclass(frozen=True)
class Table:
    """Units in order, one of which is looked at; it may be missing where units come and go.

    Attributes:
        setting: how the data are stored, with the public number of units.
        others: the units that stay.
        place: where the one that changes stands among them.
        changed: that unit; None where it is absent.
    """

    setting: Setting
    others: tuple[Unit, ...]
    place: int
    changed: Unit | None

    @property
    def position(self) -> int:
        """Where the changed unit is stored: a user without a record is nowhere."""
        return self.place - sum(not len(unit.targets) for unit in self.others[: self.place])

    @property
    def is_gone(self) -> bool:
        """Whether nobody stands at that position: the unit is absent, or a user without a record."""
        return self.changed is None or not len(self.changed.targets)

    def with_unit(self, changed: Unit) -> "Table":
        """The neighbour that has another unit in that place."""
        return replace(self, changed=changed)

    def records(self) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
        """All features (records, d), targets, and the position of each record's owner."""
        listed: list[Unit | None] = list(self.others)
        listed.insert(self.place, self.changed)
        present = [(place, unit) for place, unit in enumerate(listed) if unit is not None]
        features = [unit.features for _, unit in present]
        targets = [unit.targets for _, unit in present]
        owners = [np.full(len(unit.targets), place) for place, unit in present]
        width = self.setting.columns
        return (
            np.concatenate([np.zeros((0, width)), *features]),
            np.concatenate([np.zeros(0), *targets]),
            np.concatenate([np.zeros(0, np.int64), *owners]),
        )

    def units(self) -> Units:
        """The same as stored units."""
        features, targets, owners = self.records()
        return self.setting.stored(features, targets, owners if self.setting.of_users else None)


def drawn_table(rng: np.random.Generator, setting: Setting, *, full: bool, last: bool = False) -> Table:
    """A table of hostile units; where units come and go, the one that is looked at is absent and others may be.

    Args:
        rng: what draws it.
        setting: how it is stored.
        full: whether all other units are there.
        last: whether the one that is looked at is the last of them.
    """
    comes = setting.relation is Relation.ADD_OR_REMOVE_ONE
    others = setting.units - 1
    if comes and not full and rng.random() < 0.5:
        others = int(rng.integers(0, setting.units))
    # A user's position is that of its first record: one that is replaced by one without any must be the last.
    last = last or (setting.of_users and not comes)
    place = (
        others if last else (0, others // 2, others, int(rng.integers(0, others + 1)))[int(rng.integers(4))]
    )
    units = [drawn_unit(rng, setting) for _ in range(others)]
    kind = rng.random()
    if kind < 0.4 and not setting.levels:  # nobody else pulls
        units = [Unit(0.0 * np.ones_like(unit.features), np.zeros_like(unit.targets)) for unit in units]
    changed = None if comes else drawn_unit(rng, setting)
    if units and 0.4 <= kind < 0.5:  # everybody is a twin of the one that changes
        units = [changed or units[0]] * len(units)
    return Table(setting, tuple(units), place, changed)


def drawn_unit(rng: np.random.Generator, setting: Setting) -> Unit:
    """A unit of hostile or of ordinary records; of a user none, one or two."""
    count = int(rng.choice([0, 1, 2, 2])) if setting.of_users else 1
    shape = (count, setting.columns)
    if setting.levels:
        return Unit(hostile_codes(rng, shape), np.zeros(count))
    if rng.random() < 0.5:
        return Unit(hostile_numbers(rng, shape), hostile_targets(rng, count))
    targets = rng.choice([rng.choice([-1.0, 0.0, 1.0, 2.0]), rng.normal() * 10.0 ** rng.uniform(-3, 9)])
    return Unit(rng.normal(size=shape) * 10.0 ** rng.uniform(-3.0, 3.0), np.full(count, targets))


def next_unit(
    rng: np.random.Generator, setting: Setting, best: Unit, table: Table, other: Unit | None
) -> Unit:
    """A unit to try: another one, the opposite of the one on the other side, or one near the best so far.

    Args:
        rng: what draws it.
        setting: how it is stored.
        best: the unit in this place that moved the value furthest.
        table: whose units may be copied.
        other: the unit that the neighbour has in this place; None if it has none.
    """
    step = int(rng.integers(8))
    if step < 2 or not len(best.targets):
        return drawn_unit(rng, setting)
    if step == 2 and other is not None:
        signs = rng.choice([-1.0, 1.0], 2)
        return Unit(signs[0] * other.features, signs[1] * other.targets)
    if step == 3 and table.others:
        return table.others[int(rng.integers(len(table.others)))]
    return _near(rng, setting, best)


def _near(rng: np.random.Generator, setting: Setting, best: Unit) -> Unit:
    """The best unit with one thing changed: its size, its target's, an entry, or everything a little."""
    features, targets = best.features.copy(), best.targets.copy()
    row = int(rng.integers(len(targets)))
    if setting.levels:
        features[row, int(rng.integers(setting.columns))] = hostile_codes(rng, (1, 1))[0, 0]
        return Unit(features, targets)
    kind = int(rng.integers(5))
    with np.errstate(all="ignore"):
        if kind == 0:
            features[row] *= 10.0 ** rng.uniform(-2.0, 2.0)
        elif kind == 1:
            targets[row] *= 10.0 ** rng.uniform(-2.0, 2.0) * rng.choice([-1.0, 1.0])
        elif kind == 2:
            targets[row] = rng.choice([-1.0, 0.0, 1.0, 2.0, rng.normal()])
        elif kind == 3:
            features[row, int(rng.integers(setting.columns))] = rng.choice(
                [0.0, rng.normal(), hostile_numbers(rng, (1, 1))[0, 0]]
            )
        else:
            size: Any = np.max(np.abs(features[row]), initial=0.0)
            features[row] += rng.normal(size=setting.columns) * size * 10.0 ** rng.uniform(-6.0, 0.0)
    return Unit(features, targets)
