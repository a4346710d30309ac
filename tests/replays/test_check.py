"""A report and its model follow from the released values beside it, bit for bit, or it is refuted."""

import hashlib
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from tests.support import report_samples as samples

from privopt import (
    Budget,
    LassoClassifier,
    LogisticRegression,
    PoissonRegressor,
    Problem,
    Ridge,
    RobustRegressor,
    Units,
    losses,
    minimize,
    regularisers,
)
from privopt.replays.check import _same_estimator, replayed
from privopt.replays.recipes import written
from privopt.replays.rerun import MOST_STEPS, Unreplayable, rebuilt
from privopt.report.kept import INDEX, KeptReleases, Recipe, digest_of_index, packed_arrays
from privopt.report.report import PrivacyReport
from privopt.solvers.registry import SOLVERS
from privopt.untrusted import UntrustedFile, read_json
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

RNG = np.random.default_rng(0)
ROWS = RNG.uniform(-1, 1, (300, 3))
SCORES = ROWS @ [1.0, -1.0, 0.5]
PRICE = {"epsilon": 1.0, "delta": 1e-6}
CLASSES = {"bounds": (-1, 1), "classes": [0, 1], **PRICE}
MODELS = {
    "two classes": (LogisticRegression(**CLASSES), SCORES > 0),
    "estimated bounds": (
        LogisticRegression(loose_bounds=(-1000, 1000), classes="from_y", **PRICE),
        np.where(SCORES > 0, "yes", "no"),
    ),
    "softmax": (LogisticRegression(**CLASSES | {"classes": [0, 1, 2]}), np.digitize(SCORES, [-0.5, 0.5])),
    "ridge": (Ridge(bounds=(-1, 1), target_bounds=(-2, 2), **PRICE), SCORES),
    "counts": (PoissonRegressor(bounds=(-1, 1), target_bounds=(0, 9), **PRICE), np.round(np.exp(SCORES))),
    "lasso": (LassoClassifier(**CLASSES), SCORES > 0),
    "robust": (RobustRegressor(bounds=(-1, 1), target_bounds=(-2, 2), **PRICE), SCORES),
    "a filter": (LogisticRegression(solver="adaptive-gradient-descent", **CLASSES), SCORES > 0),
}


def saved(report, folder):
    return report.save(folder / "report.json", keep_releases=True)


def check_of(path):
    return replayed(read_json(path), path.with_name("report.releases.safetensors"))


QUICK = ("two classes", "ridge")


@pytest.mark.later("two classes")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.audit) for name in MODELS]
)
def test_a_model_is_replayed_from_its_releases(name, tmp_path):
    model, target = MODELS[name]
    path = saved(model.fit(ROWS, target).privacy_, tmp_path)
    (verdict,) = verify(path, replayed)
    check = verdict.checks[-1]
    assert (check.subject, check.outcome) == ("replay", Outcome.HOLDS), check
    assert f"replayed: {model.privacy_.count:,} releases" in check.sentence
    assert verdict.finding is Finding.VERIFIED, verdict.checks


def test_a_minimisation_is_replayed_from_a_start(tmp_path):
    units = Units.from_arrays(ROWS, np.sign(SCORES), row_bound=2.0)
    problem = Problem(losses.smoothed_hinge(0.5), regularisers.ElasticNet(0.01, 0.02))
    result = minimize(
        problem, units, budget=Budget(2.0, 1e-6), start=np.full(3, 0.1), solver="gradient-descent"
    )
    assert check_of(saved(result.report, tmp_path)).outcome is Outcome.HOLDS


def test_a_loss_of_the_users_own_is_not_replayed_and_says_why(tmp_path):
    units = Units.from_arrays(ROWS, np.sign(SCORES), row_bound=2.0)

    def loss(params, features, target):
        return (features @ params - target) ** 2

    result = minimize(loss, units, budget=Budget(2.0, 1e-6), start=np.zeros(3), solver="gradient-descent")
    path = result.report.save(tmp_path / "report.json")
    (verdict,) = verify(path, replayed)
    assert verdict.finding is Finding.PRICED
    assert verdict.checks[-1].outcome is Outcome.UNCHECKED
    assert "user's own" in verdict.checks[-1].sentence
    with pytest.raises(ValueError, match=r"no releases to keep: .* user's own"):
        result.report.save(path, keep_releases=True)


@pytest.fixture(scope="module")
def report():
    return LogisticRegression(**CLASSES).fit(ROWS, SCORES > 0).privacy_


def altered_values(folder, change):
    """The values in the file altered, and the report told of the new file."""
    path, beside = folder / "report.json", folder / "report.releases.safetensors"
    arrays = {name: values.copy() for name, values in safetensors.numpy.load(beside.read_bytes()).items()}
    change(arrays)
    document = json.loads(path.read_text())
    beside.write_bytes(packed_arrays(arrays, document["replay"]))
    document["replay"]["sha256"] = hashlib.sha256(beside.read_bytes()).hexdigest()
    path.write_text(json.dumps(document))
    return path


