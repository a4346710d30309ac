"""Rows that lie in another order than they come in."""

import numpy as np
import pytest

from privopt.data.read_units import ScatteredRows
from privopt.data.room import MEMORY


@pytest.mark.parametrize("held", [1, 10_000, 2**24])
def test_rows_are_where_they_were_put_whatever_is_held_of_them(held, monkeypatch):
    monkeypatch.setattr("privopt.data.read_units._HELD_BYTES", held)
    rng = np.random.default_rng(0)
    places = rng.permutation(5_000)
    rows, marks = rng.normal(size=(4_000, 3)), rng.random(4_000) < 0.5
    columns = [MEMORY.zeros((5_000, 3), np.float64), MEMORY.zeros(5_000, np.bool_)]
    scattered = ScatteredRows(MEMORY, columns)
    for start in range(0, 4_000, 700):
        here = slice(start, min(start + 700, 4_000))
        scattered.put(places[here], [rows[here], marks[here]])
    scattered.put(places[:0], [rows[:0], marks[:0]])
    scattered.finish()
    scattered.finish()
    assert np.array_equal(columns[0][places[:4_000]], rows)
    assert np.array_equal(columns[1][places[:4_000]], marks)
    assert not columns[0][places[4_000:]].any()
