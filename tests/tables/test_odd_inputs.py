"""Some 280 odd inputs: each is read as it is meant, counts as missing and is counted, or is refused in words."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.support.odd_inputs import CASES, outcome_of
from tests.support.turns import but_later

from privopt import Account, SyntheticData
from privopt.tables import TableError
from privopt.tables.table import Table

A_TENTH = list(CASES)[::10]
REFUSED_FILES = [name for name, case in CASES.items() if case.kind == "files" and isinstance(case.right, str)]


@pytest.mark.parametrize("name", but_later(A_TENTH, CASES))
def test_nothing_is_silently_wrong(name: str, tmp_path: Path) -> None:
    outcome = outcome_of(CASES[name], tmp_path)
    assert outcome in ("read", "missing", "refused"), f"{name}: {outcome}"


def test_there_are_25_and_more_of_each_kind() -> None:
    found = Counter(case.kind for case in CASES.values())
    few = {kind: count for kind, count in found.items() if count < 25}
    assert not few
    assert len(CASES) >= 250


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_file_that_is_refused_costs_nothing(name: str, tmp_path: Path) -> None:
    case, account = CASES[name], Account(9.0, 1e-3)
    made = case.made(tmp_path)
    data = SyntheticData(case.schema, epsilon=1.0, delta=1e-6, n=100, account=account)
    for table in (lambda: made, lambda: Table.open(made, case.schema)):
        with pytest.raises(TableError, match=re.escape(str(case.right))):
            data.fit(table())
    assert not account.entries


@pytest.mark.audit
def test_none_of_all_odd_inputs_is_silently_wrong(tmp_path: Path) -> None:
    outcomes = Counter(outcome_of(case, tmp_path).partition(":")[0] for case in CASES.values())
    assert set(outcomes) == {"read", "missing", "refused"}
    assert sum(outcomes.values()) == len(CASES)