def last_bit(arrays):
    for values in arrays.values():  # of one value alone it may be lost in a sum
        values[...] = np.nextafter(values, np.inf)


def other_value(arrays):
    arrays["1"] *= 1.5


def shorter(arrays):
    arrays["1"] = arrays["1"][:-1]


def not_numbers(arrays):
    arrays["1"][:] = np.nan


def other_shape(arrays):
    arrays["1"] = arrays["1"][..., :1].copy()


@pytest.mark.later("other_shape", "other_value")
@pytest.mark.parametrize("change", [other_value, shorter, not_numbers, other_shape])
def test_other_releases_than_the_models_are_refuted(report, tmp_path, change):
    saved(report, tmp_path)
    path = altered_values(tmp_path, change)
    check = check_of(path)
    assert check.outcome is Outcome.FAILS, check


def more_of_one(arrays):
    arrays["0"] = np.repeat(arrays["0"], 2, axis=1)


def more_in_a_loop(arrays):
    arrays["2"] = np.repeat(arrays["2"], 2, axis=1)


@pytest.mark.parametrize("change", [more_of_one, more_in_a_loop])
def test_more_values_than_the_solver_asks_for_are_refuted(report, tmp_path, change):
    saved(report, tmp_path)
    check = check_of(altered_values(tmp_path, change))
    assert check.outcome is Outcome.FAILS, check
    assert "where the transcript has 2" in check.sentence


def with_lines(folder, arrays, lines):
    """The values in the file replaced or added to, and listed so."""
    path = altered_values(folder, lambda before: before.update(arrays))
    document = json.loads(path.read_text())
    document["replay"]["releases"] = lines(document["replay"]["releases"])
    path.write_text(json.dumps(document))
    return altered_values(folder, lambda before: None)


def test_a_release_after_the_last_one_is_refuted(report, tmp_path):
    saved(report, tmp_path)
    path = with_lines(
        tmp_path, {"9": np.ones((1, 1, 50))}, lambda lines: [*lines, {"name": "EveryRecord", "array": "9"}]
    )
    check = check_of(path)
    assert check.outcome is Outcome.FAILS, check
    assert "the solver ended where the transcript has 'EveryRecord'" in check.sentence
    assert verify(path, replayed)[0].finding is Finding.REFUTED


def test_values_that_no_line_names_are_not_passed_over(report, tmp_path):
    saved(report, tmp_path)
    path = with_lines(tmp_path, {"9": np.ones((1, 1, 50))}, lambda lines: [*lines, lines[-1]])
    assert "not laid out as they are written" in check_of(path).sentence


@pytest.mark.parametrize("count", [10**8, 10**13])
def test_releases_without_bytes_take_no_memory(report, tmp_path, count):
    saved(report, tmp_path)
    path = with_lines(tmp_path, {}, lambda lines: [{"name": "x", "array": "0"}])
    header = {
        "__metadata__": {INDEX: digest_of_index(json.loads(path.read_text())["replay"])},
        "0": {"dtype": "F64", "shape": [1, count, 0], "data_offsets": [0, 0]},
    }
    text = json.dumps(header).encode()
    packed = struct.pack("<Q", len(text)) + text
    path.with_name("report.releases.safetensors").write_bytes(packed)
    document = json.loads(path.read_text())
    document["replay"]["sha256"] = hashlib.sha256(packed).hexdigest()
    path.write_text(json.dumps(document))
    assert "more releases than are replayed" in check_of(path).sentence


def test_the_steps_of_a_models_solver_are_limited_as_those_of_minimize(report):
    recipe = json.loads(report.to_json())["replay"]["recipe"]
    recipe["arguments"]["solver"] = written(SOLVERS["gradient-descent"]()) | {"steps": MOST_STEPS + 1}
    with pytest.raises(Unreplayable, match="more than 1,000,000 steps"):
        rebuilt(recipe)


def test_releases_times_parameters_are_limited(report, tmp_path, monkeypatch):
    path = saved(report, tmp_path)
    monkeypatch.setattr("privopt.replays.check.MOST_WORK", 10)
    assert "more than the 10 that are replayed" in check_of(path).sentence


def test_a_last_digit_is_told_from_the_bits_and_holds(report, tmp_path):
    """Another processor may round otherwise."""
    saved(report, tmp_path)
    check = check_of(altered_values(tmp_path, last_bit))
    assert check.outcome is Outcome.HOLDS
    assert "last digits" in check.sentence


def set_in(*path, value):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change


REFUTED = {
    "a coefficient": set_in("model", "coefficients", 0, 1, value=lambda x: 2 * x),
    "a sensitivity and its noise": lambda document: [
        set_in("releases", 1, name, value=lambda ends: [3 * end for end in ends])(document)
        for name in ("sensitivity", "scale")
    ],
    "a name": set_in("releases", 1, "name", value="Else"),
    "a finding": set_in("findings", "improvement_share", "value", value=0.99),
    "the status": set_in("status", value="finished and more"),
    "a sentence": set_in("summary", 0, value="One record is protected by epsilon 0.1."),
    "a word of the plan": set_in("plan", "reason", value="because"),
    "a number of the plan": set_in("plan", "passes", value=1.0),
    "no plan": set_in("plan", value=None),
    "the file": set_in("replay", "sha256", value="0" * 64),
}


