import pytest

from privopt import LinearRegression, LogisticRegression
from privopt.attacks.one_run import one_run_attack
from privopt.errors import ArgumentError

SMALL = {"name": "model", "epsilon": 1.0, "delta": 1e-6, "pairs": 100, "others": 50, "width": 200}


@pytest.mark.later("canaries")
@pytest.mark.parametrize("kind", ["canaries", "membership"])
def test_a_private_fit_keeps_its_coins(kind):
    found = one_run_attack(LogisticRegression, kind, of_classes=True, **SMALL)
    assert not found.refutes
    assert "100 coins" in found.detail
    assert found.name == f"{kind}, model"


def test_a_fit_with_hardly_any_noise_gives_its_canaries_away():
    def loud(**arguments):
        return LinearRegression(**arguments | {"epsilon": 1e4})

    found = one_run_attack(loud, "canaries", of_classes=False, **SMALL)
    assert found.refutes
    assert found.lower_bound > 1.0


def test_few_coins_are_refused():
    with pytest.raises(ArgumentError, match="at least 16 pairs"):
        one_run_attack(LinearRegression, "canaries", of_classes=False, **SMALL | {"pairs": 3})
