"""Every leaf of real reports altered: what is then still priced is harmless, or listed as not checked."""

import copy
import functools
import json
import re

import numpy as np
import pytest
from tests.support import report_samples as samples

from privopt import LogisticRegression
from privopt.replays.check import replayed
from privopt.untrusted import UntrustedFile, parse_json
from privopt.verification.checks import Outcome
from privopt.verification.verdict import Finding, verdicts_on

REMOVED = object()

# What a verdict does not look at without a replay: `docs/verify.md` lists them under these headings.
NOT_CHECKED = {
    "words": r"privopt|title|status|guarantee\.noise|summary|not_covered|utility_assumptions|declared|notices|metrics"
    r"|selection|account|pictures",
    "names and marks of releases": r"releases\.#\.(name|noise|exact|schedule)",
    "settings and forecast": r"plan\.(solver|settings|passes|adaptive|memory_bytes|seconds|releases|predicted_\w+"
    r"|prediction|bound|indicators|notices|reason|measure|evaluations|black_box)|findings|divided_rows|typical_length",
    "sizes of rows": r"plan\.public\.(row_bound|entry_bound|records_per_unit|weighting|typical_records|sparse|outputs"
    r"|drawn|levels)",
    "the model's numbers": r"model",
    "the recipe": r"replay",
}
# What claims less, or is told apart by nothing that a guarantee rests on; each with its reason.
HARMLESS = {
    r"format_version half": "version 1 is read with members that it need not have",
    r"guarantee\.(epsilon|delta) twice": "of a run without a plan: a weaker claim",
    r"curve\.#\.epsilon twice": "a larger epsilon is a weaker claim",
    r"curve\.#\.delta twice": "a larger delta is a weaker claim",
    r"plan\.budget\.epsilon twice": "a run may cost less than its budget",
    r"releases\.#\.filter\.number (half|twice)": "the number only tells filters apart",
    r"releases\.#\.sampling\.rate .*": "where what was paid for says the same rate",
}


def leaves(value, path=()):
    """The paths to all members that hold nothing further."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(member, dict | list) and member:
            yield from leaves(member, (*path, key))
        else:
            yield (*path, key)


def changes(value):
    """Other values in the place of one, by name."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int | float):
        yield "half", value // 2 if isinstance(value, int) else value / 2
        yield "twice", value * 2
    elif isinstance(value, str):
        yield "text", f"{value}x"
    yield "type", 7 if isinstance(value, str) else "a text"
    yield "removed", REMOVED


def altered(document, path, change):
    other = copy.deepcopy(document)
    part = functools.reduce(lambda found, key: found[key], path[:-1], other)
    if change is REMOVED:
        del part[path[-1]]
    else:
        part[path[-1]] = change
    return other


def survivors(document, every, offset):
    """The altered leaves that are priced all the same, as "path kind"."""
    places = [
        (path, *change)
        for path in leaves(document)
        for change in changes(functools.reduce(lambda found, key: found[key], path, document))
    ]
    for path, kind, change in places[offset::every]:
        other = altered(document, path, change)
        if other == document:
            continue
        try:
            finding = verdicts_on(parse_json(json.dumps(other).encode(), "report"))[0].finding
        except UntrustedFile:
            continue
        if finding is Finding.PRICED:
            yield f"{'.'.join('#' if isinstance(key, int) else key for key in path)} {kind}"


def is_expected(survivor):
    place, _, kind = survivor.rpartition(" ")
    if kind not in ("removed", "type") or place.startswith(
        ("plan.settings", "metrics", "findings", "replay")
    ):
        listed = any(re.match(rf"({pattern})(\.| |$)", survivor) for pattern in NOT_CHECKED.values())
        return listed or any(re.fullmatch(pattern, survivor) for pattern in HARMLESS)
    # An optional member may be missing, an item of a list too, and null may stand where a number can.
    listed = any(re.match(rf"({pattern})(\.| |$|_)", survivor) for pattern in NOT_CHECKED.values())
    return kind == "removed" and (listed or survivor.split()[0] in OPTIONAL)


OPTIONAL = {"releases.#.blocks", "releases.#.filter.depth", "releases.#.filter"}


def thinned(make):
    """A report with a few points of its curve: the places are alike."""
    document = json.loads(make().to_json())
    points = document["curve"]
    document["curve"] = points[:: max(1, len(points) // 4)]
    if points[-1] not in document["curve"]:
        document["curve"].append(points[-1])
    return document


REPORTS = {
    "gaussian": (samples.gaussian_report, 23),
    "by hand": (samples.by_hand_report, 31),
    "adaptive": (samples.adaptive_report, 331),
}


@pytest.mark.later("adaptive")
@pytest.mark.parametrize("name", REPORTS)
def test_an_altered_leaf_is_refused_refuted_or_listed(name):
    make, every = REPORTS[name]
    document = thinned(make)
    assert not {one for one in survivors(document, every, 5) if not is_expected(one)}


@pytest.mark.audit
@pytest.mark.parametrize("name", [*REPORTS, "sampled"])
def test_every_altered_leaf_is_refused_refuted_or_listed(name):
    make, every = (samples.sampled_report, 3) if name == "sampled" else (REPORTS[name][0], 1)
    assert not {one for one in survivors(thinned(make), every, 0) if not is_expected(one)}


# What a replay does not bring out again: what the caller said, who paid, and names.
BESIDE = r"(privopt|format|format_version|title|declared|selection|metrics|account|replay)(\.| |$)"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 3))
    model = LogisticRegression(epsilon=1, delta=1e-6, bounds=(-1, 1), classes=[0, 1]).fit(
        rows, rows[:, 0] > 0
    )
    return model.privacy_.save(tmp_path_factory.mktemp("kept") / "report.json", keep_releases=True)


def replay_survivors(path, every, offset):
    """The altered leaves with which a replay still says that the report follows from its releases."""
    document = json.loads(path.read_text())
    places = [
        (place, *change)
        for place in leaves(document)
        for change in changes(functools.reduce(lambda found, key: found[key], place, document))
    ]
    for place, kind, change in places[offset::every]:
        other = altered(document, place, change)
        found = replayed(other, path.with_name("report.releases.safetensors"))
        if found is not None and found.outcome is Outcome.HOLDS and other != document:
            yield f"{'.'.join('#' if isinstance(key, int) else key for key in place)} {kind}"


def not_brought_out(kept, every, offset):
    found = set(replay_survivors(kept, every, offset))
    return {one for one in found if not re.match(BESIDE, one)}


def test_what_a_replay_does_not_bring_out_again_is_listed(kept):
    assert not not_brought_out(kept, 61, 7)


@pytest.mark.audit
def test_of_every_leaf_what_a_replay_does_not_bring_out_again_is_listed(kept):
    assert not not_brought_out(kept, 1, 0)
