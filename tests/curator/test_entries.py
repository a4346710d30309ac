"""In how many items of a stream one unit may be, against trying every unit that there can be."""

import itertools

import numpy as np
import pytest

from privopt.curator.handles import Entered
from privopt.data.blocks import Block, Lineage


def holds(unit: dict[int, int], lineage: Lineage) -> bool:
    """Whether a unit, known by its block in every cut, is in a part of the data."""
    return all(unit[block.cut] == block.index for block in lineage)


def test_what_one_unit_may_be_in_is_exactly_what_some_unit_is_in() -> None:
    """Two cuts of everybody, a cut of the first block of one and a cut of a block of that."""
    first, second = [Block(1, i, 3) for i in range(3)], [Block(2, i, 2) for i in range(2)]
    inner, innermost = [Block(3, i, 2) for i in range(2)], [Block(4, i, 2) for i in range(2)]
    parts: list[Lineage] = [(), *((b,) for b in first), *((b,) for b in second)]
    parts += [(first[0], b) for b in inner] + [(first[0], inner[1], b) for b in innermost]
    units = [
        dict(zip((1, 2, 3, 4), blocks, strict=True))
        for blocks in itertools.product(range(3), range(2), range(2), range(2))
    ]
    generator = np.random.default_rng(3)
    for _ in range(30):
        entered, lineages = Entered(), list[Lineage]()
        for item, choice in enumerate(generator.integers(0, len(parts), 12)):
            lineage = parts[choice]
            inside = [unit for unit in units if holds(unit, lineage)]
            sharing = [j for j, other in enumerate(lineages) if any(holds(unit, other) for unit in inside)]
            found = entered.participants(lineage)
            assert found.items == {item, *sharing}
            assert found.gap == (item - sharing[-1] if sharing else None)
            counts = [1 + sum(holds(unit, other) for other in lineages) for unit in inside]
            assert found.most == max(counts)
            assert entered.copy().participants(lineage) == found
            entered.add(lineage)
            lineages.append(lineage)
            assert len(entered) == item + 1


@pytest.mark.parametrize("epochs", [1, 3])
def test_blocks_that_are_used_again_are_counted_once_an_epoch(epochs: int) -> None:
    entered = Entered()
    for item in range(epochs * 4):
        lineage = (Block(1, item % 4, 4),)
        found = entered.participants(lineage)
        assert found.most == 1 + item // 4
        assert found.gap == (4 if item >= 4 else None)
        entered.add(lineage)
