"""The inventory policy: its cost is that of a plain simulation, of one record alone."""

import numpy as np
import pytest

from privopt import zoo


def simulated(policy, demands):
    """One policy on one record, a period at a time, in plain Python."""
    seasons = len(policy) // 2
    low, high = (
        policy[:seasons],
        [s + abs(x) for s, x in zip(policy[:seasons], policy[seasons:], strict=True)],
    )
    stock, cost = high[0], 0.0
    for period, demand in enumerate(demands):
        season = period * seasons // 24
        if stock < low[season]:
            cost += 4.0
            stock = high[season]
        cost += 3.0 * max(demand - stock, 0.0)
        stock = max(stock - demand, 0.0)
        cost += 0.2 * stock
    return min(cost / 24, 12.0)


@pytest.mark.parametrize("seasons", [1, 4, 6])
def test_the_cost_is_that_of_a_plain_simulation_at_any_number_of_points(seasons):
    inventory = zoo.inventory(seasons)
    demands = inventory.demands(30, seed=3)
    points = inventory.start + np.random.default_rng(0).normal(size=(5, 2 * seasons)) * 2.0
    expected = [[simulated(point, record) for record in demands] for point in points]
    one_by_one = np.stack([inventory(points, record) for record in demands], axis=1)
    np.testing.assert_allclose(one_by_one, expected, rtol=1e-12)
    np.testing.assert_allclose(inventory(points[:, None], demands), expected, rtol=1e-12)
    assert inventory.mean_cost(points[0], demands) == pytest.approx(np.mean(expected[0]))


def test_the_made_up_demands_repeat_have_a_season_and_make_the_start_improvable():
    inventory = zoo.inventory()
    demands = inventory.demands(2000, seed=0)
    np.testing.assert_array_equal(demands, inventory.demands(2000, seed=0))
    assert np.any(demands != inventory.demands(2000, seed=1))
    assert demands[:, 6].mean() > 2.5 * demands[:, 18].mean()
    assert inventory.mean_cost(inventory.start, demands) == pytest.approx(3.39, abs=0.03)
    better = [6.0, 3.4, 2.0, 0.6, 9.0, 9.7, 6.2, 5.4]
    assert inventory.mean_cost(better, demands) < 2.3
    assert inventory == zoo.inventory(4)


def test_a_cost_stays_in_its_range_for_any_policy_and_record():
    inventory = zoo.inventory()
    values = inventory(np.full((2, 8), [[0.0], [1e6]]), np.full(24, 1e5))
    np.testing.assert_array_equal(values, [12.0, 12.0])
    assert np.all(inventory(inventory.start, inventory.demands(50, 0)) >= 0.0)


def test_seasons_divide_the_periods():
    with pytest.raises(ValueError, match="seasons must divide 24 periods, got 5"):
        zoo.inventory(5)
