"""Every golden line is as it was kept; CONTRIBUTING.md says when one may change. The checker is tried here as well."""

import copy
import json
from typing import Any

import pytest
from tests.golden import environment, runs
from tests.golden.comparing import PARTS, differences

LINE: dict[str, Any] = {
    "values": {"epsilon": 1.0, "releases": 3, "settings": [0.25, 3], "sensitivities": "0" * 16},
    "words": {"settings": ["clip", "steps"], "plan": ["effort: 3 releases", "bound: no bound"]},
}


@pytest.fixture(
    scope="module",
    params=runs.SHARES.items(),
    ids=lambda each: each[0],
)
def made(request: pytest.FixtureRequest) -> runs.Made:
    """The runs of a share, as today's code makes them."""
    return runs.make(request.param[1])


@pytest.mark.later("solvers, the other half", "plans, the other half")
def test_golden_lines_are_unchanged(made: runs.Made) -> None:
    old = {
        part: {
            name: line
            for name, line in runs.kept(part).items()
            if not runs.is_of(name, made.others.get(part, ()))
        }
        for part in made.lines
    }
    found, reason = runs.compared(made.lines, old)
    if found:
        pytest.fail(
            f"{len(found)} golden lines differ; see `python -m tests.golden`:\n" + "\n".join(found),
            pytrace=False,
        )
    if reason is not None:
        pytest.skip(f"words and prices are as kept; values may differ in their last bits: {reason}")


# ---- the checker -----------------------------------------------------------------------------------------------
def changed(part: str, field: str, value: Any) -> list[str]:
    """What is said of a line of which one field changed."""
    new = copy.deepcopy(LINE)
    new[part][field] = value
    return differences({"a run": LINE}, {"a run": new})


def test_what_is_unchanged_is_not_mentioned() -> None:
    assert differences({"a run": LINE}, {"a run": json.loads(json.dumps(LINE))}) == []


def test_a_changed_word_is_a_change_of_words_alone() -> None:
    (said,) = changed("words", "plan", ["effort: 3 releases", "bound: none is known"])
    assert said == "a run: words: plan [1] 'bound: no bound' -> 'bound: none is known'"


def test_a_changed_sensitivity_is_a_change_of_values_alone() -> None:
    (said,) = changed("values", "sensitivities", "1" * 16)
    assert said == f"a run: values: sensitivities '{'0' * 16}' -> '{'1' * 16}'"


def test_the_numbers_of_settings_are_values_and_their_names_are_words() -> None:
    (number,), (name,) = (
        changed("values", "settings", [0.5, 3]),
        changed("words", "settings", ["bound", "steps"]),
    )
    assert number == "a run: values: settings [0] 0.25 -> 0.5"
    assert name == "a run: words: settings [0] 'clip' -> 'bound'"


def test_runs_that_come_and_go_are_named() -> None:
    assert differences({"old": LINE}, {"new": LINE}) == [
        "old: no such run any more",
        "new: a new run, not yet written",
    ]


def test_on_another_machine_prices_count_to_six_digits_and_other_values_not_at_all() -> None:
    new = copy.deepcopy(LINE)
    new["values"] |= {"epsilon": 1.0 + 1e-9, "sensitivities": "1" * 16, "settings": [0.3, 3]}
    assert differences({"a run": LINE}, {"a run": new}, exact=False) == []
    new["values"] |= {"epsilon": 1.001, "releases": 4}
    (said,) = differences({"a run": LINE}, {"a run": new}, exact=False)
    assert said == "a run: values: epsilon 1.0 -> 1.001; releases 3 -> 4"


def test_every_run_is_in_one_share() -> None:
    shared: dict[str, list[tuple[int, int]]] = {}
    for parts in runs.SHARES.values():
        for part, first, step in parts:
            shared.setdefault(part, []).append((first, step))
    assert set(shared) == set(runs.PARTS)
    assert all(
        sorted(shared[part]) == [(k, len(shared[part])) for k in range(len(shared[part]))] for part in shared
    )


def test_kept_lines_have_two_parts_and_are_small() -> None:
    assert sum(path.stat().st_size for path in runs.KEPT.iterdir()) < 10**6
    for part in runs.PARTS:
        lines = runs.kept(part)
        assert list(lines) == sorted(lines)
        assert all(set(line) == set(PARTS) for line in lines.values())


def test_child_processes_inherit_neither_options_nor_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRIVOPT_ACCOUNT", "XLA_FLAGS", "OPENBLAS_CORETYPE", "LANG"):
        monkeypatch.setenv(name, "/somebody/else")
    assert "/somebody/else" not in environment.pinned().values()
    assert "--xla_cpu_max_isa=AVX" in environment.pinned()["XLA_FLAGS"].split()
