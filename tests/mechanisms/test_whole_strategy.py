"""Correlated noise on integers: what is published is a function of a rounded Gaussian mechanism, exactly."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privopt.mechanisms.base import places_of, spacing_of, spacing_ratio
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import ENTRY_BITS, ItemNoise, PrefixSum, in_whole_numbers
from privopt.mechanisms.strategies import (
    ONCE,
    Banded,
    Participation,
    SolvedRows,
    Strategy,
    banded,
    binary_tree,
    block_diagonal,
    dense_optimum,
    independent,
    participation_sensitivity,
    prefix_noise,
    row_of,
    square_root_toeplitz,
    unit_sensitivity,
)

STRATEGIES: dict[str, Strategy] = {
    "independent": independent(9),
    "tree": binary_tree(9),
    "bands": banded(9, 3),
    "square root": square_root_toeplitz(9),
    "blocks": block_diagonal(independent(1), banded(8, 4)),
    "weighted optimum": dense_optimum([1.0, *[0.25] * 8]),
    "negative": np.array([[-0.5, 0.0, 0.0], [0.3, 0.4, 0.0], [-0.6, 0.5, -0.9]]),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


def rows_in_integers(matrix: Strategy, target: list[list[int]]) -> list[list[int]]:
    """Row by row floor((target_t - sum_j c_tj row_j + h) / c_tt), by Python's integers."""
    rows: list[list[int]] = []
    for t, wanted in enumerate(target):
        entries = [int(c) for c in row_of(matrix, t)]
        before = rows[::-1]
        left = [
            w - sum(c * row[i] for c, row in zip(entries[1:], before, strict=False))
            for i, w in enumerate(wanted)
        ]
        rows.append([(v + entries[0] // 2) // entries[0] for v in left])
    return rows


@every_strategy
def test_the_published_items_are_a_function_of_a_rounded_gaussian_mechanism(strategy: Strategy) -> None:
    """y of r = c k + J, which is round(c k + 2^e N): whatever the places k are, up to the ends of 64 bits."""
    whole, generator = in_whole_numbers(strategy, ONCE), np.random.default_rng(71)
    for furthest in (0, 2**20, 2**61):
        rows, noise = SolvedRows(whole.matrix, 4), NoiseSource(seed=72)
        places = generator.integers(-furthest, furthest, (len(strategy), 4), endpoint=True)
        draws = noise.rounded_normal(places.shape, whole.finest)
        published = [places[t] + rows.next_whole(draws[t]) for t in range(len(strategy))]
        lags = [[int(c) for c in row_of(whole.matrix, t)] for t in range(len(strategy))]
        r = [
            [
                int(draws[t, i]) + sum(c * int(places[t - lag, i]) for lag, c in enumerate(lags[t]))
                for i in range(4)
            ]
            for t in range(len(strategy))
        ]
        assert rows_in_integers(whole.matrix, r) == np.stack(published).tolist()


@pytest.mark.parametrize("strategy", [square_root_toeplitz(300), banded(400, 60), binary_tree(200)])
def test_no_sum_is_rounded(strategy: Strategy) -> None:
    whole = in_whole_numbers(strategy, ONCE)
    rows = SolvedRows(whole.matrix, 3)
    draws = NoiseSource(seed=73).rounded_normal((len(strategy), 3), whole.finest)
    found = [rows.next_whole(draw) for draw in draws]
    assert np.stack(found).tolist() == rows_in_integers(whole.matrix, draws.tolist())
    # With an exponent that takes no heed of the sums, they are refused before they are wrong.
    rows = SolvedRows(whole.matrix, 3)
    with pytest.raises(OverflowError, match="beyond the integers"):
        _ = [rows.next_whole(draw * 256) for draw in draws]


@every_strategy
def test_the_grid_is_fine_and_the_sensitivity_is_that_of_the_integers(strategy: Strategy) -> None:
    whole = in_whole_numbers(strategy, ONCE)
    stored = whole.matrix.dense() if isinstance(whole.matrix, Banded) else whole.matrix
    given_matrix = strategy.dense() if isinstance(strategy, Banded) else strategy
    assert np.array_equal(stored, np.rint(stored))
    assert 2 ** (ENTRY_BITS - 1) <= np.abs(stored).max() <= 2**ENTRY_BITS
    assert np.allclose(stored / whole.unit, given_matrix, rtol=0, atol=0.5 / whole.unit)
    exact = max(math.isqrt(int(sum(int(v) ** 2 for v in column))) for column in stored.T)
    assert exact <= whole.sensitivity <= (exact + 1) * (1 + 1e-8)


@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (banded(300, 40), Participation(separation=40, most=8)),
        (square_root_toeplitz(256), ONCE),
        (dense_optimum(np.ones(48)), Participation(separation=16, most=3)),
        (binary_tree(64), ONCE),
    ],
)
def test_the_grid_costs_next_to_no_noise(strategy: Strategy, participation: Participation) -> None:
    unit = unit_sensitivity(strategy, participation)
    whole = in_whole_numbers(unit, participation)
    excess = prefix_noise(whole.matrix) * whole.sensitivity / prefix_noise(unit)
    assert np.max(excess) <= 1 + 2e-4
    assert 2.0**whole.finest / whole.sensitivity >= 2.0**19  # spacings in the noise, for multiplier 1


@given(
    st.sampled_from(["bands", "square root", "blocks", "weighted optimum"]),
    st.integers(1, 5),
    st.floats(0.01, 300.0),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_move_by_no_more_than_the_noise_covers(
    name: str, entries: int, multiplier: float, seed: int
) -> None:
    """z |c (k' - k)| <= 2^e in integers: a unit in several items, of sensitivities far apart, at hostile places."""
    generator = np.random.default_rng(seed)
    admitted = Participation(separation=4, most=3)
    strategy = unit_sensitivity(STRATEGIES[name], admitted)
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=multiplier, participation=admitted)
    by = mechanism.of_item()
    matrix = in_whole_numbers(strategy, admitted).matrix
    moved = np.zeros((9, entries), np.int64)
    for item in [(0, 4, 8), (1, 5), (3,), (2, 6)][generator.integers(4)]:
        sensitivity = np.float64(10.0 ** generator.uniform(-6, 6))
        spacing = spacing_of(sensitivity, spacing_ratio(by.noise_multiplier, entries, "l2", by.exponent))
        direction = generator.normal(size=entries) if generator.random() < 0.5 else np.ones(entries)
        # Half-way between two places, where rounding carries neighbours the furthest apart.
        value = (np.floor(generator.normal(size=entries) * 2.0**20) + 0.5 - 2.0**-20) * spacing
        other = value + direction / np.linalg.norm(direction) * sensitivity
        moved[item] = places_of(other, spacing) - places_of(value, spacing)
    square = sum(
        sum(int(c) * int(moved[t - lag, i]) for lag, c in enumerate(row_of(matrix, t))) ** 2
        for t in range(9)
        for i in range(entries)
    )
    assert multiplier * math.sqrt(square) <= 2.0**by.exponent * (1 + 1e-12)


def test_a_mutant_that_takes_the_rounding_of_items_for_nothing_is_found() -> None:
    """With the spacing at s / D and no more, a coarse lattice moves neighbours further than the noise covers."""
    entries, by = 10**4, ItemNoise(noise_multiplier=2.0**30, exponent=40)
    honest = spacing_ratio(by.noise_multiplier, entries, "l2", by.exponent)
    for ratio, covered in ((honest, True), (by.noise_multiplier * 2.0**-by.exponent, False)):
        spacing = float(spacing_of(np.float64(1.0), ratio))
        value = np.full(entries, (0.5 - 2.0**-20) * spacing)
        moved = places_of(value + 1.0 / math.sqrt(entries), spacing) - places_of(value, spacing)
        assert (by.noise_multiplier * np.linalg.norm(moved) <= 2.0**by.exponent) == covered


@pytest.mark.parametrize("multiplier", [0.02, 1.0, 60.0])
def test_every_prefix_is_the_one_before_and_a_lattice_point(multiplier: float) -> None:
    mechanism = PrefixSum(strategy=banded(9, 3), noise_multiplier=multiplier)
    by, noise = mechanism.of_item(), NoiseSource()
    state, before = mechanism.open(noise, (6,)), np.zeros(6)
    for t in range(9):
        sensitivity = np.float64(0.1 + t)
        spacing = spacing_of(sensitivity, spacing_ratio(by.noise_multiplier, 6, "l2", by.exponent))
        released = mechanism.add(state, noise, np.cos(np.arange(6.0) + t), sensitivity)
        assert np.array_equal(before + np.rint((released - before) / spacing) * spacing, released)
        before = released


@pytest.mark.parametrize("exact", [True, False])
def test_both_kinds_of_noise_have_the_same_law(exact: bool) -> None:
    """The covariance of all prefixes, measured on many coordinates, is that of C."""
    strategy, sensitivities = square_root_toeplitz(6), np.linspace(0.3, 1.4, 6)
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=1.3)
    noise = NoiseSource(seed=74, exact=exact)
    state = mechanism.open(noise, (40_000,))
    drawn = np.stack([mechanism.add(state, noise, np.zeros(40_000), s) for s in sensitivities])
    spread = np.tril(np.ones((6, 6))) * sensitivities @ np.linalg.inv(strategy) * 1.3
    wanted = spread @ spread.T
    assert np.allclose(drawn @ drawn.T / 40_000, wanted, atol=6 * math.sqrt(2 / 40_000) * wanted.max())


