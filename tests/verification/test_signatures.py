"""Reports and models that somebody has signed: no byte of them can be changed, and no other key will do."""

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.support import report_samples as samples
from typer.testing import CliRunner

from privopt.cli import app
from privopt.untrusted import UntrustedFile
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.signatures import KeyProblem, check_key, sign, signature_beside, signature_of
from privopt.verification.verdict import Finding

RAW = serialization.NoEncryption()


def keys(folder, name, form="pem"):
    """The files of a private and of its public key."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    kinds = serialization.PrivateFormat, serialization.PublicFormat, serialization.Encoding
    if form == "pem":
        private.write_bytes(key.private_bytes(kinds[2].PEM, kinds[0].PKCS8, RAW))
        public.write_bytes(key.public_key().public_bytes(kinds[2].PEM, kinds[1].SubjectPublicKeyInfo))
    else:
        private.write_bytes(key.private_bytes(kinds[2].PEM, kinds[0].OpenSSH, RAW))
        public.write_bytes(key.public_key().public_bytes(kinds[2].OpenSSH, kinds[1].OpenSSH))
    return private, public


@pytest.fixture
def signed(tmp_path):
    """A report and its signature, the key that is trusted and another one."""
    report = samples.gaussian_report().save(tmp_path / "report.json")
    private, public = keys(tmp_path, "owner")
    sign(signature_beside(report), {"report": report.read_bytes()}, private)
    return report, public, keys(tmp_path, "other")[1]


def outcome(path, *trusted):
    verdict = verify(path, trusted=trusted)[0]
    found = [check.outcome for check in verdict.checks if check.subject == "signature"]
    return verdict.finding, found[0] if found else None


def test_a_trusted_signature_holds_and_another_does_not(signed):
    report, trusted, other = signed
    assert outcome(report, trusted) == (Finding.PRICED, Outcome.HOLDS)
    assert outcome(report, other, trusted) == (Finding.PRICED, Outcome.HOLDS)
    assert outcome(report) == (Finding.PRICED, Outcome.UNCHECKED)
    assert outcome(report, other) == (Finding.UNTRUSTED, Outcome.FAILS)


def test_what_nobody_signed_is_not_trusted(signed):
    report, trusted, _ = signed
    signature_beside(report).unlink()
    assert outcome(report, trusted) == (Finding.UNTRUSTED, Outcome.FAILS)
    assert outcome(report) == (Finding.PRICED, None)


@pytest.mark.parametrize("place", range(0, 20, 3))
def test_no_byte_can_be_changed(signed, place):
    """Not even in what the caller declared, such as the title."""
    report, trusted, _ = signed
    content = report.read_text()
    at = content.index('"title"') + 10 + place if place < 10 else len(content) * place // 20
    letter = "x" if content[at] != "x" else "y"
    report.write_text(content[:at] + letter + content[at + 1 :])
    try:
        finding, check = outcome(report, trusted)
    except UntrustedFile:
        return
    assert finding in (Finding.UNTRUSTED, Finding.REFUTED)
    assert check is Outcome.FAILS


@pytest.mark.parametrize("name", ["public_key", "signature", "files"])
def test_no_field_of_a_signature_can_be_changed(signed, name):
    report, trusted, _ = signed
    path = signature_beside(report)
    document = json.loads(path.read_text())
    if name == "files":
        document["files"]["report"] = "0" * 64
    else:
        document[name] = ("1" if document[name][0] == "0" else "0") + document[name][1:]
    path.write_text(json.dumps(document))
    assert outcome(report, trusted) == (Finding.UNTRUSTED, Outcome.FAILS)


def test_a_signature_of_another_report_does_not_hold(signed, tmp_path):
    report, trusted, _ = signed
    other = samples.gaussian_report(2.0).save(tmp_path / "other.json")
    signature_beside(report).rename(signature_beside(other))
    assert outcome(other, trusted) == (Finding.UNTRUSTED, Outcome.FAILS)


def test_files_may_be_renamed_together(signed, tmp_path):
    report, trusted, _ = signed
    signature_beside(report).rename(tmp_path / "signature.json")
    assert signature_of(report) == tmp_path / "signature.json"
    assert outcome(report.rename(tmp_path / "mine.json"), trusted) == (Finding.PRICED, Outcome.HOLDS)


def test_keys_of_openssh_are_read_and_other_files_are_no_keys(tmp_path):
    report = samples.gaussian_report().save(tmp_path / "report.json")
    private, public = keys(tmp_path, "ssh", "openssh")
    sign(signature_beside(report), {"report": report.read_bytes()}, private)
    assert outcome(report, public) == (Finding.PRICED, Outcome.HOLDS)
    for wrong in (public, report, tmp_path / "missing"):
        with pytest.raises(KeyProblem, match=r"private key|no key"):
            check_key(wrong)
    with pytest.raises(KeyProblem, match="public key"):
        verify(report, trusted=[private])


def test_the_command_line_asks_for_a_trusted_key(signed):
    report, trusted, other = signed

    def code(*arguments):
        return CliRunner().invoke(app, ["verify", str(report), *map(str, arguments)]).exit_code

    assert code("--trusted-key", trusted) == 0
    assert code("--trusted-key", other) == 1
    assert code("--trusted-key", other, "--trusted-key", trusted) == 0
    assert code("--trusted-key", report) == 2
    assert code("--require-replay") == 1
