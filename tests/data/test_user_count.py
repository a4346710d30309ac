"""Users are counted once each, wherever digests of their keys lie meanwhile."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.data.record_source import ArrayRecords
from privopt.data.room import MEMORY
from privopt.data.user_keys import user_codes
from privopt.engine.placement import Placement
from privopt.engine.streamed import counted_users
from privopt.engine.streamed import opening as user_count
from privopt.engine.streamed.opening import COUNTED_BYTES, count_users, digest_runs
from privopt.errors import ArgumentError, DataUnavailable
from privopt.tables.table import Table

KEYS = st.one_of(
    st.none(), st.integers(0, 20), st.text("ab", max_size=2), st.sampled_from([1.0, 2.5, b"a", ""])
)


def records(keys: list[Any]) -> ArrayRecords:
    private_keys = np.empty(len(keys), object)
    private_keys[:] = keys
    return ArrayRecords(np.zeros((len(keys), 1)), None, private_keys)


@pytest.fixture(scope="module", autouse=True)
def _few_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privopt.data.record_source.BLOCK_RECORDS", 3)
        for module in ("engine.streamed.opening", "data.user_parts"):
            patch.setattr(f"privopt.{module}.AT_ONCE", 8)
        yield


@given(st.lists(KEYS, max_size=60))
def test_every_user_is_counted_once(keys) -> None:
    source = records(keys)
    expected = int(user_codes(keys, len(keys)).max(initial=-1)) + 1
    assert count_users(source) == expected
    assert count_users(source, digest_runs(len(keys), MEMORY)) == expected


@pytest.mark.parametrize(("engine", "spooled"), [("memory", False), ("stream", True), ("auto", True)])
def test_users_are_counted_where_their_records_shall_be(
    engine: Any, spooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, made = records([*range(30), *range(50), None]), []
    monkeypatch.setattr(
        "privopt.engine.streamed.opening.digest_runs",
        lambda rows, room: made.append(type(room).__name__) or digest_runs(rows, room),
    )
    placement = Placement(engine=engine, spool=tmp_path, memory=81 * COUNTED_BYTES - 1)
    assert counted_users(source, placement) == 50
    assert made == ["Spool"] * spooled
    assert counted_users(source, Placement(engine="auto", memory=81 * COUNTED_BYTES)) == 50
    assert made == ["Spool"] * spooled
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_a_key_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("privopt.engine.streamed.disk.take_room", full)
    monkeypatch.setattr(ArrayRecords, "blocks", lambda *_: pytest.fail("read"))
    with pytest.raises(ArgumentError, match=r"^no room for the rows in the spool's folder [^0-9]*") as caught:
        counted_users(records(list(range(30))), Placement(engine="stream", spool=tmp_path))
    assert "30" not in str(caught.value).replace(str(tmp_path), "")


def test_files_that_change_meanwhile_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who\n" + "\n".join(f"user {k % 7}" for k in range(40)))
    table = Table.open(path, {"columns": {"who": {"kind": "id"}}}, engine="stream", spool=tmp_path)
    assert table.user_count("who") == 7
    other = Table.open(path, {"columns": {"who": {"kind": "id"}}})
    path.write_text("who\n" + "\n".join(f"user {k}" for k in range(90)))
    with pytest.raises(DataUnavailable, match="changed"):
        other.user_count("who")


def test_what_is_held_in_memory_is_once_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    monkeypatch.setattr(
        user_count,
        "_once",
        lambda pieces, once=user_count._once: most.append(sum(map(np.size, pieces))) or once(pieces),
    )
    assert count_users(records(list(range(4)) * 500)) == 4
    assert max(most) <= 2 * (4 + 4 * 8)
