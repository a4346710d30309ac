"""How far a unit that is in several items moves a stream: against every set of items there is."""

import itertools
import math

import numpy as np
import pytest

from privopt.mechanisms import strategies
from privopt.mechanisms.strategies import (
    ONCE,
    Banded,
    Participation,
    Strategy,
    banded,
    binary_tree,
    dense_optimum,
    independent,
    participation_sensitivity,
    square_root_toeplitz,
    unit_sensitivity,
)

STRATEGIES: dict[str, Strategy] = {
    "independent": independent(7),
    "tree": binary_tree(9),
    "square root": square_root_toeplitz(9),
    "unit columns": square_root_toeplitz(9, unit_columns=True),
    "optimum": dense_optimum(np.ones(8)),
    "bands": banded(10, 3),
    "all bands": banded(9, 9),
    "any numbers": np.tril(np.random.default_rng(0).normal(size=(8, 8))),
}


def overlaps(strategy: Strategy) -> np.ndarray:
    matrix = strategy.dense() if isinstance(strategy, Banded) else strategy
    return np.abs(matrix.T @ matrix)


def by_trying(strategy: Strategy, admitted: Participation) -> float:
    moved = overlaps(strategy)
    sets = (
        items
        for count in range(1, admitted.most + 1)
        for items in itertools.combinations(range(len(strategy)), count)
        if admitted.admits(frozenset(items))
    )
    return math.sqrt(max(moved[np.ix_(items, items)].sum() for items in sets))


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("separation", [1, 2, 3, 4])
def test_the_sensitivity_is_that_of_the_worst_set_of_items(
    strategy: Strategy, separation: int, most: int
) -> None:
    admitted = Participation(separation=separation, most=most)
    exact = by_trying(strategy, admitted)
    assert participation_sensitivity(strategy, admitted) == pytest.approx(exact, rel=1e-9)
    scaled = unit_sensitivity(strategy, admitted)
    assert by_trying(scaled, admitted) == pytest.approx(1.0, rel=1e-9)
    bounded = admitted.largest(len(strategy))
    if bounded > 1:
        for bound in (strategies._bound_by_ranks, strategies._bound_by_rows):
            assert bound(overlaps(strategy), separation, bounded) >= exact**2 * (1 - 1e-12)


def test_what_is_too_dear_to_try_is_never_understated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_MOST_SETS", 0)
    admitted = Participation(separation=2, most=3)
    for strategy in STRATEGIES.values():
        exact = by_trying(strategy, admitted)
        assert exact * (1 - 1e-12) <= participation_sensitivity(strategy, admitted) <= 1.25 * exact


def test_a_worst_unit_reaches_the_sensitivity() -> None:
    """Entries of the sum of its columns, in one direction."""
    strategy, admitted = square_root_toeplitz(64), Participation(separation=8, most=8)
    moved = np.linalg.norm(strategy[:, np.arange(0, 64, 8)].sum(axis=1))
    assert participation_sensitivity(strategy, admitted) == pytest.approx(moved, rel=1e-12)
    assert moved == pytest.approx(4.5821, abs=5e-5)  # nonsmooth reference, section 3; not sqrt(8)


def test_items_further_apart_than_the_bands_cost_the_root_of_their_number() -> None:
    for epochs, blocks in [(4, 16), (8, 16), (16, 8)]:
        admitted = Participation(separation=blocks, most=epochs)
        cut = banded(epochs * blocks, blocks)
        assert participation_sensitivity(cut, admitted) == pytest.approx(math.sqrt(epochs), rel=1e-12)
        closer = Participation(separation=blocks - 1, most=epochs)
        assert participation_sensitivity(cut, closer) > math.sqrt(epochs) * 1.001


def test_no_more_items_are_counted_than_fit_into_the_stream() -> None:
    assert Participation(separation=4, most=100).largest(9) == 3
    admitted = Participation(separation=4, most=100)
    assert participation_sensitivity(independent(9), admitted) == pytest.approx(math.sqrt(3), rel=1e-12)


def test_a_participation_admits_what_it_says() -> None:
    assert ONCE.admits(frozenset({5}))
    assert not ONCE.admits(frozenset({5, 6}))
    twice = Participation(separation=3, most=2)
    assert twice.admits(frozenset({1, 4}))
    assert not twice.admits(frozenset({1, 3}))
    assert not twice.admits(frozenset({1, 4, 7}))


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_wrong_participations_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="separation must be a whole number"):
        Participation(separation=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="most must be a whole number"):
        Participation(most=wrong)  # pyright: ignore[reportArgumentType]
