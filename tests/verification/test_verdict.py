"""The verdict on reports: true ones are verified, tampered ones are not, by each number that could be altered."""

import copy
import functools
import json

import numpy as np
import pytest
from tests.support import report_samples as samples

import privopt
from privopt.curator.transcript import Transcript, unanswered
from privopt.ledger.events import EveryUnit, GaussianEvent
from privopt.public import Relation
from privopt.report.page import combined_json
from privopt.report.report import PrivacyReport
from privopt.result import Result
from privopt.status import Status
from privopt.untrusted import parse_json
from privopt.verification.checks import Outcome
from privopt.verification.tree import Malformed
from privopt.verification.verdict import Finding, verdicts_on

MAKERS = {
    "gaussian": (samples.gaussian_report, Finding.PRICED),
    "sampled": (samples.sampled_report, Finding.NOT_PRIVATE),  # it was chosen without privacy
    "by hand": (samples.by_hand_report, Finding.PRICED),
    "adaptive": (samples.adaptive_report, Finding.PRICED),
    "seeded": (samples.seeded_report, Finding.NOT_PRIVATE),
    "off": (samples.off_report, Finding.NOT_PRIVATE),
}


@functools.cache
def text_of(name):
    return MAKERS[name][0]().to_json()


def verdict_on(document):
    return verdicts_on(parse_json(json.dumps(document).encode(), "report"))[0]


@pytest.mark.later("sampled")
@pytest.mark.parametrize("name", MAKERS)
def test_a_true_report_gets_its_verdict(name):
    verdict = verdict_on(json.loads(text_of(name)))
    assert verdict.finding is MAKERS[name][1], verdict.checks
    assert all(check.outcome is Outcome.HOLDS for check in verdict.checks)


def test_the_digest_is_of_the_content_and_not_of_the_layout():
    document = json.loads(text_of("gaussian"))
    turned = dict(reversed(document.items()))
    assert verdict_on(document).digest == verdict_on(turned).digest
    assert verdict_on(document | {"title": "another"}).digest != verdict_on(document).digest


def alter(document, path, change):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = change(document[path[-1]])


