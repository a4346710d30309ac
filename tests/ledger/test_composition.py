"""Trees become what a single unit meets; disjoint blocks cost the dearest, never less."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from privopt.ledger.accounting import epsilon, zcdp_rho
from privopt.ledger.composition import MOST_ALTERNATIVES, alternatives
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    Parallel,
    Poisson,
    PureEvent,
    Repeated,
    RoundingEvent,
    SampledEvent,
    SelectionsEvent,
    Sequence,
    ZCDPEvent,
)

EVENTS = st.one_of(
    st.builds(GaussianEvent, st.floats(1, 50)),
    st.builds(BoundedRangeEvent, st.floats(0.01, 1)),
    st.builds(ZCDPEvent, st.floats(0.001, 0.5)),
    st.builds(SelectionsEvent, st.floats(0.001, 0.5), st.floats(0.1, 9)),
    st.builds(DeltaEvent, st.floats(1e-12, 1e-8)),
    st.builds(RoundingEvent, st.floats(1e-15, 1e-11)),
)


def test_a_dominated_branch_is_dropped_and_the_dearest_is_kept() -> None:
    tree = Sequence(
        (GaussianEvent(10.0), Parallel((GaussianEvent(3.0), GaussianEvent(2.0), DeltaEvent(0.0))))
    )
    (way,) = alternatives(tree)
    assert way.mu_squared == pytest.approx(1 / 100 + 1 / 4)


def test_branches_that_cannot_be_compared_are_both_priced() -> None:
    laplace, gaussian = LaplaceEvent(3.0), GaussianEvent(1.0)
    both = [epsilon(event, 1e-6, "replace-one", near=5) for event in (laplace, gaussian)]
    assert epsilon(Parallel((laplace, gaussian)), 1e-6, "replace-one", near=5) == max(both)


def test_too_many_combinations_are_replaced_by_an_upper_bound() -> None:
    branches = (BoundedRangeEvent(0.1), GaussianEvent(20.0), PureEvent(0.05))
    tree = Repeated(Parallel(branches), 1000)
    (way,) = alternatives(tree)
    exact = max(epsilon(Repeated(branch, 1000), 1e-6, "replace-one") for branch in branches)
    assert epsilon(tree, 1e-6, "replace-one") >= exact
    assert dict(way.leaves) == {branches[0]: 1000, branches[2]: 1000}
    nodes = tuple(Parallel((BoundedRangeEvent(0.1 + i / 99), GaussianEvent(20.0))) for i in range(12))
    assert len(alternatives(Sequence(nodes))) <= MOST_ALTERNATIVES


@given(st.lists(EVENTS, min_size=1, max_size=3), st.lists(EVENTS, min_size=1, max_size=3), EVENTS)
def test_disjoint_blocks_cost_at_least_every_single_branch(
    left: list[Event], right: list[Event], rest: Event
) -> None:
    tree = Sequence((rest, Parallel((Sequence(tuple(left)), Sequence(tuple(right))))))
    whole = zcdp_rho(tree)
    assert whole is not None
    for branch in (left, right):
        alone = zcdp_rho(Sequence((rest, *branch)))
        assert alone is not None
        assert whole >= alone * (1 - 1e-12)
        dearest = epsilon(tree, 1e-6, "replace-one", accountant="zcdp")
        assert dearest >= epsilon(Sequence((rest, *branch)), 1e-6, "replace-one", accountant="zcdp")


def test_a_sample_of_everybody_is_not_a_sample() -> None:
    (way,) = alternatives(SampledEvent(Poisson(1.0), Repeated(GaussianEvent(2.0), 3)))
    assert way.mu_squared == pytest.approx(3 / 4)
    assert not way.leaves


def test_a_currency_that_cannot_price_a_leaf_prices_no_tree_that_holds_it() -> None:
    sampled = SampledEvent(Poisson(0.1), GaussianEvent(1.0))
    assert zcdp_rho(Sequence((GaussianEvent(1.0), sampled))) is None
    assert zcdp_rho(Parallel((GaussianEvent(1.0), sampled))) is None
    assert zcdp_rho(Sequence((GaussianEvent(1.0), NonPrivateEvent()))) == math.inf
