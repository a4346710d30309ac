"""Losses of groups: what a target says, how groups are weighted, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.grouped_loss import GroupedLoss, capped

LOSS = GroupedLoss(losses.logistic, 3, (0.5, 0.3, 0.2))


def test_a_target_says_label_and_group():
    with double_precision():
        targets = jnp.asarray([1.0, -1.0, 3.0, -2.0, 0.0, 4.0, 1.5, jnp.nan, jnp.inf])
        assert LOSS.group_of(targets).tolist() == [1, 1, 3, 2, 0, 0, 0, 0, 0]
        assert LOSS.label_of(targets).tolist() == [1, -1, 1, -1, 0, 0, 0, 0, 0]
        predictions = jnp.full(9, 0.7)
        values, slopes = LOSS.value(predictions, targets), LOSS.slope(predictions, targets)
        assert float(values[3]) == pytest.approx(float(losses.logistic.value(0.7, -1.0)))
        assert float(slopes[2]) == pytest.approx(float(losses.logistic.slope(0.7, 1.0)))
        assert not np.any(values[4:])
        assert not np.any(slopes[4:])


def test_equal_losses_leave_the_weights_between_equal_ones_and_the_shares():
    weights = LOSS.play(np.full(3, 0.7), np.asarray(LOSS.shares))
    np.testing.assert_allclose(weights, np.sqrt(LOSS.shares) / np.sum(np.sqrt(LOSS.shares)))
    assert weights.sum() == pytest.approx(1.0)


def test_weights_of_a_large_score_go_to_its_group_and_those_of_cvar_stop_at_their_caps():
    shares = np.asarray(LOSS.shares)
    scores = np.array([0.0, 0.0, 900.0])
    np.testing.assert_allclose(LOSS.play(scores, shares), [0.0, 0.0, 1.0], atol=1e-12)
    cvar = GroupedLoss(losses.logistic, 3, LOSS.shares, alpha=0.5)
    weights = cvar.play(scores, shares)
    assert weights[2] == pytest.approx(0.4)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] / weights[1] == pytest.approx(np.sqrt(0.5 / 0.3))
    everything = GroupedLoss(losses.logistic, 3, LOSS.shares, alpha=1.0)
    np.testing.assert_allclose(everything.play(scores, shares), shares, atol=1e-12)


@given(
    st.lists(st.floats(1e-9, 1.0), min_size=4, max_size=4),
    st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4),
)
def test_capped_weights_are_the_nearest_within_their_caps(weights, caps):
    weights = np.asarray(weights) / np.sum(weights)
    caps = np.asarray(caps) / np.sum(caps) * 1.7
    found = capped(np.log(weights) - 700.0, caps)
    assert np.all(found <= caps * (1 + 1e-9))
    assert found.sum() == pytest.approx(1.0)
    free = found < caps * (1 - 1e-6)
    if np.sum(free) > 1:  # below their caps all are multiplied alike: what makes relative entropy least
        ratios = found[free] / weights[free]
        assert np.ptp(ratios) <= 1e-6 * np.max(ratios)
        assert np.all(caps[~free] / weights[~free] <= np.max(ratios) * (1 + 1e-5))


def test_a_group_below_the_floor_counts_less_than_its_own_share():
    rare = GroupedLoss(losses.logistic, 2, (0.999, 0.001), floor=0.02)
    shares = np.asarray(rare.shares)
    np.testing.assert_allclose(rare.divisors(shares), [0.999, 0.02])
    sums = shares * (0.7 - 0.5 * rare.cap)  # both groups have a mean loss of 0.7
    np.testing.assert_allclose(rare.mean_losses(sums, shares), [0.7, 0.7 * 0.001 / 0.02])


def test_the_floor_is_never_above_an_equal_share():
    many = GroupedLoss(losses.logistic, 100, (0.01,) * 100, floor=0.02)
    np.testing.assert_allclose(many.divisors(np.asarray(many.shares)), 0.01)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shares": (0.5, 0.4)}, "shares must sum to 1, got 0.9"),
        ({"shares": (1.0,)}, "one number for each of the 2 groups, got 1"),
        ({"shares": (1.2, -0.2)}, "above 0 and at most 1"),
        ({"groups": 0, "shares": None}, "groups must be at least 1"),
        ({"floor": 0.0}, "floor must be in"),
        ({"cap": np.inf}, "cap must be positive and finite"),
        ({"alpha": 0.0}, "alpha must be in"),
    ],
)
def test_what_is_no_loss_of_groups_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        GroupedLoss(**({"base": losses.logistic, "groups": 2, "shares": (0.5, 0.5)} | fields))
