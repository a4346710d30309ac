"""What is made of the units of a part after it has been read: mapped rows, and choices of units."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units


class Mapped(NamedTuple):
    """Mapped rows, see `Units.mapped`."""

    matrix: NDArray[np.float64]
    row_bound: float

    def at(self, parts: Sequence[int]) -> "Mapped":
        """What those who hold some parts need to know of it."""
        del parts
        return self

    def applied(self, part: int, units: Units) -> Units:
        """The units of a part after the step."""
        del part
        return units.mapped(self.matrix, self.row_bound)


class Chosen(NamedTuple):
    """Some units of each part, which stay in it, see `Units.subset`. Private.

    Attributes:
        size: their public number in all parts.
        private_shares: of each part, by its index: the positions within it, and the position of the first one chosen
            among all that are.
    """

    size: int
    private_shares: dict[int, tuple[int, NDArray[np.int64]]]

    def at(self, parts: Sequence[int]) -> "Chosen":
        """What those who hold some parts need to know of it."""
        return Chosen(self.size, {part: self.private_shares[part] for part in parts})

    def applied(self, part: int, units: Units) -> Units:
        """The units of a part after the step."""
        first, private_positions = self.private_shares[part]
        return dataclasses.replace(units.subset(private_positions, self.size), first=first)


Step = Mapped | Chosen
