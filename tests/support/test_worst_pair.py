import math

from tests.support.worst_pair import epsilon_lower_bound


def test_counts_that_a_claim_allows_refute_nothing_of_it():
    # Randomised response at epsilon = 1: 73 % against 27 %.
    assert 0.9 < epsilon_lower_bound(73_106, 26_894, 100_000, 0.0) < 1.0
    assert epsilon_lower_bound(500, 500, 1000, 0.0) < 0
    assert epsilon_lower_bound(0, 0, 1000, 0.1) == -math.inf
    assert epsilon_lower_bound(1000, 0, 1000, 0.1) > 4.5