HALF = lambda value: value / 2  # noqa: E731
TWICE = lambda value: value * 2  # noqa: E731
TAMPERED = {
    "epsilon": [(("guarantee", "epsilon"), HALF)],
    "epsilon everywhere": [(("guarantee", "epsilon"), HALF), (("plan", "epsilon"), HALF)],
    "delta everywhere": [
        (("guarantee", "delta"), HALF),
        (("plan", "delta"), HALF),
        (("plan", "budget", "delta"), HALF),
    ],
    "fewer steps priced": [(("event", "count"), lambda count: count - 1)],
    "fewer steps priced and planned": [
        (("event", "count"), lambda count: count // 2),
        (("plan", "event", "count"), lambda count: count // 2),
    ],
    "more noise priced": [(("event", "of", "noise_multiplier"), TWICE)],
    "more noise priced, planned and recorded": [
        (("event", "of", "noise_multiplier"), TWICE),
        (("plan", "event", "of", "noise_multiplier"), TWICE),
        (("releases", 0, "events", 0, "event", "noise_multiplier"), TWICE),
        (("guarantee", "epsilon"), HALF),
        (("plan", "epsilon"), HALF),
    ],
    "less noise": [(("releases", 0, "scale"), lambda ends: [end / 2 for end in ends])],
    "smaller sensitivity and noise": [
        (("releases", 0, "scale"), lambda ends: [end / 3 for end in ends]),
        (("releases", 0, "sensitivity"), lambda ends: [end / 3 for end in ends]),
    ],
    "a larger n": [(("guarantee", "n"), TWICE)],
    "another relation": [(("guarantee", "relation"), lambda _: "add-or-remove-one")],
    "another unit": [(("guarantee", "unit"), lambda _: "user")],
    "over budget": [(("plan", "budget", "epsilon"), HALF)],
    "a guarantee denied": [(("guarantee", "holds"), lambda _: False)],
    "a seed hidden": [(("guarantee", "seeded"), lambda _: True)],
    "a worse guess": [(("guarantee", "best_guess"), lambda _: 0.501)],
    "a point of the curve": [(("curve", 40, "epsilon"), lambda value: value * 0.999)],
}


@pytest.mark.parametrize("name", TAMPERED)
def test_an_altered_number_is_noticed(name):
    document = json.loads(text_of("gaussian"))
    for path, change in TAMPERED[name]:
        alter(document, path, change)
    verdict = verdict_on(document)
    assert verdict.finding is Finding.REFUTED, verdict.checks


def test_an_altered_rate_or_claim_of_a_sampled_run_is_noticed():
    document = json.loads(text_of("sampled"))
    bold = copy.deepcopy(document)
    bold["guarantee"]["epsilon"] = bold["plan"]["epsilon"] = 2.0
    assert verdict_on(bold).finding is Finding.REFUTED
    for part in ("event", "plan"):
        event = document[part]["event"] if part == "plan" else document["event"]
        event["of"][0]["of"]["sampling"]["rate"] = 0.01
    assert verdict_on(document).finding is Finding.REFUTED


def test_several_runs_get_a_verdict_each_and_one_together():
    runs = [samples.gaussian_report(0.5), samples.gaussian_report(1.0)]
    document = json.loads(combined_json(runs, "two"))
    verdicts = verdicts_on(parse_json(json.dumps(document).encode(), "report"))
    assert [verdict.finding for verdict in verdicts] == [Finding.PRICED] * 3
    document["joint_price"]["epsilon"] = 1.0
    assert verdicts_on(document)[-1].finding is Finding.REFUTED


def every_place(value, path=()):
    """The paths to all members of a document that a verdict looks at."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(member, dict | list):
            yield from every_place(member, (*path, key))


LOOKED_AT = ("format", "format_version", "guarantee", "event", "releases", "plan", "curve", "title")
ABSURD = [None, "text", -1, 1e308, 10**39, [], {}, [[]], True, "infinity"]


@pytest.mark.parametrize(("name", "every"), [("gaussian", 1), ("sampled", 7)])
def test_absurd_values_are_refused_or_refuted_and_never_crash(name, every):
    whole = json.loads(text_of(name))
    whole["curve"] = whole["curve"][:2]
    for group in whole["releases"]:
        group["schedule"] = []
    document = {key: whole[key] for key in LOOKED_AT} | {"format_version": 1}  # of which parts may be missing
    document["plan"] = {
        key: document["plan"][key]
        for key in (
            "event",
            "budget",
            "public",
            "epsilon",
            "delta",
            "relation",
            "unit",
            "n",
            "settings",
            "d",
            "releases",
            "adaptive",
        )
    }
    places = list(every_place(document))
    for index, path in list(enumerate(places))[::every]:
        altered = copy.deepcopy(document)
        try:
            alter(altered, path, lambda _, k=index: ABSURD[k % len(ABSURD)])
            verdict = verdict_on(altered)
        except Malformed:
            continue
        assert isinstance(verdict.finding, Finding)


@pytest.mark.parametrize(
    "missing", ["guarantee", "event", "releases", "curve", "title", "format", "format_version"]
)
def test_a_missing_part_is_refused_by_name(missing):
    document = json.loads(text_of("gaussian"))
    del document[missing]
    with pytest.raises(Malformed, match=missing):
        verdict_on(document)


def test_a_newer_format_is_refused():
    document = json.loads(text_of("gaussian")) | {"format_version": 99}
    with pytest.raises(Malformed, match="version 99"):
        verdict_on(document)


def test_a_best_guess_from_a_point_that_nobody_priced_is_not_verified():
    document = json.loads(text_of("sampled"))
    guarantee = document["guarantee"]
    guarantee["holds"], document["selection"] = True, None
    document["curve"] = [{"delta": guarantee["delta"], "epsilon": 0.0}]
    guarantee["best_guess"] = 0.5 + 1e-5
    verdict = verdict_on(document)
    assert verdict.finding is Finding.INCOMPLETE
    assert [check.subject for check in verdict.checks if check.outcome is Outcome.UNCHECKED] == ["guess"]


def test_the_point_of_the_best_guess_is_priced_however_many_points_there_are():
    document = json.loads(text_of("gaussian"))
    guarantee = document["guarantee"]
    point = {"delta": guarantee["delta"], "epsilon": guarantee["epsilon"]}
    document["curve"] = [point] * 201 + [
        {"delta": guarantee["delta"], "epsilon": 0.0}
    ]  # every other one is priced
    guarantee["best_guess"] = 0.5 + 1e-5
    verdict = verdict_on(document)
    assert verdict.finding is Finding.REFUTED
    assert [check.subject for check in verdict.checks if check.outcome is Outcome.FAILS] == ["curve"]


def test_a_release_without_noise_under_a_filter_is_noticed():
    document = json.loads(text_of("adaptive"))
    document["releases"][0]["events"][0]["event"] = {"event": "NonPrivateEvent"}
    assert verdict_on(document).finding is Finding.REFUTED


def test_a_filter_that_two_events_paid_for_is_noticed():
    document = json.loads(text_of("adaptive"))
    other = copy.deepcopy(document["releases"][0])
    other["filter"]["event"] = {"event": "GaussianEvent", "noise_multiplier": 1e-3}
    document["releases"].insert(0, other)
    assert verdict_on(document).finding is Finding.REFUTED


def test_all_runs_together_are_not_private_where_one_is_seeded_and_have_no_price_for_two_units():
    document = json.loads(combined_json([samples.gaussian_report(0.5), samples.gaussian_report(1.0)], "two"))
    units = copy.deepcopy(document)
    document["runs"][0]["guarantee"] |= {"seeded": True, "holds": False}
    assert verdicts_on(document)[-1].finding is Finding.NOT_PRIVATE
    units["runs"][0]["guarantee"]["unit"] = "user"
    assert verdicts_on(units)[-1].finding is Finding.REFUTED


def test_a_report_with_releases_whose_noise_was_never_stated_is_not_confirmed():
    """They were interrupted, says the report; that nothing came of them is not seen."""
    transcript = Transcript(Relation.REPLACE_ONE)
    for name, event in (("Gradient", GaussianEvent(60.0)), ("Moment", GaussianEvent(50.0))):
        transcript.append(samples.release(name, event, 1, 1e-2, multiplier=event.noise_multiplier))
        transcript.append(unanswered(name, "a mechanism", event, EveryUnit(), 2, lineage=(), under=None))
    transcript.append(unanswered("Hessian", "a mechanism", event, EveryUnit(), 1, lineage=(), under=None))
    document = json.loads(PrivacyReport.of(Result({}, Status.FINISHED, transcript)).to_json())
    assert [group["count"] for group in document["releases"]] == [3, 3, 1]
    assert document["releases"][2]["sensitivity"] is None
    verdict = verdict_on(document)
    assert verdict.finding is Finding.INCOMPLETE
    assert [check.sentence for check in verdict.checks if check.outcome is Outcome.UNCHECKED] == [
        "the scale or the sensitivity is not stated: Hessian"
    ]


def test_a_sensitivity_that_the_losses_slope_bounds_is_not_refuted():
    """The ramp's slope is at most 1/2, so a gradient of rows within R moves by R at most, however large the clip is."""
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, (300, 3))
    model = privopt.RobustClassifier(
        epsilon=1.0,
        delta=1e-6,
        bounds=(-1, 1),
        classes=[0, 1],
        solver=privopt.solvers.GradientDescent(clip=8.0, steps=3),
    ).fit(features, (features[:, 0] > 0).astype(int))
    verdict = verdict_on(json.loads(model.privacy_.to_json()))
    (bound,) = (check for check in verdict.checks if check.subject == "bounds")
    assert bound.outcome is Outcome.UNCHECKED
    assert "0.125 of twice the clip" in bound.sentence
    document = json.loads(model.privacy_.to_json())
    document["plan"]["public"]["row_bound"] = 100.0
    (bound,) = (check for check in verdict_on(document).checks if check.subject == "bounds")
    assert bound.outcome is Outcome.FAILS
