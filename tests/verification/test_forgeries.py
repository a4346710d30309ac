"""Every field that a run produced, in model, report and releases, forged alone and in pairs: none is verified.

The digests of a forged file are made to fit, and what stands in two files is forged in both, so that no digest gives it
away but one: arguments of a recipe that have no effect on its run are told by the file of the releases alone.
"""

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import random
import re

import numpy as np
import pytest
import safetensors.numpy
from tests.support.saved_models import save_small_model

from privopt import Budget, Problem, Units, losses, minimize, regularisers
from privopt.replays import check as replays
from privopt.report.kept import INDEX, digest_of_index
from privopt.untrusted import UntrustedFile, parse_json
from privopt.verification import files
from privopt.verification.checks import Outcome
from privopt.verification.files import Numbers, verify
from privopt.verification.verdict import Finding

PAIRS = 2_000
MOST_REMEMBERED = 1_000  # plans, and runs
REMOVED = object()
DIGESTS = ("sha256", "arrays_sha256")
# What the caller declared and no run produced: a verdict prints it as "declared, not checked".
DECLARED = re.compile(
    r"report/(title|metrics|account)(/|$)"
    r"|model/(document/(target|encoder)|document/versions/(python|jax|numpy|scikit-learn))(/|$)"
)


@dataclasses.dataclass
class Case:
    """The files of one run: its report, the released values, and of a model directory the rest."""

    report: dict
    releases: dict
    marks: dict  # of the file of releases: the digest of what the report says of them
    model: dict | None = None  # `model.json` without its report and its plan
    summary: dict | None = None
    arrays: dict | None = None

    @classmethod
    def of_report(cls, path):
        packed = path.with_name(f"{path.stem}.{files.RELEASES_FILE}").read_bytes()
        report = parse_json(path.read_bytes(), "report")
        return cls(report, safetensors.numpy.load(packed), marks_of(report))

    @classmethod
    def of_model(cls, folder):
        model = parse_json((folder / files.DOCUMENT_FILE).read_bytes(), "model")
        beside = parse_json((folder / files.REPORT_FILE).read_bytes(), "report")
        report = files._plain(model["document"].pop("report"))
        assert model["document"].pop("plan") == report["plan"]
        releases = safetensors.numpy.load((folder / files.RELEASES_FILE).read_bytes())
        arrays = safetensors.numpy.load((folder / files.ARRAYS_FILE).read_bytes())
        return cls(report, releases, marks_of(report), model, beside["model"], arrays)

    def forgeries(self):
        """Every change of one field: (part, path, value)."""
        for part in ("report", "marks", "model", "summary"):
            document = getattr(self, part)
            for path in () if document is None else leaves(document):
                by_hand = (
                    self.model is None and path[0] == "declared"
                )  # of `minimize`, whose replay has no start
                if not by_hand and not DECLARED.match("/".join(map(str, (part, *path)))):
                    for value in forged(at(document, path)):
                        yield part, path, value
        for part in ("releases", "arrays"):
            for name, values in (getattr(self, part) or {}).items():
                for place in np.ndindex(values.shape):
                    # Upwards: two that cancel lead to the same model, which then follows from them.
                    yield part, (name, place), float(values[place]) + 0.01 * abs(float(values[place])) + 1e-3

    def with_forged(self, *changes):
        other = dataclasses.replace(self)
        for of_digests in (False, True):
            for part, path, value in changes:
                if (path[-1] in DIGESTS) is of_digests:
                    setattr(other, part, altered(getattr(other, part), path, value))
            if not of_digests:
                other.make_digests_fit()
        return other

    def make_digests_fit(self):
        index = self.report.get("replay")
        if isinstance(index, dict):
            digest = hashlib.sha256(self.packed()).hexdigest()
            self.report = self.report | {"replay": index | {"sha256": digest}}
        if self.model is not None:
            digest = hashlib.sha256(safetensors.numpy.save(self.arrays)).hexdigest()
            self.model = self.model | {"arrays_sha256": digest}

    def packed(self):
        return safetensors.numpy.save(self.releases, self.marks)

    def replayed(self):
        """What a replay makes of it: verified is only what holds here."""
        numbers = None
        if self.model is not None:
            document = self.model["document"]
            summary = None if self.summary is REMOVED else self.summary
            numbers = Numbers(self.arrays, document["estimator"], document["versions"], summary)
        return replays.replayed_from(self.report, self.packed(), numbers)

    def verdict(self, folder):
        """The verdict on the files."""
        if self.model is None:
            (folder / "report.json").write_text(json.dumps(self.report))
            (folder / "report.releases.safetensors").write_bytes(self.packed())
            return verify(folder / "report.json", replays.replayed)[0]
        document = self.model["document"] | {"report": self.report, "plan": self.report.get("plan")}
        (folder / files.DOCUMENT_FILE).write_text(json.dumps(self.model | {"document": document}))
        if self.summary is not REMOVED:
            (folder / files.REPORT_FILE).write_text(json.dumps(self.report | {"model": self.summary}))
        (folder / files.ARRAYS_FILE).write_bytes(safetensors.numpy.save(self.arrays))
        (folder / files.RELEASES_FILE).write_bytes(self.packed())
        return verify(folder, replays.replayed)[0]

    def is_verified(self, folder):
        try:
            if self.replayed().outcome is not Outcome.HOLDS:
                return False
        except (KeyError, TypeError, AttributeError):
            pass  # a shape that is refused before a replay
        try:
            return self.verdict(folder).finding is Finding.VERIFIED
        except UntrustedFile:
            return False


