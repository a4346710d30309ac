"""Workers read no record for a driver of another privopt."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

import privopt
from privopt.data.record_source import ArrayRecords, Description
from privopt.engine.on_ray import layout as same_code
from privopt.engine.on_ray.fleet import checked
from privopt.engine.on_ray.layout import code_digest, lay_out
from privopt.engine.on_ray.shard import NO_PART, Failure, Shard
from privopt.engine.on_ray.user_shard import Owners, UserShard
from privopt.errors import DataUnavailable

ABOUT = Description(row_bound=1.0, n=40, max_records_per_user=1)


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled beside the tests."""
    monkeypatch.setattr("privopt.engine.on_ray.shard.warm", lambda *_: None)


def test_a_worker_of_another_privopt_reads_nothing() -> None:
    source = ArrayRecords(np.ones((6, 2)), np.ones(6))
    layout = lay_out(source, dataclasses.replace(ABOUT, n=None), None)
    (plan,) = layout.plans
    for code, found in ((None, None), (code_digest(), None), ("0" * 32, Failure("OtherCode", plan.index))):
        shard = Shard(source, ABOUT, layout.public, [plan], 1, code)
        assert shard.load(plan.index) == found


def test_a_worker_of_another_privopt_reads_and_holds_no_users() -> None:
    source = ArrayRecords(np.ones((6, 2)), np.ones(6), np.arange(6))
    layout = lay_out(source, ABOUT, None)
    assert layout.secret is not None
    owners = Owners(layout.secret, np.zeros(len(layout.plans), np.int64), only_counted=False)
    shard = UserShard(source, ABOUT, layout.public, layout.plans, 1, owners, "0" * 32)
    assert shard.cut(0, 6, [0]) == Failure("OtherCode", NO_PART)
    assert shard.units() == Failure("OtherCode", 0)


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(DataUnavailable, match="every machine must have the privopt of this one"):
        checked(Failure("OtherCode", 2))


@pytest.mark.parametrize("change", ["a letter", "a name", "a file more"])
def test_any_change_of_the_sources_is_another_code(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "privopt"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(str(privopt.__file__)).parent, package, ignore=ignored)
    monkeypatch.setattr(same_code, "__file__", str(package / "engine" / "on_ray" / "layout.py"))
    digest = code_digest.__wrapped__
    assert digest() == code_digest()
    (package / "data" / ".#rows.py").symlink_to("somebody@machine.1234")  # of an editor in which it is open
    (package / "data" / ".ipynb_checkpoints").mkdir()
    (package / "data" / ".ipynb_checkpoints" / "rows-checkpoint.py").write_text("")
    assert digest() == code_digest()
    clip = package / "data" / "rows.py"
    if change == "a letter":
        clip.write_bytes(clip.read_bytes().replace(b"2.0**-22", b"2.0**-21", 1))
    elif change == "a name":
        clip.rename(clip.with_name("columns.py"))
    else:
        (package / "data" / "more.py").write_text("")
    assert digest() != code_digest()
