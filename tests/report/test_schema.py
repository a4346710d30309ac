"""Reports as JSON are what `docs/report.schema.json` says, in the version that they carry."""

import json

import pytest
from tests.contracts.cases import CASE_PAIRS, as_units, toy_arrays
from tests.contracts.test_solvers import run as solve
from tests.support import report_samples as samples
from tests.support.report_schema import published, require_valid

from privopt.curator.local import LocalCurator
from privopt.ledger.event import KINDS
from privopt.report.facts import FORMAT_VERSION, READ_VERSIONS
from privopt.report.page import combined_json
from privopt.report.report import PrivacyReport
from privopt.untrusted import parse_json
from privopt.verification.tree import LEAVES
from privopt.verification.verdict import FORMATS, REPORT, Finding, verdicts_on

MAKERS = [
    samples.gaussian_report,
    samples.sampled_report,
    samples.seeded_report,
    samples.off_report,
    samples.by_hand_report,
    samples.adaptive_report,
]


@pytest.mark.later("adaptive_report", "gaussian_report")
@pytest.mark.parametrize("make", MAKERS)
def test_a_report_is_valid(make):
    require_valid(json.loads(make().to_json()))


def test_several_reports_in_one_file_are_valid():
    runs = [samples.gaussian_report(), samples.off_report()]
    require_valid(json.loads(combined_json(runs, "two", samples.SUMMARY)))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format_version",), 3),
        (("guarantee", "relation"), "none"),
        (("guarantee", "epsilon"), "huge"),
        (("event", "count"), -1),
        (("event", "of", "noise_multiplier"), 0),
        (("surprise",), 1),
    ],
)
def test_what_is_no_report_is_invalid(place, value):
    document = json.loads(samples.gaussian_report().to_json())
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    assert not published().is_valid(document)


def test_schema_report_and_verification_know_the_same_version_and_events():
    definitions = published().schema["$defs"]
    kinds = {event["title"] for event in definitions["event"]["oneOf"]}
    named = set(KINDS)
    assert kinds == named
    assert set(LEAVES) == named - {"SampledEvent", "Repeated", "Sequence", "Parallel"}
    for kind, formats in (("report", "privopt-report"), ("reports", "privopt-reports")):
        assert definitions[kind]["properties"]["format_version"] == {"enum": list(READ_VERSIONS)}
        assert FORMATS[formats] == READ_VERSIONS
        assert READ_VERSIONS[-1] == FORMAT_VERSION


# The start of a stream, and passes whose noise enters inside of them.
STATE_NO_NOISE = ("PrefixSum.", "PassAverage", "NoisyPass")


@pytest.mark.audit
@pytest.mark.parametrize("pair", CASE_PAIRS)
def test_the_report_of_every_solver_is_valid_and_confirmed(pair):
    case, relation = pair
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    seed = 3 if case.by_user else None
    _, _, result = solve(case, relation, LocalCurator, units, seed=seed)
    text = PrivacyReport.of(result, delta=1e-5).to_json()
    require_valid(json.loads(text))
    (verdict,) = verdicts_on(parse_json(text.encode(), "the report"))
    if result.transcript.seeded:
        wanted = {Finding.NOT_PRIVATE}
    elif any(group["name"].startswith(STATE_NO_NOISE) for group in json.loads(text)["releases"]):
        wanted = {Finding.INCOMPLETE}  # and nothing was replayed here
    else:
        wanted = {Finding.PRICED}
    assert verdict.finding in wanted, verdict.checks


def shape_of(schema):
    """The types in a schema, as `verification.verdict` writes them."""
    if "$ref" in schema:
        return {"number": "number", "event": "any"}[schema["$ref"].split("/")[-1]]
    if "const" in schema or "enum" in schema:
        value = schema["const"] if "const" in schema else schema["enum"][0]
        return "text" if isinstance(value, str) else "whole"
    if "anyOf" in schema or isinstance(schema.get("type"), list):
        parts = schema.get("anyOf") or [{"type": kind} for kind in schema["type"]]
        shapes = [shape_of(part) for part in parts]
        return tuple(sorted(shapes, key=lambda one: one != "null"))
    if schema.get("type") == "object":
        required, members = set(schema.get("required", [])), schema.get("properties", {})
        found = {name if name in required else f"{name}?": shape_of(part) for name, part in members.items()}
        rest = schema.get("additionalProperties", {})
        return found if rest is False else {**found, "*": shape_of(rest)}
    if schema.get("type") == "array":
        parts = schema.get("prefixItems", [])
        return [shape_of(schema["items"])] if "items" in schema else ["number" if parts else "any"]
    names = {"string": "text", "number": "number", "integer": "whole", "boolean": "truth", "null": "null"}
    return names.get(schema.get("type"), "any")


def test_verification_asks_for_the_members_and_types_of_the_schema():
    assert shape_of(published().schema["$defs"]["report"]) == REPORT
