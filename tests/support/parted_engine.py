"""An engine over several others, each of which holds some of the units: what streams or asks workers does the same."""

import itertools

import numpy as np

from privopt.data.participants import drawn_positions
from privopt.data.places import Stretch
from privopt.engine.drawn_rows import absent_rows
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import sum_over_parts
from privopt.queries.safeguards import stated_sensitivity


class PartedEngine:
    """Sums and drawn rows part by part; no part holds another's rows.

    Args:
        units: all of them, at most `PART_UNITS`, so that a sum in memory is that of one part.
        size: how many units are together; a draw asks each of the holders for its own.
    """

    compiles = True
    seeded = False

    def __init__(self, units, size):
        self.public, self.private_count, self._size = units.public, units.private_count, size
        ends = [*range(0, units.private_count, size), units.private_count]
        self._all = InProcessEngine(units)
        self._held = [
            InProcessEngine(units.subset(Stretch(start, stop), units.public.n))
            for start, stop in itertools.pairwise(ends)
        ]
        self.asked = 0

    def require(self, kind, held=0):
        del kind, held

    def sensitivity(self, query, sampling):
        return stated_sensitivity(query, self.public, sampling)

    def clipped_sum(self, query, private_draw=None):
        return sum_over_parts([self._all], query, private_draw)

    def draw(self, sampling, generator):
        return drawn_positions(sampling, generator, n=self.public.n, private_count=self.private_count)

    def rows(self, private_draw, room):
        """From those who hold them, each asked once, in any order."""
        together = absent_rows(room, self.public.d)
        for holder in np.random.default_rng(self.asked).permutation(len(self._held)):
            places = np.flatnonzero(private_draw // self._size == holder)
            found = self._held[holder].rows(private_draw[places] - holder * self._size, len(places))
            for column, values in zip(together, found, strict=True):
                column[places] = values
        self.asked += 1
        return together

    def held_rows(self):
        """Nobody holds all."""

    def subset(self, private_places, size):
        return PartedEngine(self._all.units.subset(private_places, size), self._size)
