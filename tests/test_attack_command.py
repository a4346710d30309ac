import json

import pytest
from tests.attacks.broken import attack_broken
from typer.testing import CliRunner

from privopt.attacks.optimal import Attack
from privopt.attacks.subjects import IN_ONE_RUN, SUBJECTS
from privopt.cli import app
from privopt.commands import attacking
from privopt.ledger.amounts import Budget

DESCENT = ["audit", "attack", "--estimator", "descent"]


def test_the_command_attacks_and_says_so():
    outcome = CliRunner().invoke(app, [*DESCENT, "--runs", "8", "--json"])
    assert outcome.exit_code == 0, outcome.output
    attacks = json.loads(outcome.output)
    assert [attack["refutes"] for attack in attacks] == [False, False]
    assert all(attack["lower_bound"] > 0.6 and attack["seconds"] > 0 for attack in attacks)


@pytest.mark.audit
def test_what_is_printed_stands_in_columns_and_says_how_sure_it_is():
    outcome = CliRunner().invoke(app, [*DESCENT, "--runs", "3"])
    assert outcome.exit_code == 0, outcome.output
    header, *rows, last = outcome.output.strip().splitlines()
    assert len({row.index("not refuted") for row in rows} | {header.index("verdict")}) == 1
    assert last.startswith("0 of 2 claims refuted, in ")
    assert "with probability 0.999" in last


def test_a_claim_that_is_refuted_ends_with_1_and_names_what_is_broken(monkeypatch):
    found = attack_broken("sensitivity understated", runs=2)
    monkeypatch.setattr(attacking, "planned", lambda *names, **given: [lambda confidence: found])
    outcome = CliRunner().invoke(app, DESCENT)
    assert outcome.exit_code == 1
    assert "REFUTED" in outcome.output
    assert "BROKEN: sensitivity understated: one unit moves ClippedGradient by 2 times" in outcome.output


def test_bounds_hold_together(monkeypatch):
    asked = []

    def attack(confidence):
        asked.append(confidence)
        return Attack("one", 1.0, 0.0, (), "", 0.0)

    monkeypatch.setattr(attacking, "planned", lambda *names, **given: [attack] * 4)
    assert CliRunner().invoke(app, ["audit", "attack", "--all"]).exit_code == 0
    assert asked == [pytest.approx(1 - 1e-3 / 4)] * 4


def test_everything_is_attacked_under_both_relations_and_in_one_run_where_it_can_be():
    attacks = attacking.planned(list(SUBJECTS), ["svrg"], Budget(1.0, 1e-6), runs=2, pairs=16)
    assert len(attacks) == 2 * len(SUBJECTS) + 2 * len(IN_ONE_RUN) + 1


def test_what_cannot_be_attacked_is_refused():
    wrong = CliRunner().invoke(app, ["audit", "attack", "--estimator", "magic"])
    assert wrong.exit_code == 2
    assert "--estimator must be one of descent, logistic" in wrong.stderr
    wrong = CliRunner().invoke(app, ["audit", "attack", "--solver", "magic"])
    assert "--solver must be one of whitening" in wrong.stderr
    for arguments in (["--epsilon", "inf"], ["--delta", "0"], ["--epsilon", "-1"], ["--all"]):
        assert CliRunner().invoke(app, [*DESCENT, *arguments]).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--runs", "1"],
        ["--runs", "-5"],
        ["--runs", "1" + 30 * "0"],
        ["--pairs", "0"],
        ["--pairs", "1" + 12 * "0"],
        ["--epsilon", "1e18"],
        ["--epsilon", "1e300"],
    ],
)
def test_numbers_beyond_reason_are_refused_in_a_sentence_before_anything_is_tried(arguments):
    wrong = CliRunner().invoke(app, [*DESCENT, *arguments])
    assert wrong.exit_code == 2
    assert wrong.stdout == ""
    assert len(wrong.stderr.strip().splitlines()) == 1
