"""Strategies: their matrices, and the noise that they leave in the prefix sums."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from privopt.mechanisms.strategies import (
    Banded,
    Participation,
    Strategy,
    banded,
    binary_tree,
    block_diagonal,
    dense_optimum,
    independent,
    prefix_map,
    prefix_noise,
    square_root_toeplitz,
    unit_sensitivity,
)

# Largest and root mean square: independent, tree, square root, dense optimum (nonsmooth reference, section 3).
NOISE_TABLE = """
2 1.4142/1.2247 1.4142/1.4142 1.2500/1.1859 1.2030/1.1441
4 2.0000/1.5811 2.4495/1.9365 1.4883/1.3814 1.4164/1.3109
8 2.8284/2.1213 3.4641/2.5495 1.7184/1.5859 1.6352/1.4944
16 4.0000/2.9155 4.4721/3.2113 1.9439/1.7968 1.8567/1.6894
32 5.6569/4.0620 5.4772/3.8971 2.1670/2.0120 2.0794/1.8921
64 8.0000/5.7009 6.4807/4.5945 2.3888/2.2297 2.3024/2.0999
128 11.314/8.0312 7.4833/5.2974 2.6101/2.4488 2.5256/2.3110
256 16.000/11.336 8.4853/6.0029 2.8310/2.6688 2.7486/2.5244
512 22.627/16.016 9.4868/6.7097 3.0518/2.8892 2.9715/2.7394
"""
ROWS = [row.split() for row in NOISE_TABLE.split("\n") if row]


def rms(errors: NDArray[np.float64]) -> float:
    return math.sqrt(np.mean(errors**2))


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.audit if int(row[0]) > 32 else ()) for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_the_noise_of_every_strategy_is_within_a_percent_of_the_table(row: list[str]) -> None:
    items = int(row[0])
    made = (
        independent(items),
        binary_tree(items),
        square_root_toeplitz(items),
        dense_optimum(np.ones(items)),
    )
    for strategy, stated in zip(made, row[1:], strict=True):
        largest, root_mean_square = map(float, stated.split("/"))
        errors = prefix_noise(strategy)
        assert errors.max() == pytest.approx(largest, rel=1e-4)
        assert rms(errors) == pytest.approx(root_mean_square, rel=1e-4)


@pytest.mark.parametrize(
    ("items", "largest", "root_mean_square"), [(8, 1.5725, 1.5087), (64, 2.2118, 2.1277)]
)
def test_columns_of_norm_one_leave_less_noise(items: int, largest: float, root_mean_square: float) -> None:
    """Less at its largest than the dense optimum, too."""
    for strategy in (square_root_toeplitz(items, unit_columns=True), banded(items, items)):
        errors = prefix_noise(strategy)
        assert errors.max() == pytest.approx(largest, abs=5e-5)
        assert rms(errors) == pytest.approx(root_mean_square, abs=5e-5)
        assert errors.max() < prefix_noise(dense_optimum(np.ones(items))).max()


@pytest.mark.parametrize(
    ("epochs", "blocks", "expected"),
    [
        (4, 16, (11.40, 5.71, 5.43, 4.69)),
        pytest.param(8, 16, (22.7, 10.9, 10.2, 8.31), marks=pytest.mark.audit),
        pytest.param(16, 8, (32.1, 20.5, 18.9, 14.4), marks=pytest.mark.audit),
    ],
)
def test_several_epochs_have_their_reference_noise(
    epochs: int, blocks: int, expected: tuple[float, ...]
) -> None:
    items, admitted = epochs * blocks, Participation(separation=blocks, most=epochs)
    made = (
        independent(items),
        square_root_toeplitz(items),
        dense_optimum(np.ones(items)),
        banded(items, blocks),
    )
    found = [rms(prefix_noise(unit_sensitivity(strategy, admitted))) for strategy in made]
    assert found == pytest.approx(expected, rel=0.005)


def test_items_are_in_as_many_nodes_of_the_tree_as_counted_by_hand() -> None:
    """nonsmooth reference, section 14: eleven items, and what their prefixes are made of."""
    tree = binary_tree(11) * 2.0
    assert np.array_equal((tree != 0).sum(axis=0), [4, 3, 3, 2, 3, 2, 2, 1, 2, 1, 1])
    nodes = prefix_map(tree)  # row t: which nodes make up prefix t
    assert np.array_equal(np.flatnonzero(np.abs(nodes[7]) > 1e-9), [7])
    assert np.array_equal(np.flatnonzero(np.abs(nodes[10]) > 1e-9), [7, 9, 10])
    for t in range(1, 12):
        assert np.linalg.norm(nodes[t - 1]) == pytest.approx(math.sqrt(t.bit_count()), rel=1e-12)


@pytest.mark.parametrize("items", [1, 2, 3, 5, 8, 17])
def test_every_strategy_gives_every_prefix_noise_of_its_own(items: int) -> None:
    """B C = A, columns of norm at most 1, and B of full rank: equal rows would release an item exactly."""
    made: list[Strategy] = [binary_tree(items), square_root_toeplitz(items), banded(items, 3)]
    for strategy in (*made, dense_optimum(np.ones(items)), banded(items, items), independent(items)):
        matrix = strategy.dense() if isinstance(strategy, Banded) else strategy
        noise_map = prefix_map(strategy)
        assert np.allclose(noise_map @ matrix, np.tril(np.ones((items, items))), atol=1e-10)
        assert not np.any(np.triu(matrix, 1))
        assert np.linalg.norm(matrix, axis=0).max() <= 1 + 1e-12
        assert np.linalg.matrix_rank(noise_map) == items


def test_bands_are_stored_as_bands_and_agree_with_the_matrix() -> None:
    strategy = banded(40, 5)
    assert strategy.diagonals.shape == (5, 40)
    assert np.allclose(np.linalg.norm(strategy.dense(), axis=0), 1.0, rtol=1e-12)
    weights = np.linspace(0.2, 2.0, 40)
    inverse = np.linalg.inv(strategy.dense())
    dense = np.cumsum(weights[:, None] * inverse, axis=0)
    assert np.allclose(prefix_map(strategy, weights), dense, rtol=1e-10, atol=1e-12)
    assert np.allclose(prefix_noise(strategy, weights), np.linalg.norm(dense, axis=1), rtol=1e-10)
    assert repr(strategy) == "Banded(items=40, bands=5)"
    mixed = block_diagonal(independent(2), banded(5, 2), dense_optimum(np.ones(3)))
    assert isinstance(mixed, Banded)
    dense_blocks = block_diagonal(independent(2), banded(5, 2).dense(), dense_optimum(np.ones(3)))
    assert np.array_equal(mixed.dense(), dense_blocks)


@pytest.mark.parametrize(
    ("items", "largest", "root_mean_square"),
    [
        (2, 1.2030, 1.1441),
        (4, 1.4163800019, 1.3109294505),
        (8, 1.6352022730, 1.4944136531),
        (16, 1.8566841539, 1.6894036820),
    ],
)
def test_the_dense_optimum_has_its_reference_errors(
    items: int, largest: float, root_mean_square: float
) -> None:
    """nonsmooth reference, sections 3 and 14."""
    errors = prefix_noise(dense_optimum(np.ones(items)))
    tolerance = 1e-4 if items == 2 else 2e-10
    assert errors.max() == pytest.approx(largest, abs=tolerance)
    assert rms(errors) == pytest.approx(root_mean_square, abs=tolerance)


@pytest.mark.parametrize(
    ("items", "largest"), [(8, 1.718379259109), (64, 2.388848108295), (256, 2.831049931861)]
)
def test_the_square_root_has_its_reference_errors(items: int, largest: float) -> None:
    assert prefix_noise(square_root_toeplitz(items)).max() == pytest.approx(largest, abs=1e-11)


def test_the_square_root_squares_to_the_prefix_sums() -> None:
    root = square_root_toeplitz(9)
    root = root / root[0, 0]
    assert np.allclose(root @ root, np.tril(np.ones((9, 9))), atol=1e-12)


def test_a_block_strategy_has_its_reference_errors() -> None:
    strategy = block_diagonal(independent(1), square_root_toeplitz(7))
    errors = prefix_noise(strategy, [0.02, *[0.005] * 7]) / 0.5
    expected = (
        "0.0400000000 .0420410519 .0425360148 .0428119168 .0430024739 .0431478004 .0432651570 .0433635236"
    )
    assert np.allclose(errors, [float(x) for x in expected.split()], atol=1e-10)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (dense_optimum([1.0, *[0.25] * 31]), 1.0600),
        (block_diagonal(independent(1), dense_optimum(np.ones(31))), 1.1021),
        (block_diagonal(independent(1), square_root_toeplitz(31)), 1.1148),
        (independent(32), 1.4031),
    ],
)
def test_weighted_streams_have_their_reference_errors(strategy: Strategy, expected: float) -> None:
    assert rms(prefix_noise(strategy, [1.0, *[0.25] * 31])) == pytest.approx(expected, abs=5e-5)


def test_the_dense_optimum_cannot_be_improved() -> None:
    weights = np.array([1.0, 0.3, 0.3, 0.5, 0.1])
    optimum = dense_optimum(weights)
    best = rms(prefix_noise(optimum, weights))
    generator = np.random.default_rng(60)
    for _ in range(200):
        other = np.tril(optimum + 0.02 * generator.normal(size=optimum.shape))
        other /= np.linalg.norm(other, axis=0)
        assert rms(prefix_noise(other, weights)) >= best
    assert np.array_equal(dense_optimum(7 * weights), optimum)  # only ratios count


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        independent(0)
    with pytest.raises(ValueError, match="at least 1 band"):
        banded(4, 0)
    with pytest.raises(ValueError, match="512"):
        dense_optimum(np.ones(513))
    with pytest.raises(ValueError, match="positive and finite"):
        dense_optimum([1.0, 0.0])
    with pytest.raises(ValueError, match="1 to 2 bands"):
        Banded(np.ones((3, 2)))
