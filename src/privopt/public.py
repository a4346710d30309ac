"""What everybody may know about the data: sizes, bounds and the neighbouring relation.

Nothing here is read off the data. A solver plans from these numbers alone.
"""

import enum
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

Weighting: TypeAlias = Literal["user", "sqrt", "record"]
STORAGES = ("float32", "float64", "int16", "int8")  # of dense rows
INTEGER_STORAGES = ("int16", "int8")
COLUMN_BYTES, START_BYTES = 4, 8  # of an entry of a CSR row, besides its value; of where a row begins
DEFAULT_RECORDS = 100  # of a user that are used, where nothing is said
CAPS = (1, 10, 100, 1000)  # on the records of a user, as they are compared
MOST_UNITS = 10**12
DEFAULT_WEIGHTING: Weighting = "record"


def real(name: str, value: Any) -> float:
    """An argument that is a real number, as a float.

    Args:
        name: of the argument.
        value: as it was given.
    Raises:
        TypeError: it is no number.
        ValueError: it is an integer beyond all floats.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is larger than any number that can be computed with.") from None


class Relation(enum.Enum):
    """Which two data sets must be indistinguishable.

    `REPLACE_ONE`: the public number of units is fixed and one unit's data is replaced by anything.
    `ADD_OR_REMOVE_ONE`: one unit is present or absent; there are at most n units, an absent one counting as zero,
    and means divide by the public nominal n.
    """

    REPLACE_ONE = "replace-one"
    ADD_OR_REMOVE_ONE = "add-or-remove-one"

    @property
    def factor(self) -> int:
        """How many clipped contributions one unit can move a sum by: 2 if replaced, 1 if added or removed."""
        return 2 if self is Relation.REPLACE_ONE else 1

    @classmethod
    def parse(cls, relation: "Relation | str") -> "Relation":
        """Read a relation given as a member or by its name.

        Raises:
            ValueError: the name is not one of the two relations.
        """
        if isinstance(relation, Relation):
            return relation
        for member in cls:
            if member.value == relation:
                return member
        names = " or ".join(repr(member.value) for member in cls)
        raise ValueError(f"relation must be {names}, got {relation!r}.")


@dataclass(frozen=True, kw_only=True)
class Public:
    """The public side of a data set.

    Attributes:
        n: number of privacy units; the nominal (largest allowed) number under add-or-remove-one.
        d: features of one record, the intercept column included.
        relation: the neighbouring relation.
        row_bound: largest l2 norm of a feature row, the intercept included; rows are clipped to it.
        entry_bound: largest entry of a row, the intercept included, if it is known to be smaller; None for the row
            bound. Utility only: nothing is clipped to it.
        unit: "record", or "user" when a unit owns several records.
        records_per_unit: M, the public cap on the records one unit may keep.
        weighting: of users: what the average of a user with k records weighs, "user" 1, "sqrt" sqrt(k / M) or "record"
            k / M. It says which objective is minimised.
        typical_records: a public guess of how many records a typical user keeps, between 1 and M. Utility only.
        sparse: whether the rows are stored as CSR.
        outputs: columns of the parameters (classes of a softmax model), 1 for a vector.
        drawn: whether the units are a block that was drawn from data under add-or-remove-one: then there may be more
            than n of them. Elsewhere there never are.
        levels: of a coded table the number of cells of each column, that of a missing value included as the last one;
            empty where rows hold numbers.
        storage: the format that rows of numbers are stored in, one of `STORAGES`.
        row_entries: the most entries of a CSR row that are stored, where something public says it; None for d. Utility
            only: it says what a run takes.
    """

    n: int
    d: int
    relation: Relation = Relation.REPLACE_ONE
    row_bound: float = 1.0
    entry_bound: float | None = None
    unit: str = "record"
    records_per_unit: int = 1
    weighting: Weighting = "user"
    typical_records: float = 1.0
    sparse: bool = False
    outputs: int = 1
    drawn: bool = False
    levels: tuple[int, ...] = ()
    storage: str = "float32"
    row_entries: int | None = None

    def __post_init__(self) -> None:
        for name in ("n", "d", "records_per_unit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}.")
        if self.n < 2:
            raise ValueError(f"n must be at least 2 units, got {self.n}: a mean over fewer hides nobody.")
        if self.n > MOST_UNITS:
            raise ValueError(
                f"n must be at most {MOST_UNITS:.0e} units: it is a number of records or of users."
            )
        if self.d < 1:
            raise ValueError(f"d must be at least 1, got {self.d}.")
        if not (math.isfinite(real("row_bound", self.row_bound)) and self.row_bound > 0):
            raise ValueError(
                f"row_bound must be positive and finite, got {self.row_bound!r}: it is the largest norm of a row."
            )
        check_entry_bound(self.entry_bound)
        check_row_entries(self.row_entries)
        if self.unit not in ("record", "user"):
            raise ValueError(f"unit must be 'record' or 'user', got {self.unit!r}.")
        if self.storage not in STORAGES:
            raise ValueError(f"storage must be one of {', '.join(STORAGES)}, got {self.storage!r}.")
        if self.records_per_unit < 1:
            raise ValueError(f"records_per_unit must be at least 1, got {self.records_per_unit}.")
        check_weighting(self.weighting)
        check_typical_records(self.typical_records, self.records_per_unit)
        object.__setattr__(self, "levels", tuple(self.levels))  # a list, where a stored plan is read back
        if self.levels and (len(self.levels) != self.d or min(self.levels) < 2):
            raise ValueError(
                f"levels must give at least 2 cells for each of the d = {self.d} columns, got {self.levels!r}."
            )

    @property
    def largest_entry(self) -> float:
        """A bound on the entries of a row."""
        return self.row_bound if self.entry_bound is None else min(self.entry_bound, self.row_bound)

    @property
    def by_user(self) -> bool:
        """Whether a unit is a user: everything somebody contributed, which may be many records or none."""
        return self.unit == "user"

    @property
    def typical_weight(self) -> float:
        """What a typical unit's average weighs: 1 where a unit is a record. A public guess."""
        share = self.typical_records / self.records_per_unit
        return {"user": 1.0, "sqrt": math.sqrt(share), "record": share}[self.weighting]

    @classmethod
    def of_codes(cls, n: int, levels: tuple[int, ...], relation: Relation, **users: Any) -> "Public":
        """What is public about a coded table; no row of codes is longer than its `row_bound`.

        Args:
            n: units.
            levels: cells of each column.
            relation: the neighbouring relation.
            users: entries of `of_users` where a unit is a user.
        """
        longest = math.hypot(*(level - 1 for level in levels)) * (1.0 + 1e-9)
        return cls(n=n, d=len(levels), relation=relation, row_bound=longest, levels=levels, **users)

    def require_numbers(self, what: str) -> None:
        """Refuse something that computes with the numbers in a row, where rows hold codes.

        Raises:
            ValueError: they do.
        """
        if self.levels:
            raise ValueError(
                f"{what} needs rows of numbers, but this table is coded: an entry of a row names one of its column's "
                "cells. Ask for its marginals, or encode the columns as numbers (Units.from_arrays)."
            )

    def require_codes(self, what: str, levels: tuple[int, ...]) -> None:
        """Refuse something that counts the cells of these columns, where the table has others.

        Raises:
            ValueError: rows hold numbers, or other columns.
        """
        if self.levels != levels:
            have = f"has columns of {self.levels} cells" if self.levels else "holds numbers"
            raise ValueError(
                f"{what} counts the cells of coded columns, {levels} of them, but this table {have}: describe the "
                "columns as they were coded (Units.from_codes)."
            )

    @property
    def entry_bytes(self) -> int:
        """Memory of an entry of a row of numbers."""
        return np.dtype(self.storage).itemsize

    @property
    def stored_entries(self) -> int:
        """The most entries of a row that are stored."""
        return min(self.d, self.row_entries or self.d) if self.sparse else self.d

    @property
    def row_bytes(self) -> int:
        """Memory of a row of numbers, at most."""
        return row_bytes(self.entry_bytes, self.stored_entries, sparse=self.sparse)

    def mapped(self, width: int, row_bound: float) -> "Public":
        """What is public about the same units with rows mapped to `width` columns and clipped to `row_bound`.

        Nothing is known of a mapped row's entries but that bound, on whose grid 8 bits are too few: such rows take 16.
        """
        storage = "int16" if self.storage in INTEGER_STORAGES else self.storage
        return replace(
            self,
            d=width,
            row_bound=row_bound,
            entry_bound=None,
            sparse=False,
            row_entries=None,
            storage=storage,
        )

    def block(self, size: int) -> "Public":
        """What is public about a random block of the units, of public size `size`."""
        return replace(self, n=size, drawn=self.relation is Relation.ADD_OR_REMOVE_ONE)