def marks_of(report):
    return {INDEX: digest_of_index(report["replay"])}


def leaves(value, path=()):
    """The paths to all members that hold nothing further."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(member, dict | list) and member:
            yield from leaves(member, (*path, key))
        else:
            yield (*path, key)


def at(value, path):
    return functools.reduce(lambda found, key: found[key], path, value)


def forged(value):
    """Other values in the place of one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [100 * value + 100, value + 1]
    if isinstance(value, float):
        return [value / 2 + 1e-3, value * 2 or 1.0]
    if isinstance(value, str):
        return [f"{value}x", REMOVED]
    return [7, "a text", REMOVED]


def altered(part, path, value):
    if isinstance(path[-1], tuple):
        name, place = path
        values = part[name].copy()
        values[place] = value
        return part | {name: values}
    try:
        return replaced(part, path, value)
    except (KeyError, IndexError, TypeError):
        return part  # the other one of the pair took it away


def replaced(whole, path, value):
    """A copy along the path, with another value at its end."""
    other = copy.copy(whole)
    if len(path) > 1:
        other[path[0]] = replaced(whole[path[0]], path[1:], value)
    elif value is REMOVED:
        del other[path[0]]
    else:
        other[path[0]] = value
    return other


class Frozen:
    """A plan or a report whose JSON values are made once."""

    def __init__(self, made):
        self.made, self.values = made, made.to_dict()

    def __getattr__(self, name):
        return getattr(self.made, name)

    def to_dict(self):
        return self.values


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """A recipe is planned once, and run once on the same values."""
    original, planned, runs = replays.rebuilt, {}, {}

    def remember(found, key, make):
        """The last ones that were asked for are kept: all of a hundred thousand pairs would fill memory."""
        if key in found:
            value = found.pop(key)
        else:
            try:
                value = make()
            except Exception as error:
                value = error
        found[key] = value
        if len(found) > MOST_REMEMBERED:
            del found[next(iter(found))]
        if isinstance(value, Exception):
            raise value
        return value

    def planned_once(recipe):
        again = original(recipe)
        return dataclasses.replace(again, plan=Frozen(again.plan))

    def rebuilt(recipe):
        asked = json.dumps(recipe, sort_keys=True)
        again = remember(planned, asked, lambda: planned_once(recipe))

        def run_once(recorded):
            found, numbers = again.run(recorded)
            return Frozen(found), numbers

        def run(recorded):
            lines = tuple((line.name, line.released.shape, line.released.tobytes()) for line in recorded)
            marks = (recorded.seeded, recorded.eager, recorded.exact_noise, recorded.relation)
            return remember(runs, (asked, lines, marks), lambda: run_once(recorded))

        return dataclasses.replace(again, run=run)

    monkeypatch.setattr(replays, "rebuilt", rebuilt)


