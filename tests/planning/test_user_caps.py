"""Records as units beside users with several caps: one budget, public numbers only."""

import json
import math
from dataclasses import replace

import pytest
from tests.planning.test_users import instance

from privopt import LinearRegression, LogisticRegression
from privopt.ledger.curves import gaussian_epsilon, gaussian_mu
from privopt.planning import plan, users
from privopt.planning.users import CAPS, compare_caps
from privopt.public import Public, of_users


def test_every_cap_is_priced_as_if_it_were_asked_for() -> None:
    asked = instance(typical=10.0)
    records, *caps = compare_caps(asked)
    assert [price.cap for price in caps] == list(CAPS)
    assert [price.typical_records for price in caps] == pytest.approx([1, 10**0.5, 10, 1000**0.5])
    for price in caps:
        alone = replace(asked, public=replace(asked.public, **of_users(price.cap, "sqrt")))
        assert price.noise == users.one_shot_noise(alone) == users.one_shot_noise(asked)
        assert price.excess == users.expected_excess(alone)
        assert price.epsilon_of_person == 1.0
    assert records.cap is None
    assert records.units == 10_000
    assert records.noise == pytest.approx(caps[0].noise / 10)


def test_records_as_units_promise_a_person_as_much_less_as_they_have_records() -> None:
    records = compare_caps(instance(typical=10.0))[0]
    assert records.epsilon_of_person == pytest.approx(gaussian_epsilon(10 * gaussian_mu(1.0, 1e-6), 1e-6))
    assert compare_caps(instance(typical=1.0))[0].epsilon_of_person == pytest.approx(1.0, rel=1e-3)
    assert math.isinf(compare_caps(instance(epsilon=math.inf))[0].epsilon_of_person)


def test_a_cap_above_the_typical_number_keeps_the_typical_number() -> None:
    prices = compare_caps(instance(typical=10.0), typical=10.0, caps=(1, 10, 1000))
    assert [price.typical_records for price in prices[1:]] == [1, 10, 10]
    assert prices[1].excess > prices[2].excess == prices[3].excess
    json.dumps([price.to_dict() for price in prices], allow_nan=False)


def test_an_estimator_compares_caps_without_data() -> None:
    model = LogisticRegression(
        epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], typical_records=20, alpha="private"
    )
    prices = model.compare_caps(n_features=19, n=1000, caps=(5, 50))
    assert [price.typical_records for price in prices] == [20, 5, 20]
    assert prices[1].units == 1000
    linear = LinearRegression(epsilon=1.0, delta=1e-6, loose_bounds=(-9, 9), target_bounds=(0, 1), n=500)
    assert linear.compare_caps(n_features=3)[1].smallest_n == users.FEWEST_USERS
    with pytest.raises(ValueError, match="n is missing"):
        model.compare_caps(n_features=3)


@pytest.mark.parametrize(
    ("weighting", "words"),
    [
        ("user", "counts the same"),
        ("sqrt", "square root of their number"),
        ("record", "by their number of records"),
    ],
)
def test_the_words_say_which_objective_is_minimised(weighting: str, words: str) -> None:
    public = Public(n=100, d=3, **of_users(1000, weighting, 2.5))
    text = plan.objective(public)
    assert words in text
    assert ("M = 1,000" in text) == (weighting != "user")
    assert plan.promise(public) == "everything a person contributed; at most 1,000 records of each are used"
    assert "2.5 records" in plan.meaning_of_typical(public)
    one = Public(n=100, d=3, **of_users(1, weighting))
    assert "at most 1 record of each" in plan.promise(one)