@pytest.mark.at_once("a sensitivity and its noise", "the file")
@pytest.mark.parametrize("name", REFUTED)
def test_what_does_not_follow_from_the_releases_is_refuted(report, tmp_path, name):
    path = saved(report, tmp_path)
    document = json.loads(path.read_text())
    REFUTED[name](document)
    path.write_text(json.dumps(document))
    assert check_of(path).outcome is Outcome.FAILS
    assert verify(path, replayed)[0].finding is Finding.REFUTED


NOTHING = {
    "a missing recipe": set_in("replay", "recipe", value=None),
    "a recipe of something else": set_in("replay", "recipe", "estimator", value="subprocess.Popen"),
    "a recipe with an unknown part": set_in("replay", "recipe", "arguments", "solver", value={"$kind": "os"}),
    "a recipe without end": set_in("replay", "recipe", "arguments", "n", value=10**15),
    "a wide recipe": set_in("replay", "recipe", "width", value=10**9),
    "a recipe out of range": set_in("replay", "recipe", "arguments", "epsilon", value=-1),
    "an index of nothing": set_in("replay", "releases", value=[{"name": "x", "array": "none"}]),
    "another index": set_in("replay", "releases", value=7),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_hostile_recipe_is_not_run(report, tmp_path, name):
    path = saved(report, tmp_path)
    document = json.loads(path.read_text())
    NOTHING[name](document)
    path.write_text(json.dumps(document))
    check = check_of(path)
    assert check.outcome is Outcome.UNCHECKED, check
    assert check.sentence.startswith("nothing was replayed: ")


def test_without_the_file_nothing_is_replayed_and_a_link_is_refused(report, tmp_path):
    path = report.save(tmp_path / "report.json")
    assert "do not lie beside it" in check_of(path).sentence
    saved(report, tmp_path)
    beside = tmp_path / "report.releases.safetensors"
    beside.rename(tmp_path / "elsewhere")
    beside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedFile, match="symbolic link"):
        check_of(path)


def test_a_report_of_another_version_that_plans_otherwise_is_not_refuted(report, tmp_path):
    path = saved(report, tmp_path)
    document = json.loads(path.read_text()) | {"privopt": "0.0.1"}
    path.write_text(json.dumps(document))
    assert "every number comes out again" in check_of(path).sentence
    assert verify(path, replayed)[0].finding is Finding.PRICED
    document["plan"]["passes"] = 1.0
    path.write_text(json.dumps(document))
    assert "another version of privopt" in check_of(path).sentence


@pytest.mark.parametrize("name", ["a name", "a coefficient"])
def test_a_solver_of_another_version_may_ask_and_end_otherwise(report, tmp_path, name):
    path = saved(report, tmp_path)
    document = json.loads(path.read_text()) | {"privopt": "0.0.1"}
    REFUTED[name](document)
    if name == "a name":
        document["replay"]["releases"][1]["name"] = "Else"
    path.write_text(json.dumps(document))
    check = check_of(altered_values(tmp_path, lambda arrays: None))
    assert check.outcome is Outcome.UNCHECKED
    assert "it was made by another version of privopt, and with this one " in check.sentence


def test_version_1_says_nothing_of_a_replay(report):
    document = json.loads(report.to_json())
    del document["replay"]
    assert PrivacyReport.from_dict(document | {"format_version": 1}).kept is None


def test_a_run_whose_values_were_not_all_kept_is_not_replayed():
    transcript = samples.gaussian_result().transcript
    assert KeptReleases.of(transcript, None).arrays is None
    recipe = Recipe("minimize", {})
    assert KeptReleases.of(transcript, recipe).arrays is not None
    transcript.append(replace(transcript[0], released=None))
    kept = KeptReleases.of(transcript, recipe)
    assert (kept.arrays, kept.index) == (None, {"obstacle": "not every released value was kept"})


def test_tuples_within_tuples_are_the_lists_of_a_models_directory():
    """JSON has no tuples, at whatever depth."""
    arguments = {"bounds": ((-1.0, -1.0), (1.0, (2.0, 3.0))), "feature_groups": [("a", "b"), ("c",)], "n": 7}
    recipe = {"kind": "estimator", "estimator": "Fit", "n": 5, "sparse": False}
    recipe["arguments"] = {name: written(value) for name, value in arguments.items()}
    given = {**arguments, "random_state": None}
    model = json.loads(json.dumps({"class": "Fit", "n": 5, "sparse": False, "arguments": given}))
    assert _same_estimator({"replay": {"recipe": recipe}}, model)
    model["arguments"]["bounds"][1][1][0] = 2.5
    assert not _same_estimator({"replay": {"recipe": recipe}}, model)