def test_an_exact_stream_stays_exact_and_a_float_one_float() -> None:
    """The state says which noise its rows are of: rows of both kinds in one sum would be no noise at all."""
    mechanism = PrefixSum(strategy=banded(4, 2), noise_multiplier=1.0)
    assert mechanism.exact
    for exact, kind in ((True, np.int64), (False, np.float64)):
        state = mechanism.open(NoiseSource(seed=75, exact=exact), (3,))
        for turn in (exact, not exact):
            assert mechanism.draw_next(state, NoiseSource(seed=76, exact=turn)).dtype == kind


def test_a_row_of_a_stream_is_released_by_the_stream_alone() -> None:
    by: Any = PrefixSum(strategy=independent(2), noise_multiplier=1.0).of_item()
    with pytest.raises(TypeError, match="draw_next"):
        by.draw(NoiseSource(seed=77), (2,))
    with pytest.raises(TypeError, match=r"PrefixSum\.add"):
        by.release(NoiseSource(seed=77), np.zeros(2), 1.0)


def test_the_sensitivity_is_never_below_that_of_all_sets_of_items() -> None:
    """By brute force over sets, in integers."""
    admitted = Participation(separation=2, most=3)
    for strategy in (square_root_toeplitz(7), dense_optimum(np.ones(7)), banded(7, 5)):
        whole = in_whole_numbers(strategy, admitted)
        matrix: NDArray[np.float64] = (
            whole.matrix.dense() if isinstance(whole.matrix, Banded) else np.asarray(whole.matrix)
        )
        integers = np.abs(matrix.astype(np.int64).T @ matrix.astype(np.int64))
        sets = [
            [j for j in range(7) if bits >> j & 1]
            for bits in range(1, 128)
            if admitted.admits(frozenset(j for j in range(7) if bits >> j & 1))
        ]
        worst = max(int(integers[np.ix_(one, one)].sum()) for one in sets)
        assert worst <= whole.sensitivity**2
        assert whole.sensitivity == pytest.approx(participation_sensitivity(matrix, admitted), rel=1e-8)
