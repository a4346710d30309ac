"""What is wrong with the prefix sums of Kornowski, Liu, Talwar 2024 as printed, and right with ours."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from privopt.mechanisms.strategies import binary_tree, prefix_map, prefix_noise, square_root_toeplitz

EPSILON, DELTA, MU = 1.0, 1e-6, 0.236704380663


def printed_nodes(t: int, items: int) -> list[tuple[int, int]]:
    """NODE(t) of Algorithm 1 as printed: from 2^(ceil(log S) - 1) on, ceil(log S) halvings."""
    nodes, covered = [], 0
    for level in range(math.ceil(math.log2(items)) - 1, -1, -1):
        if covered + 2**level <= t:
            nodes.append((covered + 1, covered + 2**level))
            covered += 2**level
    return nodes


def printed_map(items: int) -> NDArray[np.float64]:
    """Which noises the printed tree adds to prefix t = 1..S, one column a node."""
    rows = [printed_nodes(t, items) for t in range(1, items + 1)]
    nodes = sorted({node for row in rows for node in row})
    return np.array([[1.0 if node in row else 0.0 for node in nodes] for row in rows])


@pytest.mark.parametrize("items", [2, 4, 8, 16])
def test_the_printed_tree_releases_the_last_item_without_noise_and_ours_does_not(items: int) -> None:
    """E1: rows of noise that are equal cancel in the difference of two released sums."""
    printed = printed_map(items)
    assert np.array_equal(printed[-1], printed[-2])
    assert np.linalg.matrix_rank(printed) < items
    ours = prefix_map(binary_tree(items))
    assert np.linalg.matrix_rank(ours) == items
    assert np.linalg.norm(ours[-1] - ours[-2]) >= 1.0


def test_the_printed_nodes_do_not_cover_the_eighth_of_eight_items() -> None:
    assert printed_nodes(8, 8) == [(1, 4), (5, 6), (7, 7)]
    assert np.array_equal(np.flatnonzero(np.abs(prefix_map(binary_tree(8))[7]) > 1e-9), [7])  # one node


@pytest.mark.parametrize("period", [1, 3, 8])
def test_indexed_by_the_step_in_its_period_the_printed_tree_adds_no_noise_at_the_periods_end(
    period: int,
) -> None:
    """E1: Algorithms 3 and 5 ask for TREE(t mod S), which is made of no node at t = S; ours has noise there."""
    if period > 1:
        assert printed_nodes(period % period, period) == []
    assert prefix_noise(binary_tree(period))[-1] >= 1.0


def printed_stddev(items: int) -> float:
    """Proposition 2.5, of a node, for items of sensitivity 1."""
    return 4.0 * math.sqrt(math.log(items) * math.log(1.0 / DELTA)) / EPSILON


def test_the_printed_noise_of_one_item_is_zero_and_of_more_items_too_large() -> None:
    """E2."""
    assert printed_stddev(1) == 0.0
    assert prefix_noise(binary_tree(1))[0] == 1.0
    ratios = [printed_stddev(items) / (math.sqrt(items.bit_length()) / MU) for items in (2, 8, 64)]
    assert 2.0 < min(ratios) < max(ratios) < 2.75
    of_nodes = prefix_noise(binary_tree(64)) / math.sqrt(7)
    printed = printed_stddev(64) * math.sqrt(np.mean(of_nodes**2))
    ours = math.sqrt(np.mean(prefix_noise(square_root_toeplitz(64)) ** 2)) / MU
    assert (printed, ours) == pytest.approx((52.7, 9.42), rel=2e-3)
