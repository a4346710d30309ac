"""What a violation says, and that the checks need none of the tools that tests are written with."""

import ast
from pathlib import Path

import privopt.testing
from privopt.testing import ContractViolation, Rule

FOLDER = Path(privopt.testing.__file__).parent


def test_a_violation_is_an_assertion_that_names_rule_subject_case_and_call():
    violation = ContractViolation(
        Rule.NOISE_REUSED, dict, "releases 1 and 2 have the same noise", case="neighbours", repeat="check(it)"
    )
    assert isinstance(violation, AssertionError)
    assert str(violation) == (
        "dict, noise reused: releases 1 and 2 have the same noise.\n"
        "  on: neighbours\n"
        "  again: privopt.testing.check(it)"
    )


def test_every_rule_has_a_name_of_its_own_and_a_line_that_says_what_it_asks():
    assert len({rule.value for rule in Rule}) == len(Rule)
    assert all(f"`{rule.name}`:" in Rule.__doc__ for rule in Rule)


def test_the_checks_import_no_tool_for_tests():
    imported = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.partition(".")[0])
    assert not imported & {"pytest", "hypothesis", "tests"}
