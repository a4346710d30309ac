"""`--sign-key` of `fit`, `synthesize` and `report`, and `verify --trusted-key`, from the command line alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from privopt import Account
from privopt.cli import app
from privopt.replays.check import replayed
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

SCHEMA = {
    "target": "ill",
    "columns": {
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "age": {"kind": "num", "low": 0, "high": 99},
        "ill": {"kind": "flag"},
    },
}
BUDGET = ("--epsilon", 2, "--delta", 1e-5)
NO_REPLAY = ("--work", 1)  # too little for one


def run(*arguments: Any, code: int = 0) -> str:
    """What is printed; the exit code is checked."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, its schema, the owner's keys and a stranger's."""
    path, draw = tmp_path_factory.mktemp("sign"), np.random.default_rng(0)
    columns = {
        "sex": draw.choice(["f", "m"], 300),
        "age": draw.uniform(0, 99, 300),
        "ill": draw.integers(0, 2, 300),
    }
    pd.DataFrame(columns).to_parquet(path / "table.parquet")
    (path / "schema.json").write_text(json.dumps(SCHEMA))
    (path / "rows.json").write_text(json.dumps({"columns": SCHEMA["columns"]}))
    for name in ("owner", "stranger"):
        key = Ed25519PrivateKey.generate()
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        (path / f"{name}.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (path / f"{name}.pub").write_bytes(public)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """The directory of a model that its owner has signed."""
    table = (folder / "table.parquet", "--schema", folder / "schema.json")
    run("fit", *table, *BUDGET, "--output", folder / "model", "--sign-key", folder / "owner.key")
    return folder / "model"


def test_a_signed_model_is_verified_by_its_key_and_by_no_other(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    printed = run("verify", model, "--trusted-key", folder / "owner.pub", *NO_REPLAY)
    assert "PRICED: the guarantee" in printed
    assert "every file that is there is as it was signed" in printed
    in_this_process = verify(model, replayed, trusted=[folder / "owner.pub"])[0]
    assert in_this_process.finding is Finding.VERIFIED
    stranger = run("verify", model, "--trusted-key", folder / "stranger.pub", *NO_REPLAY, code=1)
    assert "NOT TRUSTED" in stranger
    other = shutil.copytree(model, tmp_path / "other")
    (other / "signature.json").unlink()
    assert "nobody has signed it" in run(
        "verify", other, "--trusted-key", folder / "owner.pub", *NO_REPLAY, code=1
    )


@pytest.mark.parametrize("name", ["model.json", "report.json"])
def test_no_declaration_in_a_signed_model_can_be_changed(
    name: str, folder: Path, model: Path, tmp_path: Path
) -> None:
    """Without a signature the name of the target would pass: it is declared, not checked."""
    other = shutil.copytree(model, tmp_path / "other")
    content = (other / name).read_text()
    (other / name).write_text(content.replace("given by the schema", "given by the census"))
    assert (other / name).read_text() != content
    printed = run("verify", other, "--trusted-key", folder / "owner.pub", *NO_REPLAY, code=1)
    assert "NOT TRUSTED" in printed or "REFUTED" in printed
    assert "not what was signed" in printed


def test_what_was_signed_and_is_not_there_is_named(folder: Path, model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    (other / "releases.safetensors").unlink()
    printed = run("verify", other, "--trusted-key", folder / "owner.pub")
    assert "PRICED" in printed
    assert "signed as well, and not there: releases" in printed


@pytest.mark.audit
def test_a_report_is_signed_anew_by_another_key(folder: Path, model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    page = (other / "report.json").read_bytes()
    run("report", other, "--open-path")
    assert (other / "report.json").read_bytes() == page
    run("verify", other, "--trusted-key", folder / "owner.pub", *NO_REPLAY)
    run("report", other, "--open-path", "--sign-key", folder / "stranger.key")
    run("verify", other, "--trusted-key", folder / "owner.pub", *NO_REPLAY, code=1)
    run("verify", other, "--trusted-key", folder / "stranger.pub", *NO_REPLAY)


def test_a_link_in_a_model_from_anywhere_is_never_written_through(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    other, precious = shutil.copytree(model, tmp_path / "other"), tmp_path / "precious"
    precious.write_text("precious")
    for name in ("report.html", "report.json", "signature.json"):
        (other / name).unlink()
        (other / name).symlink_to(precious)
    run("report", other, "--open-path", "--sign-key", folder / "owner.key")
    assert precious.read_text() == "precious"
    assert not any((other / name).is_symlink() for name in ("report.html", "report.json", "signature.json"))


def test_what_a_link_leads_to_is_not_signed(folder: Path, model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    (other / "releases.safetensors").rename(tmp_path / "elsewhere")
    (other / "releases.safetensors").symlink_to(tmp_path / "elsewhere")
    said = run("report", other, "--open-path", "--sign-key", folder / "owner.key", code=2)
    assert "symbolic link" in said
    assert not (other / "signature.json").exists()


@pytest.mark.audit
def test_synthetic_rows_come_with_a_signed_report(folder: Path) -> None:
    rows, key = folder / "rows.parquet", folder / "owner.key"
    table = (folder / "table.parquet", "--schema", folder / "rows.json", "--workload", "1-way")
    run("synthesize", *table, *BUDGET, "--rows", 10, "--output", rows, "--sign-key", key)
    report = folder / "rows.report.json"
    assert "every file that is there" in run("verify", report, "--trusted-key", folder / "owner.pub")
    content = report.read_text()
    report.write_text(content.replace('"title": "', '"title": "Better '))
    assert "NOT TRUSTED" in run("verify", report, "--trusted-key", folder / "owner.pub", code=1)


def test_a_key_that_cannot_sign_is_refused_before_anything_is_paid(folder: Path, tmp_path: Path) -> None:
    book = tmp_path / "people.account"
    Account.create(book, epsilon=5, delta=1e-4, data_set="people")
    table = (folder / "table.parquet", "--schema", folder / "schema.json", "--account", book)
    for key in (folder / "owner.pub", folder / "schema.json", folder / "missing.key"):
        output = tmp_path / "model"
        said = run("fit", *table, *BUDGET, "--output", output, "--sign-key", key, code=2)
        assert "key" in said
        assert not output.exists()
    assert not Account(path=book).entries
