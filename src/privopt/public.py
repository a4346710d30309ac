"""What everybody may know about the data: sizes, bounds and the neighbouring relation.

Nothing here is read off the data. A solver plans from these numbers alone.
"""

import enum
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


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
        unit: "record", or "user" when a unit owns several records.
        records_per_unit: public cap on the records one unit may keep.
        sparse: whether the rows are stored as CSR.
        outputs: columns of the parameters (classes of a softmax model), 1 for a vector.
        drawn: whether the units are a block that was drawn from data under add-or-remove-one: then there may be more
            than n of them. Elsewhere there never are.
    """

    n: int
    d: int
    relation: Relation = Relation.REPLACE_ONE
    row_bound: float = 1.0
    unit: str = "record"
    records_per_unit: int = 1
    sparse: bool = False
    outputs: int = 1
    drawn: bool = False

    def __post_init__(self) -> None:
        for name in ("n", "d", "records_per_unit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}.")
        if self.n < 2:
            raise ValueError(f"n must be at least 2 units, got {self.n}: a mean over fewer hides nobody.")
        if self.d < 1:
            raise ValueError(f"d must be at least 1, got {self.d}.")
        row_bound: Any = self.row_bound
        if isinstance(row_bound, bool) or not isinstance(row_bound, int | float | np.number):
            raise TypeError(f"row_bound must be a number, got {self.row_bound!r}.")
        if not (self.row_bound > 0 and math.isfinite(self.row_bound)):
            raise ValueError(
                f"row_bound must be positive and finite, got {self.row_bound!r}: it is the largest norm of a row."
            )
        if self.unit not in ("record", "user"):
            raise ValueError(f"unit must be 'record' or 'user', got {self.unit!r}.")
        if self.records_per_unit < 1:
            raise ValueError(f"records_per_unit must be at least 1, got {self.records_per_unit}.")

    def block(self, size: int) -> "Public":
        """What is public about a random block of the units, of public size `size`."""
        return replace(self, n=size, drawn=self.relation is Relation.ADD_OR_REMOVE_ONE)
