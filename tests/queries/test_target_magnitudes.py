"""How large counts are: the right intervals, and one unit moves them by at most the stated sensitivity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems.magnitudes import interval_ends
from privopt.public import Relation
from privopt.queries.moments import TargetMagnitudes

CAP = 3
QUERY = TargetMagnitudes(largest=12.0)
targets = st.one_of(
    st.floats(-5.0, 30.0), st.sampled_from([0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 1e30, np.nan, np.inf, -np.inf])
)


def value_of(units, query=QUERY):
    with double_precision():
        return np.asarray(InProcessEngine(units).clipped_sum(query)) / units.public.n


def units_of(counts, **options):
    counts = np.asarray(counts, np.float64)
    return Units.from_arrays(np.full((len(counts), 2), 0.3), counts, row_bound=1.0, **options)


def test_the_intervals_reach_to_the_bound():
    assert interval_ends(12.0).tolist() == [1.0, 2.0, 4.0, 8.0, 12.0]
    assert interval_ends(8.0).tolist() == [1.0, 2.0, 4.0, 8.0]
    assert interval_ends(1.0).tolist() == [1.0]
    assert interval_ends(0.3).tolist() == [0.3]


@pytest.mark.parametrize("largest", [12.0, 100.0, 3.5])
def test_the_ends_times_the_values_are_the_mean_of_the_targets(largest):
    counts = np.random.default_rng(0).gamma(0.7, 3.0, size=50).round(1)
    query = TargetMagnitudes(largest=largest)
    found = value_of(units_of(counts), query)
    assert found @ interval_ends(largest) == pytest.approx(np.minimum(counts, largest).mean(), rel=1e-7)
    for end, below, share in zip(interval_ends(largest), [0.0, *interval_ends(largest)], found, strict=False):
        inside = np.where((counts > below) & (counts <= end), counts, 0.0)
        if end == interval_ends(largest)[-1]:
            inside = np.where(counts > below, np.minimum(counts, end), 0.0)
        assert share == pytest.approx(inside.mean() / end, rel=1e-7)


def test_two_targets_at_the_ends_of_intervals_reach_the_sensitivity():
    one, other = units_of([1.0, 12.0]), units_of([1.0, 2.0])
    moved = np.linalg.norm(value_of(one) - value_of(other))
    assert moved == pytest.approx(float(QUERY.sensitivity(one.public)), rel=1e-8)
    assert moved == pytest.approx(math.sqrt(2.0) / 2, rel=1e-8)
    assert moved <= float(QUERY.sensitivity(one.public)) * (1 + 1e-12)


@pytest.mark.later("True")
@pytest.mark.parametrize("by_user", [False, True])
@given(
    base=st.lists(targets, min_size=4, max_size=4),
    instead=st.lists(targets, min_size=1, max_size=5),
    relation=st.sampled_from(list(Relation)),
    weighting=st.sampled_from(["user", "sqrt", "record"]),
)
def test_one_unit_moves_the_magnitudes_by_at_most_their_sensitivity(
    by_user, base, instead, relation, weighting
):
    instead = instead if by_user else instead[:1]
    if relation is Relation.REPLACE_ONE:
        left, right = base, [*base[:3], *instead]
        owners = [[0, 1, 2, 3], [0, 1, 2] + [3] * len(instead)]
    else:
        left, right = base, [*base, *instead]
        owners = [[0, 1, 2, 3], [0, 1, 2, 3] + [4] * len(instead)]
    sides = [
        units_of(
            side,
            relation=relation,
            n=5,
            groups=np.array(keys) if by_user else None,
            max_records_per_user=CAP,
            user_weighting=weighting,
            noise=NoiseSource(1),
        )
        for side, keys in zip((left, right), owners, strict=True)
    ]
    moved = np.linalg.norm(value_of(sides[0]) - value_of(sides[1]))
    assert moved <= float(QUERY.sensitivity(sides[0].public)) * (1 + 1e-12)


def test_every_user_counts_once_whatever_the_weighting():
    counts, owners = [1.0, 1.0, 1.0, 8.0], np.array([0, 0, 0, 1])
    for weighting in ("user", "sqrt", "record"):
        units = units_of(counts, groups=owners, max_records_per_user=CAP, user_weighting=weighting)
        assert value_of(units) @ interval_ends(QUERY.largest) == pytest.approx(4.5, rel=1e-6)
