import math
from typing import Any

import numpy as np
import pytest
from tests.support.scale_checks import LEVEL, frequency_p_value, softmax

from privopt.ledger.events import NoEvent, SelectionsEvent
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler, VertexTable


def as_table(sampler: VertexSampler) -> VertexTable:
    """The same schedule, every weight written out."""
    return VertexTable(
        weights=tuple(
            tuple((item, temperature * sampler.item_weights[item]) for item in range(step))
            for step, temperature in enumerate(sampler.temperatures)
        ),
        draws=sampler.draws,
        participation=sampler.participation,
        largest_item=sampler.largest_item,
        mixture=sampler.mixture,
    )


def tree(depth: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Leaves of a complete binary tree, left to right, each the sum of items on its path: right children have one."""
    rows = []
    items = {(): 0}
    for leaf in range(2**depth):
        path = tuple((leaf >> (depth - 1 - level)) & 1 for level in range(depth))
        seen = [0]
        for level in range(depth):
            prefix = path[: level + 1]
            if prefix[-1] == 1:
                seen.append(items.setdefault(prefix, len(items)))
        rows.append(tuple((item, 1.0) for item in seen))
    return tuple(rows)


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize(
    "patterns", [VertexSampler.every_item(4), VertexSampler.one_item(4), ((0, 2), (1, 3))]
)
def test_a_product_written_out_costs_and_draws_the_same(patterns: Any, mixture: bool) -> None:
    sampler = VertexSampler(
        item_weights=(0.1, 0.2, 0.05, 0.3),
        temperatures=(1.0, 0.7, 0.9, 1.1, 0.2),
        draws=(1, 0, 3, 2, 1),
        participation=patterns,
        largest_item=20.0,
        mixture=mixture,
    )
    table = as_table(sampler)
    assert table.items == 4
    assert table.rho() == pytest.approx(sampler.rho(), rel=1e-9)
    assert table.pure_epsilon() == pytest.approx(sampler.pure_epsilon(), rel=1e-9)
    assert table.scaled(2.0).rho() == pytest.approx(4 * table.rho(), rel=1e-9)
    items = np.sin(np.arange(28.0)).reshape(4, 7)
    transcripts = []
    for stream in (sampler, table):
        noise = NoiseSource(seed=82)
        state = stream.open(noise, (7,))
        found = []
        for t in range(5):
            found.append(stream.draw(state, noise).tolist())
            if t < 4:
                stream.add(state, noise, items[t], 0.05)
        transcripts.append(found)
    assert transcripts[0] == transcripts[1]
    assert state.private_items == {}  # none is kept for longer than it counts


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_record_of_level_j_in_a_tree_pays_for_its_leaves(depth: int) -> None:
    """Saddle reference 7.1: 2^(T-j) leaves see an item of level j; root first, then one item for each right child."""
    rows = tree(depth)
    items = 1 + max(item for row in rows for item, _ in row)
    assert items == 2**depth
    table = VertexTable(
        weights=rows, draws=(1,) * 2**depth, participation=VertexTable.one_item(items), largest_item=0.5
    )
    leaves = [sum(any(item == i for item, _ in row) for row in rows) for i in range(items)]
    assert sorted(set(leaves), reverse=True) == [2**level for level in range(depth, -1, -1)]
    for item, count in enumerate(leaves):
        assert np.sum(table.range_bounds((item,)) ** 2) / 8 == pytest.approx(count / 8, rel=1e-9)
    assert table.rho() == pytest.approx(2**depth / 8, rel=1e-9)
    assert table.event() == SelectionsEvent(table.rho(), table.pure_epsilon())


def test_items_are_added_when_a_step_needs_them_and_are_dropped_after_their_last_step() -> None:
    rows = tree(2)  # items 0 | 0 1 | 0 2 | 0 2 3
    assert rows == (((0, 1.0),), ((0, 1.0), (1, 1.0)), ((0, 1.0), (2, 1.0)), ((0, 1.0), (2, 1.0), (3, 1.0)))
    table = VertexTable(
        weights=rows, draws=(20_000,) * 4, participation=VertexTable.one_item(4), largest_item=9.0
    )
    noise = NoiseSource(seed=83)
    state = table.open(noise, (3,))
    with pytest.raises(ValueError, match="step 0 is drawn after 1 items, but 0 have been added"):
        table.draw(state, noise)
    items = np.sin(np.arange(12.0)).reshape(4, 3)
    for step, row in enumerate(rows):
        while state.added <= max(item for item, _ in row):
            table.add(state, noise, items[state.added], 1.0)
        counts = np.bincount(table.draw(state, noise), minlength=3)
        logits = -sum(items[item] for item, _ in row)
        assert frequency_p_value(counts, softmax(logits)) > LEVEL
        assert set(state.private_items) == [{0}, {0}, {0, 2}, set()][step]
    with pytest.raises(ValueError, match="all have been added"):
        table.add(state, noise, items[0], 1.0)


def test_a_table_without_items_is_free() -> None:
    table = VertexTable(weights=((), ()), draws=(2, 3), participation=((),), largest_item=1.0)
    assert table.event() == NoEvent()
    noise = NoiseSource(seed=84)
    state = table.open(noise, (5,))
    assert [table.draw(state, noise).shape for _ in range(2)] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": (1,)}, "a row of weights"),
        ({"weights": (((0, 1.0),), ((0, math.inf),))}, "finite and at least 0"),
        ({"weights": (((0, 1.0),), ((0, 1.0), (0, 2.0)))}, "two weights at step 1"),
        ({"weights": (((0, 1.0),), ((2, 1.0),))}, "participation must name every item"),
        ({"participation": ((1,),)}, "participation must name every item"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "weights": (((0, 1.0),), ((0, 1.0), (1, 1.0))),
        "draws": (1, 1),
        "participation": ((0, 1),),
        "largest_item": 5.0,
    }
    VertexTable(**fields)
    with pytest.raises(ValueError, match=message):
        VertexTable(**{**fields, **changes})
