"""Releases are held against what was paid for, unit by unit, and reports that take long are answered soon."""

import copy
import json

import pytest
from tests.support import report_samples as samples

from privopt.curator.transcript import Transcript
from privopt.data.blocks import Block
from privopt.ledger.events import GaussianEvent
from privopt.public import Relation
from privopt.report.report import PrivacyReport
from privopt.result import Result
from privopt.status import Status
from privopt.untrusted import parse_json
from privopt.verification import tree
from privopt.verification.checks import Outcome, priced
from privopt.verification.tree import Fields, Malformed
from privopt.verification.verdict import Finding, verdicts_on

NOISE = GaussianEvent(60.0)


def verdict_on(document):
    return verdicts_on(parse_json(json.dumps(document).encode(), "report"))[0]


@pytest.fixture
def on_blocks():
    """A report of ten releases on each of three blocks, and one on all units."""
    transcript = Transcript(Relation.REPLACE_ONE)
    for index in range(3):
        line = samples.release("Gradient", NOISE, 10, 1e-2, multiplier=60.0)
        object.__setattr__(line, "lineage", (Block(1, index, 3),))
        transcript.append(line)
    transcript.append(samples.release("Gradient", NOISE, 1, 1e-2, multiplier=60.0))
    return json.loads(PrivacyReport.of(Result({}, Status.FINISHED, transcript)).to_json())


def outcome(verdict, subject="releases"):
    return next(check.outcome for check in verdict.checks if check.subject == subject)


def test_releases_on_blocks_are_paid_for_block_by_block(on_blocks):
    assert len(on_blocks["releases"][0]["blocks"]) == 4
    verdict = verdict_on(on_blocks)
    assert verdict.finding is Finding.PRICED, verdict.checks
    assert any("at most 11," in check.sentence for check in verdict.checks)
    assert PrivacyReport.from_dict(on_blocks).to_dict()["releases"] == on_blocks["releases"]


def test_more_on_one_block_than_was_paid_for_is_refuted(on_blocks):
    for part in on_blocks["releases"][0]["blocks"][:3]:
        part["of"][0][1] = 0
    assert outcome(verdict_on(on_blocks)) is Outcome.FAILS


def test_releases_on_all_units_are_not_paid_for_by_all_blocks_together(on_blocks):
    on_blocks["releases"][0]["blocks"] = []
    assert verdict_on(on_blocks).finding is Finding.REFUTED
    first = copy.deepcopy(on_blocks)
    del first["releases"][0]["blocks"]
    first["format_version"] = 1
    assert verdict_on(first).finding is Finding.INCOMPLETE


@pytest.mark.parametrize("path", [[[1, 3, 3]], [[1, 0]], [[1, -1, 3]], ["a"], [[1, 0, 4]]])
def test_a_block_that_is_none_is_refused(on_blocks, path):
    on_blocks["releases"][0]["blocks"][1]["of"] = path
    with pytest.raises(Malformed, match=r"name|what a report has|numbers of blocks"):
        verdict_on(on_blocks)


def test_blocks_that_do_not_add_up_are_refused(on_blocks):
    on_blocks["releases"][0]["blocks"][0]["count"] = 9
    with pytest.raises(Malformed, match="do not hold its events"):
        verdict_on(on_blocks)


@pytest.mark.parametrize("used", [0.5, 0.0, None])
def test_the_use_of_a_filter_is_computed_and_not_believed(used):
    document = json.loads(samples.adaptive_report().to_json())
    document["releases"][0]["filter"]["used"] = used
    assert outcome(verdict_on(document), "filter") is Outcome.FAILS


def test_more_under_a_filter_than_was_paid_for_is_refuted():
    document = json.loads(samples.adaptive_report().to_json())
    group = document["releases"][0]
    group["events"][0]["count"] += 10**4
    group["count"] += 10**4
    assert outcome(verdict_on(document), "filter") is Outcome.FAILS


def test_a_report_that_leaves_out_releases_under_a_filter_is_not_verified():
    document = json.loads(samples.adaptive_report().to_json())
    document["releases"][0]["events"] = document["releases"][0]["events"][:2]
    verdict = verdict_on(document)
    assert outcome(verdict, "filter") is Outcome.UNCHECKED
    assert verdict.finding is not Finding.VERIFIED


def test_a_tree_is_read_once_and_one_that_is_too_large_is_refused(monkeypatch):
    gaussians = [{"event": "GaussianEvent", "noise_multiplier": 50.0 + i} for i in range(300)]
    blocks = [{"event": "Parallel", "of": pair} for pair in zip(gaussians[::2], gaussians[1::2], strict=True)]
    event = Fields({"event": "Sequence", "of": [{**one, "of": list(one["of"])} for one in blocks]}, "event")
    calls = []
    reduced = tree._reduced
    monkeypatch.setattr(tree, "_reduced", lambda *given: calls.append(given[0]) or reduced(*given))
    priced("price", event, "replace-one", 1.0, 1e-6)
    assert sum(one is event for one in calls) == 1
    many = Fields({"event": "Sequence", "of": [event.values] * 40}, "event")
    with pytest.raises(Malformed, match="beyond what is read"):
        tree.ways_through(many)


def test_a_verdict_does_not_take_more_than_some_work(monkeypatch):
    monkeypatch.setattr(tree, "MOST_POINTS", 8_000)
    kinds = [
        {
            "event": "Repeated",
            "count": 10,
            "of": {
                "event": "SampledEvent",
                "sampling": {"kind": "poisson", "rate": 1e-4 + i * 1e-6},
                "of": {"event": "GaussianEvent", "noise_multiplier": 5.0 + i},
            },
        }
        for i in range(3)
    ]
    with tree.limited_work():
        found = priced(
            "price", Fields({"event": "Sequence", "of": kinds}, "e"), "add-or-remove-one", 1.0, 1e-6
        )
    assert found.outcome is Outcome.UNCHECKED
    assert "too long" in found.sentence
