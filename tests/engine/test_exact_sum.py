"""Sums of parts on a grid: the same bits in any order and by any tree, and as near as the rounding bound supposes."""

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.engine.parts import ExactSum
from privopt.engine.rounding import PART_UNITS, rounding_bound
from privopt.precision import double_precision

RADII = st.one_of(
    st.floats(-99, 99).map(lambda e: 10.0**e), st.sampled_from([1e-100, 1.0, 2.0, 3.0, 1e100, 1e300])
)
SHARES = st.one_of(
    st.floats(-1.0, 1.0),
    st.sampled_from([1.0, -1.0, 2.0**-80, -(2.0**-80), 5e-324, 1.0 - 2.0**-53, 2.0**-19, -0.0]),
)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision(), np.errstate(all="ignore"):
        yield


def limbs(total: ExactSum) -> tuple[bytes, bytes]:
    return np.asarray(total.high).tobytes(), np.asarray(total.low).tobytes()


def summed(parts: list[float], radius: float) -> ExactSum:
    made = [ExactSum.of_part(np.array([part]), radius) for part in parts]
    return functools.reduce(ExactSum.plus, made)


@given(RADII, st.lists(SHARES, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_any_order_and_any_tree_give_the_same_bits(radius, shares, random):
    reach = PART_UNITS * min(radius, 1e100)
    parts = [reach * share for share in shares]
    found = summed(parts, radius)
    trees = [ExactSum.of_part(np.array([part]), radius) for part in parts]
    while len(trees) > 1:
        random.shuffle(trees)
        trees.append(trees.pop().plus(trees.pop()))
    assert limbs(trees[0]) == limbs(found)
    assert trees[0].value(radius).tobytes() == found.value(radius).tobytes()
    assert 0 <= int(found.low[0]) < 2**62


@given(RADII, st.lists(SHARES, min_size=1, max_size=30))
def test_a_part_is_off_by_half_the_grid_and_the_total_by_four_roundings(radius, shares):
    reach = PART_UNITS * min(radius, 1e100)
    parts = [reach * share for share in shares]
    exact = sum(map(Fraction, parts))
    found = Fraction(float(summed(parts, radius).value(radius)[0]))
    allowed = len(parts) * Fraction(min(radius, 1e100)) / 2**76 + 4 * abs(exact) / 2**53 + Fraction(5e-324)
    assert abs(found - exact) <= allowed


def test_jax_has_the_same_limbs_and_value_with_a_traced_radius():
    rng = np.random.default_rng(0)
    parts = rng.uniform(-1, 1, (40, 50)) * 2.0 ** rng.integers(-90, 20, (40, 50))

    @jax.jit
    def traced(parts, radius):
        first = ExactSum.of_part(jnp.zeros(50), radius)
        body = lambda total, part: (total.plus(ExactSum.of_part(part, radius)), None)  # noqa: E731
        total, _ = jax.lax.scan(body, first, parts)
        return total, total.value(radius)

    for radius in (1.0, 0.7, 1e-100, 1e100, 1e300, 3e-7):
        scaled = parts * min(radius, 1e100)
        each = [ExactSum.of_part(part, radius) for part in scaled[::-1]]
        here = functools.reduce(ExactSum.plus, each)
        there, value = traced(scaled, radius)
        assert limbs(here) == limbs(there)
        assert np.asarray(value).tobytes() == here.value(radius).tobytes()


def test_without_a_radius_the_sum_is_that_of_floating_point():
    for radius, part in ((math.inf, 1e280), (0.0, 0.0)):
        here = summed([part, part, -3.0 * part], radius).value(radius)
        there = jax.jit(lambda x, r: ExactSum.of_part(x, r).value(r))(jnp.asarray([-part]), radius)
        assert here.tolist() == np.asarray(there).tolist() == [-part]
    assert np.isnan(summed([np.inf, -np.inf], math.inf).value(math.inf)[0])


def test_sixty_million_parts_do_not_wrap_around_and_nothing_is_beyond_its_end():
    total = ExactSum.of_part(np.array([1.0, -1.0]) * PART_UNITS, 1.0)
    for _ in range(26):
        total = total.plus(total)
    assert total.value(1.0).tolist() == [PART_UNITS * 2.0**26, -PART_UNITS * 2.0**26]
    far = ExactSum.of_part(np.array([1e300, -np.inf, np.nan, 2.0**60]), 1.0)
    for _ in range(26):
        far = far.plus(far)
    assert far.value(1.0).tolist() == [2.0**49, 0.0, 0.0, 2.0**49]


@pytest.mark.audit
def test_many_entries_of_a_block_with_a_unit_in_each_part_are_within_the_bound_in_the_l1_norm():
    """Each entry between two points of the grid, so that none is exact."""
    entries, parts = 2**21, 64
    made = [ExactSum.of_part(np.full(entries, 1.49 * 2.0**-59), 1.0) for _ in range(parts)]
    found = functools.reduce(ExactSum.plus, made).value(1.0)
    exact = parts * 1.49 * 2.0**-59
    assert entries * float(np.max(np.abs(found - exact))) <= float(rounding_bound(1.0, parts)) / 2**10


def worst_parts(count: int) -> list[float]:
    """Sums of parts below 1, each chosen so that adding it to those before rounds up by almost half a unit."""
    total, parts = 1.0, [1.0]
    for _ in range(count - 1):
        ulp = math.ulp(total)
        part = (math.floor(1.0 / ulp) - 1) * ulp + 0.5 * ulp * (1.0 + 2.0**-20)
        parts.append(part)
        total += part
    return parts


def test_the_bound_holds_where_adding_the_parts_in_floating_point_breaks_it():
    """The worst parts of one entry: the bound at this n is 4288 roundings of the whole, doubled."""
    parts = PART_UNITS * np.array(worst_parts(2**17))
    exact = math.fsum(parts)
    bound = float(rounding_bound(1.0, len(parts) * PART_UNITS))
    serial = functools.reduce(lambda total, part: total + part, parts.tolist())
    assert abs(serial - exact) > bound
    total = ExactSum.of_part(parts, 1.0)
    while len(total.high) > 1:
        half = len(total.high) // 2
        total = ExactSum(*(limb[:half] for limb in total)).plus(ExactSum(*(limb[half:] for limb in total)))
    assert abs(float(total.value(1.0)[0]) - exact) <= 1e-3 * bound
