"""What is made of the units of a part after it has been read: mapped rows, and choices of units."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.data.places import GivenPlaces, Places
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
    """Some units of each part that somebody holds, who finds them; they stay in their part. Private.

    Attributes:
        size: their public number in all parts.
        private_shares: of each part, by its index: the places in it, the position of its first unit among all, how many
            it has, and the position of the first one chosen among all that are.
    """

    size: int
    private_shares: dict[int, tuple[Places, int, int, int]]

    def applied(self, part: int, units: Units) -> Units:
        """The units of a part after the step."""
        private_places, start, count, first = self.private_shares[part]
        private_own = GivenPlaces(private_places.within(start, start + count) - start)
        return dataclasses.replace(units.subset(private_own, self.size), first=first)


class Choice(NamedTuple):
    """Some units of all parts, see `Units.subset`. Private.

    Attributes:
        size: their public number.
        private_places: where they are.
        private_ranges: where each part begins and ends.
        private_firsts: of each part, the position of the first one chosen among all that are.
    """

    size: int
    private_places: Places
    private_ranges: Sequence[tuple[int, int]]
    private_firsts: Sequence[int]

    def at(self, parts: Sequence[int]) -> Chosen:
        """What those who hold some parts need to know of it."""
        private_shares = dict[int, tuple[Places, int, int, int]]()
        for part in parts:
            start, stop = self.private_ranges[part]
            private_near = self.private_places.near(start, stop)
            private_shares[part] = (private_near, start, stop - start, self.private_firsts[part])
        return Chosen(self.size, private_shares)


SentStep = Mapped | Chosen
Step = Mapped | Choice
