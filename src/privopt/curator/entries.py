"""Which parts of the data entered a stream, item by item, and in how many items one unit can be by that."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from privopt.data.blocks import Lineage


class Participants(NamedTuple):
    """See `mechanisms.base.Entry`."""

    items: frozenset[int]
    most: int
    gap: int | None


@dataclass
class _Part:
    """A part of the data, and how it was cut further.

    Attributes:
        own: the items that hold all of it.
        cuts: by the number of a cut, the blocks of it that entered.
        most: in how many of the items below, its own included, a unit of it may be.
        latest: the last of these items; -1 for none.
    """

    own: list[int] = field(default_factory=list[int])
    cuts: dict[int, "_Cut"] = field(default_factory=dict[int, "_Cut"])
    most: int = 0
    latest: int = -1

    def items(self) -> Iterator[int]:
        """All items below, its own included."""
        yield from self.own
        for cut in self.cuts.values():
            yield from cut.items()


@dataclass
class _Cut:
    """Disjoint blocks of a part: a unit is in one of them."""

    blocks: dict[int, _Part] = field(default_factory=dict[int, _Part])
    most: int = 0
    latest: int = -1

    def items(self) -> Iterator[int]:
        """All items in any of the blocks."""
        for block in self.blocks.values():
            yield from block.items()


class Entered:
    """The items of a stream, by the part of the data that each was computed on.

    Privacy:
        Two parts share no unit if they lie in different blocks of one cut; any others may. So a unit can be in all
        items of the parts that hold its own, and of every other cut in the items of one block. `most` and `gap` are the
        extremes over all units that this leaves possible.
    """

    def __init__(self) -> None:
        self._root = _Part()
        self._lineages: list[Lineage] = []

    def __len__(self) -> int:
        return len(self._lineages)

    def copy(self) -> "Entered":
        """The same items, to try further ones."""
        other = Entered()
        for lineage in self._lineages:
            other.add(lineage)
        return other

    def participants(self, lineage: Lineage) -> Participants:
        """What a next item of this part would mean for the units in it."""
        most, latest = 1, -1
        shared: list[int] = [len(self)]
        part: _Part | None = self._root
        for block in lineage:
            most, latest = most + len(part.own), max(latest, *part.own[-1:], -1)
            shared += part.own
            for number, cut in part.cuts.items():
                if number != block.cut:
                    most, latest = most + cut.most, max(latest, cut.latest)
                    shared += cut.items()
            cut = part.cuts.get(block.cut)
            part = None if cut is None else cut.blocks.get(block.index)
            if part is None:
                break
        if part is not None:
            most, latest = most + part.most, max(latest, part.latest)
            shared += part.items()
        return Participants(frozenset(shared), most, None if latest < 0 else len(self) - latest)

    def add(self, lineage: Lineage) -> None:
        """Note that the next item was computed on this part of the data."""
        item = len(self._lineages)
        self._lineages.append(lineage)
        path = [self._root]
        for block in lineage:
            cut = path[-1].cuts.setdefault(block.cut, _Cut())
            path.append(cut.blocks.setdefault(block.index, _Part()))
        path[-1].own.append(item)
        for depth in range(len(path) - 1, -1, -1):
            part = path[depth]
            part.most, part.latest = len(part.own) + sum(cut.most for cut in part.cuts.values()), item
            if depth:
                cut = path[depth - 1].cuts[lineage[depth - 1].cut]
                cut.most, cut.latest = max(cut.most, part.most), item