@pytest.fixture(scope="module")
def of_minimize(tmp_path_factory):
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    units = Units.from_arrays(rows, np.sign(rows @ [1.0, -1.0]), row_bound=2.0)
    # So small a penalty on absolute values that no step ends at exactly zero: of such a step, the released
    # gradient could change without any effect.
    problem = Problem(losses.smoothed_hinge(0.5), regularisers.ElasticNet(1e-9, 0.02))
    budget = Budget(2.0, 1e-6)
    result = minimize(problem, units, budget=budget, start=np.full(2, 0.1), solver="gradient-descent")
    path = tmp_path_factory.mktemp("minimize") / "report.json"
    return Case.of_report(result.report.save(path, keep_releases=True))


@pytest.fixture(scope="module")
def of_model(tmp_path_factory):
    return Case.of_model(save_small_model(tmp_path_factory.mktemp("model")))


CASES = ("of_minimize", "of_model")


@pytest.mark.later("of_model")
@pytest.mark.parametrize("name", CASES)
def test_honest_files_are_verified(name, tmp_path, request):
    verdict = request.getfixturevalue(name).verdict(tmp_path)
    assert verdict.finding is Finding.VERIFIED, verdict.checks
    assert "title" in verdict.declared


def test_an_honest_model_is_verified_without_a_report_beside_it(of_model, tmp_path):
    assert dataclasses.replace(of_model, summary=REMOVED).is_verified(tmp_path)


@pytest.mark.at_once("of_model-every third")
@pytest.mark.parametrize("step", [1, 3], ids=["every", "every third"])
@pytest.mark.parametrize("name", CASES)
def test_no_field_can_be_forged(name, step, tmp_path, request):
    case = request.getfixturevalue(name)
    forgeries = list(case.forgeries())
    assert len(forgeries) > 750
    passed = [one for one in forgeries[::step] if case.with_forged(one).is_verified(tmp_path)]
    assert not passed, "\n".join(map(str, passed))


