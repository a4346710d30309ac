import json

import pytest
from typer.testing import CliRunner

from privopt import LinearRegression, LogisticRegression
from privopt.attacks.one_run import one_run_attack
from privopt.cli import app
from privopt.errors import ArgumentError

SMALL = {"epsilon": 1.0, "delta": 1e-6, "pairs": 100, "others": 50, "width": 200}


@pytest.mark.parametrize("kind", ["canaries", "membership"])
def test_a_private_fit_keeps_its_coins(kind):
    found = one_run_attack(LogisticRegression, kind, of_classes=True, **SMALL)
    assert not found.refutes
    assert "100 coins" in found.detail


def test_a_fit_with_hardly_any_noise_gives_its_canaries_away():
    def loud(**arguments):
        return LinearRegression(**arguments | {"epsilon": 1e4})

    found = one_run_attack(loud, "canaries", of_classes=False, **SMALL)
    assert found.refutes
    assert found.lower_bound > 1.0


def test_few_coins_are_refused():
    with pytest.raises(ArgumentError, match="at least 16 pairs"):
        one_run_attack(LinearRegression, "canaries", of_classes=False, **SMALL | {"pairs": 3})


def test_the_command_attacks_and_says_so():
    outcome = CliRunner().invoke(app, ["audit", "attack", "descent", "--runs", "50", "--json"])
    assert outcome.exit_code == 0, outcome.output
    attacks = json.loads(outcome.output)
    assert [attack["refutes"] for attack in attacks] == [False, False]
    assert all(attack["lower_bound"] > 0.7 for attack in attacks)
    wrong = CliRunner().invoke(app, ["audit", "attack", "magic"])
    assert wrong.exit_code == 2
    assert "MODEL must be one of descent, logistic" in wrong.stderr
    for arguments in (["--epsilon", "inf"], ["--delta", "0"], ["--epsilon", "-1"]):
        assert CliRunner().invoke(app, ["audit", "attack", "descent", *arguments]).exit_code == 2
