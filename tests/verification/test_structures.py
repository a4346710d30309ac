"""Forgeries of a model's directory that are more than another value in a field: of types, copies, members and files."""

import copy
import hashlib
import itertools
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from tests.support.saved_models import save_small_model

from privopt.replays.check import replayed
from privopt.report.kept import INDEX, digest_of_index
from privopt.untrusted import UntrustedFile
from privopt.verification import files
from privopt.verification.files import verify
from privopt.verification.verdict import Finding


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save_small_model(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another run with the same arguments on the same records."""
    return save_small_model(tmp_path_factory.mktemp("other"))


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def read(path):
    return json.loads(path.read_text())


def write(path, document):
    path.write_text(json.dumps(document))


def finding(path):
    try:
        return verify(path, replayed)[0].finding
    except UntrustedFile:
        return None


def retyped(value):
    """The same value as Python compares, of another type of JSON."""
    if isinstance(value, bool):
        return [int(value)]
    if isinstance(value, int):
        return [float(value), *([bool(value)] if value in (0, 1) else [])]
    return [int(value)] if isinstance(value, float) and value.is_integer() else []


def places(value, path=()):
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(member, dict | list):
            yield from places(member, (*path, key))
        else:
            yield from (((*path, key), one) for one in retyped(member))


def changed(document, path, value):
    result = copy.deepcopy(document)
    inside = result
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return result


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.audit)])
def test_no_value_of_one_copy_has_another_type(folder, every):
    """`seeded: 0`, `n: 300.0` or `classes: [false, true]` where another member, or a copy, says otherwise."""
    report, model = read(folder / "report.json"), read(folder / "model.json")
    tried = 0

    def some(found):
        return itertools.islice(found, 0, None, every)

    for path, value in some(places({key: member for key, member in report.items() if key != "model"})):
        write(folder / "report.json", changed(report, path, value))
        assert finding(folder) is Finding.REFUTED, (path, value)
        tried += 1
    write(folder / "report.json", report)
    for part in ("plan", "estimator"):
        for path, value in some(places(model["document"][part], ("document", part))):
            write(folder / "model.json", changed(model, path, value))
            assert finding(folder) is Finding.REFUTED, (path, value)
            tried += 1
    assert tried > 100 // every


def no_runs(folder):
    model = read(folder / "model.json")
    model["document"]["report"] = {"format": "privopt-reports", "format_version": 2, "runs": []}
    write(folder / "model.json", model)


def a_run_among_several(folder):
    model = read(folder / "model.json")
    report = model["document"]["report"]
    model["document"]["report"] = {**report, "format": "privopt-reports", "runs": [report]}
    write(folder / "model.json", model)


def remark_beside_the_arrays(folder):
    model, path = read(folder / "model.json"), folder / files.ARRAYS_FILE
    packed = safetensors.numpy.save(safetensors.numpy.load(path.read_bytes()), {"note": "epsilon 0.01"})
    path.write_bytes(packed)
    write(folder / "model.json", model | {"arrays_sha256": hashlib.sha256(packed).hexdigest()})


def one_more_array(folder):
    model, path = read(folder / "model.json"), folder / files.ARRAYS_FILE
    packed = safetensors.numpy.save(safetensors.numpy.load(path.read_bytes()) | {"scale": np.zeros(0)})
    path.write_bytes(packed)
    write(folder / "model.json", model | {"arrays_sha256": hashlib.sha256(packed).hexdigest()})


def with_releases(folder, arrays, marks):
    """The file of releases written anew, every digest of it made to fit."""
    model, beside = read(folder / "model.json"), read(folder / "report.json")
    indexes = [one["replay"] for one in (model["document"]["report"], beside)]
    packed = safetensors.numpy.save(arrays, {INDEX: digest_of_index(indexes[0]), **marks})
    (folder / files.RELEASES_FILE).write_bytes(packed)
    for index in indexes:
        index["sha256"] = hashlib.sha256(packed).hexdigest()
    write(folder / "model.json", model)
    write(folder / "report.json", beside)


def releases_of(folder):
    return safetensors.numpy.load((folder / files.RELEASES_FILE).read_bytes())


def remark_beside_the_releases(folder):
    with_releases(folder, releases_of(folder), {"note": "x"})


def one_more_release(folder):
    with_releases(folder, releases_of(folder) | {"99": np.zeros((1, 1))}, {})


def releases_not_finite(folder):
    with_releases(folder, {name: values * np.nan for name, values in releases_of(folder).items()}, {})


def releases_cut_short(folder):
    path = folder / files.RELEASES_FILE
    path.write_bytes(path.read_bytes()[:-3])


def releases_behind_a_link(folder):
    path = folder / files.RELEASES_FILE
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


def a_member_twice(folder):
    path = folder / "report.json"
    path.write_text(path.read_text().replace('"title":', '"title": "epsilon 0.01", "title":', 1))


def words_that_look_alike(folder):
    model, beside = read(folder / "model.json"), read(folder / "report.json")
    for one in (model["document"]["report"], beside):
        one["summary"] = [text.replace("e", "\u0435", 1) for text in one["summary"]]  # Cyrillic
    write(folder / "model.json", model)
    write(folder / "report.json", beside)


STRUCTURES = (
    no_runs,
    a_run_among_several,
    remark_beside_the_arrays,
    one_more_array,
    remark_beside_the_releases,
    one_more_release,
    releases_not_finite,
    releases_cut_short,
    releases_behind_a_link,
    a_member_twice,
    words_that_look_alike,
)


@pytest.mark.parametrize("change", STRUCTURES)
def test_another_structure_is_not_verified(change, folder):
    change(folder)
    assert finding(folder) in (Finding.REFUTED, Finding.PRICED, None)


@pytest.mark.parametrize("version", ["{} ", "v{}", "{}.0", "{}+local", "", "\u0660.1.0", "99.9"])
def test_what_is_not_this_version_letter_by_letter_is_not_verified(version, folder):
    model, beside = read(folder / "model.json"), read(folder / "report.json")
    name = version.format(beside["privopt"])
    model["document"]["report"]["privopt"] = model["document"]["versions"]["privopt"] = name
    write(folder / "model.json", model)
    write(folder / "report.json", beside | {"privopt": name})
    assert finding(folder) is Finding.PRICED


PARTS = ("model.json", "model.safetensors", "report.json", "releases.safetensors")


@pytest.mark.parametrize("mixture", range(1, 2 ** len(PARTS) - 1))
def test_files_of_two_runs_are_not_verified_together(mixture, folder, other):
    for place, name in enumerate(PARTS):
        if mixture >> place & 1:
            shutil.copy(other / name, folder / name)
    assert finding(folder) is Finding.REFUTED


def test_a_file_of_no_runs_is_refused_in_a_sentence(folder):
    write(folder / "report.json", {"format": "privopt-reports", "format_version": 2, "runs": []})
    with pytest.raises(UntrustedFile, match="holds no run"):
        verify(folder / "report.json")


def test_several_runs_have_no_other_members(folder):
    report = read(folder / "report.json")
    several = {"format": "privopt-reports", "format_version": 2, "title": "t", "runs": [report]}
    write(folder / "report.json", several)
    assert finding(folder / "report.json") is Finding.PRICED
    write(folder / "report.json", several | {"replay": report["replay"]})
    assert finding(folder / "report.json") is None


def test_the_page_beside_a_report_is_named_as_not_checked(folder):
    (folder / "report.html").unlink()
    assert not any("report.html" in said for said in verify(folder)[0].declared)
    (folder / "report.html").write_text("<h1>epsilon 0.001</h1>")
    for path in (folder, folder / "report.json"):
        assert any("report.html" in said for said in verify(path)[0].declared)
