"""How large entries are: the right bins, and one unit moves them by at most the stated sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.queries.moments import ColumnMagnitudes, bin_ends

D, LEVELS, CAP = 3, 6, 3
QUERY = ColumnMagnitudes(levels=LEVELS, columns=D)
entries = st.one_of(
    st.floats(-1.0, 1.0), st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.25, 1e-30, np.nan, np.inf, -np.inf])
)
rows = st.lists(entries, min_size=D, max_size=D)


def shares_of(units):
    with double_precision():
        return np.asarray(InProcessEngine(units).clipped_sum(QUERY)) / units.public.n


def test_an_entry_falls_between_the_ends_of_its_bin():
    lower, upper = bin_ends(LEVELS)
    assert np.all(lower[1:LEVELS] == upper[: LEVELS - 1])
    assert np.all(lower[LEVELS + 2 :] == upper[LEVELS + 1 : -1])
    assert (lower[0], upper[-1], lower[LEVELS], upper[LEVELS]) == (-1.0, 1.0, 0.0, 0.0)
    for entry in (1.0, 0.3, 0.02, -0.5, -0.26, -1.0):
        shares = shares_of(Units.from_arrays(np.full((2, D), entry), row_bound=2.0))
        (found,) = np.flatnonzero(shares[0])
        size = abs(np.float32(entry))
        near, far = sorted([abs(lower[found]), abs(upper[found])])
        assert near < size <= far
        assert np.sign(entry) == np.sign(lower[found] + upper[found])
    tiny = shares_of(Units.from_arrays(np.full((2, D), 2.0**-LEVELS), row_bound=2.0))
    assert tiny[0, LEVELS] == pytest.approx(1.0)


def test_replacing_everything_of_a_unit_reaches_the_sensitivity():
    one, other = (
        Units.from_arrays(np.array([[0.9] * D, [first] * D]), row_bound=2.0, n=2) for first in (0.9, -0.9)
    )
    moved = np.linalg.norm(shares_of(one) - shares_of(other))
    assert moved == pytest.approx(float(QUERY.sensitivity(one.public)), rel=1e-8)
    assert moved <= float(QUERY.sensitivity(one.public))
    assert moved == pytest.approx(math.sqrt(2 * D) / 2, rel=1e-8)


@pytest.mark.later("True")
@pytest.mark.parametrize("by_user", [False, True])
@given(
    base=st.lists(rows, min_size=4, max_size=4),
    instead=st.lists(rows, min_size=1, max_size=5),
    relation=st.sampled_from(list(Relation)),
    weighting=st.sampled_from(["user", "sqrt", "record"]),
)
def test_one_unit_moves_the_shares_by_at_most_their_sensitivity(by_user, base, instead, relation, weighting):
    instead = instead if by_user else instead[:1]
    kept = base[: 1 if relation is Relation.REPLACE_ONE else 4]
    if relation is Relation.REPLACE_ONE:
        left, right = [*base[1:], base[0]], [*base[1:], *instead]
        owners = [[0, 1, 2, 3], [0, 1, 2] + [3] * len(instead)]
    else:
        left, right = kept, [*kept, *instead]
        owners = [[0, 1, 2, 3], [0, 1, 2, 3] + [4] * len(instead)]
    sides = [
        Units.from_arrays(
            np.array(side, np.float64),
            row_bound=2.0,
            relation=relation,
            n=5,
            groups=np.array(keys) if by_user else None,
            max_records_per_user=CAP,
            user_weighting=weighting,
            noise=NoiseSource(1),
        )
        for side, keys in zip((left, right), owners, strict=True)
    ]
    moved = np.linalg.norm(shares_of(sides[0]) - shares_of(sides[1]))
    assert moved <= float(QUERY.sensitivity(sides[0].public)) * (1 + 1e-12)