@pytest.mark.at_once("of_model-200")
@pytest.mark.parametrize("pairs", [200, PAIRS // len(CASES)])
@pytest.mark.parametrize("name", CASES)
def test_no_two_fields_can_be_forged(name, pairs, tmp_path, request):
    case, draw = request.getfixturevalue(name), random.Random(0)
    forgeries = list(case.forgeries())
    for _ in range(pairs):
        pair = draw.sample(forgeries, 2)
        assert not case.with_forged(*pair).is_verified(tmp_path), pair


@pytest.mark.audit
def test_no_two_of_all_fields_can_be_forged(of_minimize, tmp_path):
    firsts = {}
    for part, path, value in of_minimize.forgeries():
        firsts.setdefault((part, path), value)
    forgeries = [(*place, value) for place, value in firsts.items()]
    for pair in itertools.combinations(forgeries, 2):
        assert not of_minimize.with_forged(*pair).is_verified(tmp_path), pair


def everywhere(document, old, new):
    """A document with one value in the place of another."""
    if isinstance(document, dict):
        return {key: everywhere(value, old, new) for key, value in document.items()}
    if isinstance(document, list):
        return [everywhere(value, old, new) for value in document]
    return new if type(document) is type(old) and document == old else document


def without_second_moment(case):
    """The first release taken out of plan, price, releases and file."""
    report = copy.deepcopy(case.report)
    report["releases"] = report["releases"][1:]
    for event in (report["event"], report["plan"]["event"]):
        event["of"] = event["of"][1:]
    report["plan"]["releases"] -= 1
    report["replay"]["releases"] = report["replay"]["releases"][1:]
    return dataclasses.replace(
        case, report=report, releases={name: one for name, one in case.releases.items() if name != "0"}
    )


def other_coefficients(case):
    """Forged in the arrays, and in the report beside them."""
    arrays = case.arrays | {"coef": case.arrays["coef"] * 1.5}
    summary = case.summary | {"coefficients": arrays["coef"].tolist()}
    return dataclasses.replace(case, arrays=arrays, summary=summary)


def other_array(name):
    """Forged in the arrays alone, and no report beside them."""

    def change(case):
        arrays = case.arrays | {name: np.asarray(case.arrays[name] + 0.5)}
        return dataclasses.replace(case, arrays=arrays, summary=REMOVED)

    return change


def more_noise(case):
    """Ten times the multipliers, at a tenth of epsilon, and no sensitivity stated."""
    report = copy.deepcopy(case.report)
    for group in report["releases"]:
        group["sensitivity"] = None
        for part in group["events"]:
            part["sensitivity"] = None
            part["event"]["noise_multiplier"] *= 10
    for event in (report["event"], report["plan"]["event"]):
        for one in event["of"]:
            one.get("of", one)["noise_multiplier"] *= 10
    return dataclasses.replace(case, report=report)


def unseeded(case):
    """A seeded run called private, in the three members that say so."""
    guarantee = case.report["guarantee"] | {"seeded": False, "holds": True}
    guarantee["noise"] = guarantee["noise"].partition(";")[0] + (
        "; operating-system entropy through a cryptographic generator"
    )
    return dataclasses.replace(case, report=case.report | {"guarantee": guarantee})


def with_everywhere(old, new):
    def change(case):
        model = everywhere(case.model, old, new)
        return dataclasses.replace(case, report=everywhere(case.report, old, new), model=model)

    return change


TOGETHER = {
    "coefficients in both files": other_coefficients,
    "coefficients without a report": other_array("coef"),
    "an intercept without a report": other_array("intercept"),
    "n times 100": with_everywhere(300, 30_000),
    "a record is a user": with_everywhere("record", "user"),
    "the second moment": without_second_moment,
    "ten times the noise": more_noise,
    "no plan": lambda case: dataclasses.replace(case, report=case.report | {"plan": None}),
    "no model beside it": lambda case: dataclasses.replace(case, summary=None),
    "version 1": lambda case: dataclasses.replace(case, report=case.report | {"format_version": 1}),
    "another version of privopt": lambda case: dataclasses.replace(
        other_coefficients(case), report=case.report | {"privopt": "0.0.1"}
    ),
}


@pytest.mark.later(
    "an intercept without a report",
    "coefficients in both files",
    "coefficients without a report",
    "the second moment",
)
@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_forged_in_several_places_is_not_verified(name, of_model, tmp_path):
    other = dataclasses.replace(TOGETHER[name](of_model))
    other.marks = marks_of(other.report)
    other.make_digests_fit()
    finding = other.verdict(tmp_path).finding
    assert finding is not Finding.VERIFIED
    assert (finding is Finding.PRICED) is ("version" in name)


def test_a_seeded_run_does_not_pass_as_private_by_three_edits(tmp_path):
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    units = Units.from_arrays(rows, np.sign(rows @ [1.0, -1.0]), row_bound=2.0)
    problem, budget = Problem(losses.logistic, regularisers.Ridge(0.01)), Budget(2.0, 1e-6)
    result = minimize(problem, units, budget=budget, solver="gradient-descent", random_state=3)
    case = Case.of_report(result.report.save(tmp_path / "report.json", keep_releases=True))
    assert case.verdict(tmp_path).finding is Finding.NOT_PRIVATE
    assert unseeded(case).verdict(tmp_path).finding is Finding.REFUTED


def test_releases_are_found_under_the_name_of_a_models_directory(of_minimize, tmp_path):
    of_minimize.verdict(tmp_path)
    beside = (tmp_path / "report.releases.safetensors").rename(tmp_path / files.RELEASES_FILE)
    assert verify(tmp_path / "report.json", replays.replayed)[0].finding is Finding.VERIFIED
    elsewhere = beside.rename(tmp_path / "elsewhere")
    assert verify(tmp_path / "report.json", replays.replayed)[0].finding is Finding.PRICED
    named = verify(tmp_path / "report.json", replays.replayed, elsewhere)[0]
    assert named.finding is Finding.VERIFIED
