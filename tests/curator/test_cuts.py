"""Cuts of a run that is to be resumed: the same in every process, whatever stands in the records."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.curator import cuts
from privopt.curator import journal as kept_keys
from privopt.curator.cuts import Cuts, Standing, require_lasting
from privopt.curator.journal import Journal
from privopt.data import blocks, places
from privopt.data.units import Units
from privopt.data.user_parts import MEAN_RECORDS, MEAN_USERS
from privopt.errors import ArgumentError, DataUnavailable
from privopt.public import Public, Relation

ROWS = np.random.default_rng(0).normal(size=(60, 2))
SIZES = [20, 15, 20]
FILES = Standing("files")


@pytest.fixture(autouse=True, params=[2**19, 3], ids=["one hand", "hands of three"])
def hands(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, cuts, places):
        monkeypatch.setattr(module, "DEALT", request.param)


def units(rows: np.ndarray) -> Units:
    return replace(Units.from_arrays(rows, row_bound=1.0), origin="files")


def cut(folder: Path, sizes: list[int] = SIZES, rows: np.ndarray = ROWS) -> list[list[int]]:
    """The positions of two cuts of a run, and its journal closed again."""
    journal, found = Journal(folder / "run-0001.journal"), []
    try:
        made = Cuts(journal)
        for in_order in (False, False, True):
            parts = made.assigned(
                units(rows).public, sizes, origin="files", in_order=in_order, private_count=len(rows)
            )
            found.append([int(place) for own, _ in parts for place in own.within(0, 60)])
    finally:
        journal.close()
    return found


def test_a_neighbour_is_cut_alike_and_its_line_says_the_same(tmp_path: Path) -> None:
    first = cut(tmp_path)
    assert first[0] != first[1]  # each cut has draws of its own
    assert first[2] == list(range(55))
    before = (tmp_path / "run-0001.journal").read_bytes()
    for seed in range(20):
        neighbour = ROWS.copy()
        neighbour[seed] = np.random.default_rng(seed).choice([0.0, np.nan, 1e300, -1.0], 2)
        assert cut(tmp_path, rows=neighbour) == first
        assert (tmp_path / "run-0001.journal").read_bytes() == before


def test_every_record_is_in_one_block(tmp_path: Path) -> None:
    for found in cut(tmp_path):
        assert len(set(found)) == len(found) == sum(SIZES)


def test_other_sizes_are_refused(tmp_path: Path) -> None:
    cut(tmp_path)
    with pytest.raises(ArgumentError, match="cut into other blocks than before"):
        cut(tmp_path, [15, 20, 20])


def test_without_room_for_the_key_nothing_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept_keys, "keep_names", full)
        with pytest.raises(DataUnavailable, match="Nothing was cut"):
            cut(tmp_path)
    journal = Journal(tmp_path / "run-0001.journal")
    assert not journal.lines
    journal.close()
    assert cut(tmp_path) == cut(tmp_path)


def test_units_in_files_last_and_so_many_users_that_a_secret_lays_them_out_do_not() -> None:
    public = units(ROWS).public
    users = replace(public, unit="user", n=MEAN_USERS)
    for lasting in (public, replace(public, relation=Relation.ADD_OR_REMOVE_ONE), users):
        require_lasting(lasting, FILES)
        with pytest.raises(ArgumentError, match="nothing says that arrays hold the same"):
            require_lasting(lasting, Standing(""))
    require_lasting(replace(public, n=MEAN_USERS + 1), FILES)
    few = replace(users, n=MEAN_RECORDS // 100, records_per_unit=100)
    require_lasting(few, FILES)
    for many in (
        replace(users, n=MEAN_USERS + 1),
        replace(few, n=few.n + 1),
        replace(few, records_per_unit=101),
    ):
        with pytest.raises(
            ArgumentError, match=r"507,904 users, or .* 1,048,576 records .* from a secret, and theirs"
        ):
            require_lasting(many, FILES)
        with pytest.raises(ArgumentError, match="theirs is not kept"):
            require_lasting(many, Standing("files", "one", "another"))
        require_lasting(many, Standing("files", "one", "one"))
    with pytest.raises(ArgumentError, match="theirs is not kept"):  # a block of few, of many
        require_lasting(few, Standing("files", "one", ""))


def assignments(
    folder: Path, public: Public, sizes: list[int], there: int
) -> tuple[tuple[tuple[int, ...], ...], Any]:
    """Which places each block has under a key of its own, the same when it goes on; and what the journal says."""
    found, lines = list[Any](), list[Any]()
    for _ in range(2):
        journal = Journal(folder / "run-0001.journal")
        made = Cuts(journal)
        parts = made.assigned(public, sizes, origin="files", in_order=False, private_count=there)
        found.append(tuple(tuple(own.within(0, public.n).tolist()) for own, _ in parts))
        lines.append(dict(journal.lines[0].header))
        journal.close()
    assert found[0] == found[1]
    assert lines[0] == lines[1]
    return found[0], lines[0]


@pytest.mark.later(
    "hands of three-Relation.ADD_OR_REMOVE_ONE",
    "hands of three-Relation.REPLACE_ONE",
    "one hand-Relation.ADD_OR_REMOVE_ONE",
)
@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE])
def test_of_users_and_of_units_that_come_and_go_every_order_has_the_same_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relation: Relation
) -> None:
    """Under a random key the assignment of 4 places is that of any permutation of them, as often: within 5 sigma."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(kept_keys, "keep_names", lambda folder: None)
    public = Public(n=4, d=2, unit="user", relation=relation)
    counted, told = Counter[Any](), set[str]()
    times = 1500
    for number in range(times):
        (tmp_path / str(number)).mkdir(mode=0o700)
        found, line = assignments(tmp_path / str(number), public, [2, 2], 4)
        counted[found] += 1
        told.add(line.pop("places"))
        assert line == {"cut": 1, "of": 4, "sizes": [2, 2], "in_order": False, "dtype": "<f8", "shape": [0]}
    assert len(told) == times  # the digest says nothing of the assignment, which often was the same
    possible = 6 if relation is Relation.REPLACE_ONE else 16
    assert len(counted) == possible
    share = 1.0 / possible
    for count in counted.values():
        assert abs(count - times * share) < 5 * np.sqrt(times * share * (1 - share))


def test_a_key_that_was_there_before_the_first_cut_is_not_used(tmp_path: Path) -> None:
    key = tmp_path / "run-0001.key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    found = cut(tmp_path)
    assert key.read_bytes() != bytes(32)
    assert cut(tmp_path) == found


def test_how_many_units_are_there_is_in_no_line(tmp_path: Path) -> None:
    public = Public(n=40, d=2, relation=Relation.ADD_OR_REMOVE_ONE)
    told = list[Any]()
    for there in (30, 37, 40):
        (tmp_path / str(there)).mkdir(mode=0o700)
        found, line = assignments(tmp_path / str(there), public, [20, 20], there)
        assert sorted(place for places in found for place in places) == list(range(there))
        told.append({name: line[name] for name in line if name != "places"} | {"long": len(line["places"])})
    assert told[0] == told[1] == told[2]
