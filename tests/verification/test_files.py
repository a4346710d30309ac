"""`privopt verify` on files and folders that may come from anywhere."""

import json

import numpy as np
import pytest
from tests.support import report_samples as samples
from typer.testing import CliRunner

from privopt.cli import app
from privopt.tables import save_model
from privopt.untrusted import UntrustedFile
from privopt.verification.files import verify
from privopt.verification.verdict import Finding


def run(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


@pytest.fixture
def report(tmp_path):
    return samples.gaussian_report().save(tmp_path / "report.json")


@pytest.fixture
def folder(tmp_path):
    """A model directory, as `privopt fit` writes one, without what is not verified."""
    made = samples.gaussian_report()
    document = {"report": made.to_dict() | {"model": None}, "plan": made.plan.to_dict()}
    save_model(tmp_path / "model", arrays={"coef": np.asarray(made.model.coefficients[0])}, document=document)
    made.save(tmp_path / "model" / "report.json")
    return tmp_path / "model"


def test_a_report_without_its_releases_is_priced_with_a_digest_and_exit_code_0(report):
    outcome = run(report)
    assert outcome.exit_code == 0, outcome.output
    assert "PRICED: the guarantee follows" in outcome.output
    assert f"sha256:{verify(report)[0].digest}" in outcome.output
    assert "50 digits" in outcome.output


def test_an_altered_report_has_exit_code_1_and_says_what_fails(report):
    document = json.loads(report.read_text())
    document["guarantee"]["epsilon"] = 0.5
    report.write_text(json.dumps(document))
    outcome = run(report)
    assert outcome.exit_code == 1
    assert "FAILS: (0.5, " in outcome.output
    assert "REFUTED" in outcome.output


def test_a_seeded_report_is_not_verified(tmp_path):
    outcome = run(samples.seeded_report().save(tmp_path / "seeded.json"))
    assert outcome.exit_code == 1
    assert "NOT PRIVATE" in outcome.output


@pytest.mark.parametrize("work", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("command", ["verify", "report"])
def test_work_is_a_number_of_seconds(command, work, folder):
    outcome = CliRunner().invoke(app, [command, str(folder), "--work", work])
    assert outcome.exit_code == 2
    assert "Invalid value for '--work'" in outcome.stderr


def test_the_verdict_is_also_json(report):
    outcome = run(report, "--json")
    (verdict,) = json.loads(outcome.output)
    assert verdict["verdict"] == "priced"
    assert {check["subject"] for check in verdict["checks"]} >= {"price", "plan", "noise", "releases"}


def test_a_title_cannot_steer_the_terminal(report):
    document = json.loads(report.read_text()) | {"title": "fine\x1b[2Jmodel\nVERIFIED"}
    report.write_text(json.dumps(document))
    first = run(report).output.splitlines()[0]
    assert first == '"fine?[2Jmodel?VERIFIED"'


def test_a_title_cannot_pass_for_a_verdict(report):
    """Nothing before the last line says VERIFIED in words of ours, nor in a line that a title fills with blanks."""
    spoof = (
        "a model"
        + " " * 80
        + "VERIFIED: the guarantee, the report and the model follow from the released values."
    )
    for blank in (" ", "\u2800", "\u3164"):
        title = spoof.replace(" ", blank)
        report.write_text(json.dumps(json.loads(report.read_text()) | {"title": title}))
        first = run(report).output.splitlines()[0]
        assert first[0] == first[-1] == '"'
        assert len(first) <= 105
        assert not first.isascii() or "  " not in first


def test_a_model_directory_without_releases_is_priced(folder):
    (verdict,) = verify(folder)
    assert verdict.finding is Finding.PRICED, verdict.checks
    assert {check.subject for check in verdict.checks} >= {"arrays", "numbers", "copy"}
    assert run(folder).exit_code == 0


def change_report_beside(folder):
    path = folder / "report.json"
    path.write_text(path.read_text().replace('"seeded": false', '"seeded": true'))


def change_arrays(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def change_plan(folder):
    path = folder / "model.json"
    content = json.loads(path.read_text())
    content["document"]["plan"]["releases"] = 1
    path.write_text(json.dumps(content))


def make_infinite(folder):
    content = json.loads((folder / "model.json").read_text())
    save_model(folder, arrays={"coef": np.asarray([np.inf])}, document=content["document"])


@pytest.mark.parametrize("change", [change_report_beside, change_arrays, change_plan, make_infinite])
def test_an_altered_model_is_refuted(folder, change):
    change(folder)
    assert verify(folder)[0].finding is Finding.REFUTED


def link(folder, name):
    (folder / name).rename(folder / "elsewhere")
    (folder / name).symlink_to(folder / "elsewhere")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "report.json"])
def test_a_model_of_links_is_refused(folder, name):
    link(folder, name)
    with pytest.raises(UntrustedFile, match="symbolic link"):
        verify(folder)
    outcome = run(folder)
    assert outcome.exit_code == 2
    assert "symbolic link" in outcome.stderr


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        (2**62).to_bytes(8, "little"),
        (10).to_bytes(8, "little") + b"{" * 10,
        (2).to_bytes(8, "little") + b"[]",
        len(header := b'{"a":{"dtype":"F64","shape":[9999999999],"data_offsets":[0,8]}}').to_bytes(
            8, "little"
        )
        + header
        + b"\0" * 8,
    ],
)
def test_arrays_with_a_wrong_header_are_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UntrustedFile, match="not a safetensors file"):
        verify(folder)


def test_no_report_and_no_model_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "other.json").write_text('{"format": "else"}')
    for path in (tmp_path / "other.json", tmp_path / "missing.json", tmp_path):
        outcome = run(path)
        assert outcome.exit_code == 2
        assert outcome.stderr.startswith("privopt: ")
        assert "internal error" not in outcome.stderr
