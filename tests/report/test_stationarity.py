"""What a report says of a certificate of stationarity, and of a loss that is known by its values only."""

import dataclasses

import numpy as np
import pytest
from tests.support import report_samples as samples

from privopt.planning.goldstein_certificate import Certified, free_findings, released_findings
from privopt.planning.plan import Finding, Plan
from privopt.report import forms, words
from privopt.report.report import PrivacyReport

ABOUT = Certified(point=np.zeros(2), points=np.array([[0.3, 0.4], [0.0, 0.1]]), clip=0.7)
DECLARED = ("Values of the black box 'policy' lie between 0 and 12.",)


def in_words(report):
    return forms.sentence("page", "certificate", report.facts)


def technical(report):
    return dict(forms.entries("page", "technical", report.facts))


@pytest.fixture(scope="module")
def certified():
    """A run with a released certificate of a black box."""
    result = samples.gaussian_result(1.0)
    plan = dataclasses.replace(result.plan, black_box=DECLARED)
    found = released_findings(ABOUT, [0.03, -0.04], 0.002)
    return PrivacyReport.of(result._replace(plan=plan, findings=found))


def test_the_certificate_is_explained_with_its_numbers_and_its_limits(certified):
    bound = words.pretty(certified.findings["certificate"].value, 3)
    said = in_words(certified)
    assert f"faster than {bound} for each unit of length everywhere within 0.5 of the result" in said
    assert "does not say that the loss is low" in said
    assert said in certified.to_dict()["summary"]
    assert "no single direction improves" in certified.to_html()
    assert technical(certified)["Certificate"].startswith(f"(0.5, {bound})-Goldstein stationarity: ")


def test_a_terminal_shows_the_whole_certificate_before_other_findings(certified):
    first = {"clip": Finding(0.7, "the clip"), "other": Finding(1.0, "another number")}
    report = dataclasses.replace(certified, findings={**first, **certified.findings})
    (shown, *_) = [text for label, text in report.rows() if label == "shows"]
    assert shown.startswith("certificate 0.0")
    assert shown.endswith(certified.findings["certificate"].meaning)


def test_a_terminal_says_what_is_not_protected_of_a_black_box(certified):
    own = "the loss function itself"
    assert own in dict(certified.rows())["not covered"]
    assert own not in dict(samples.gaussian_report().rows())["not covered"]


def test_an_estimate_is_not_said_to_show_anything():
    about = dataclasses.replace(ABOUT, oracle="values")
    result = samples.gaussian_result(1.0)
    report = PrivacyReport.of(result._replace(findings=free_findings(about, np.ones((2, 2)), 0.1)))
    assert "suggests, without proof," in in_words(report)
    assert "sampling error that is not covered" in technical(report)["Certificate"]


def test_with_a_penalty_it_speaks_of_the_objective():
    about = dataclasses.replace(ABOUT, penalised=True)
    result = samples.gaussian_result(1.0)
    report = PrivacyReport.of(result._replace(findings=free_findings(about, np.ones((2, 2)), 0.1)))
    assert "improves the objective faster than" in in_words(report)


def test_of_a_black_box_lengths_are_in_its_scales():
    about = dataclasses.replace(ABOUT, scaled=True, oracle="values")
    result = samples.gaussian_result(1.0)
    report = PrivacyReport.of(result._replace(findings=free_findings(about, np.ones((2, 2)), 0.1)))
    assert "of the result (lengths in units of the parameters' `scale`)" in in_words(report)


def test_a_run_without_a_certificate_says_nothing_of_it():
    report = samples.gaussian_report()
    assert in_words(report) == ""
    assert len(report.to_dict()["summary"]) == 3
    assert "no single direction" not in report.to_html()
    assert "Certificate" not in technical(report)


def test_of_a_black_box_stands_what_was_declared_and_what_is_not_protected(certified):
    assert certified.declared[0] == DECLARED[0]
    limits = {point["title"]: point["text"] for point in certified.to_dict()["not_covered"]}
    assert "How long it takes for a record" in limits["The loss function itself"]
    assert "the user's own" in limits["The loss function itself"]
    assert "The loss function itself" not in str(samples.gaussian_report().to_dict()["not_covered"])
    again = Plan.from_dict(certified.plan.to_dict())
    assert again.black_box == DECLARED
    assert "declared   Values of the black box" in str(again)
    assert PrivacyReport.from_dict(certified.to_dict()).to_dict() == certified.to_dict()