def row_bytes(itemsize: int, entries: int, *, sparse: bool) -> int:
    """Memory of a stored row of numbers.

    Args:
        itemsize: bytes of an entry.
        entries: of the row that are stored.
        sparse: whether it is a CSR row.
    """
    return entries * (itemsize + COLUMN_BYTES) + START_BYTES if sparse else entries * itemsize


def of_users(cap: Any, weighting: Any, typical: Any = None) -> dict[str, Any]:
    """The entries of `Public` that say that a unit is a user.

    Args:
        cap: M, the largest number of records of a user that are used, at least 1.
        weighting: what the average of a user's records weighs.
        typical: public guess of how many records a typical user keeps; None for the root of the cap.
    Raises:
        TypeError, ValueError: one of them is not usable.
    """
    if not isinstance(cap, int | np.integer) or isinstance(cap, bool) or cap < 1:
        raise ValueError(f"max_records_per_user must be an integer of at least 1, got {cap!r}.")
    check_weighting(weighting)
    typical = math.sqrt(cap) if typical is None else typical
    check_typical_records(typical, int(cap))
    return {
        "unit": "user",
        "records_per_unit": int(cap),
        "weighting": weighting,
        "typical_records": float(typical),
    }


def check_entry_bound(entry_bound: Any) -> None:
    """Refuse a bound on entries that is none.

    Raises:
        TypeError, ValueError: it is neither None nor a positive finite number.
    """
    if entry_bound is None:
        return
    if isinstance(entry_bound, bool) or not isinstance(entry_bound, int | float | np.number):
        raise TypeError(f"entry_bound must be a number or None, got {entry_bound!r}.")
    if not 0 < entry_bound < math.inf:
        raise ValueError(
            f"entry_bound must be positive and finite, got {entry_bound!r}: it is the largest entry of a row."
        )


def check_row_entries(entries: Any) -> None:
    """Refuse a largest number of entries of a CSR row that is none.

    Raises:
        ValueError: it is neither None nor a whole number of at least 1.
    """
    if entries is None:
        return
    if isinstance(entries, bool) or not isinstance(entries, int | np.integer) or entries < 1:
        raise ValueError(
            f"row_entries must be a whole number of at least 1 or None, got {entries!r}: it is the most entries of a "
            "sparse row that are not zero."
        )


def check_weighting(weighting: Any) -> None:
    """Refuse a weighting of users that is none.

    Raises:
        ValueError: there is no such weighting.
    """
    if weighting not in ("user", "sqrt", "record"):
        raise ValueError(f"user_weighting must be 'user', 'sqrt' or 'record', got {weighting!r}.")


def check_typical_records(typical: Any, cap: int) -> None:
    """Refuse a typical number of records that no user can have.

    Raises:
        TypeError, ValueError: it is no number between 1 and the cap.
    """
    if not 1 <= real("typical_records", typical) <= cap:
        raise ValueError(
            f"typical_records must lie between 1 and the cap of {cap:,} records a user, got {typical!r}: it is a "
            "public guess of how many records a typical user keeps."
        )
