"""Cuts of a run that is to be resumed: the same in every process, whatever stands in the records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privopt.curator import cuts
from privopt.curator.cuts import Cuts, require_lasting
from privopt.curator.journal import Journal
from privopt.data.units import Units
from privopt.errors import ArgumentError, DataUnavailable
from privopt.public import Relation

ROWS = np.random.default_rng(0).normal(size=(60, 2))
SIZES = [20, 15, 20]


def units(rows: np.ndarray) -> Units:
    return replace(Units.from_arrays(rows, row_bound=1.0), origin="files")


def cut(folder: Path, sizes: list[int] = SIZES, rows: np.ndarray = ROWS) -> list[list[int]]:
    """The positions of two cuts of a run, and its journal closed again."""
    journal, found = Journal(folder / "run-0001.journal"), []
    try:
        made = Cuts(journal)
        for in_order in (False, False, True):
            parts = made.assigned(units(rows).public, sizes, origin="files", in_order=in_order)
            found.append([int(place) for places, _ in parts for place in places])
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
        patch.setattr(cuts, "keep_names", full)
        with pytest.raises(DataUnavailable, match="Nothing was cut"):
            cut(tmp_path)
    journal = Journal(tmp_path / "run-0001.journal")
    assert not journal.lines
    journal.close()
    assert cut(tmp_path) == cut(tmp_path)


def test_only_records_in_files_under_replace_one_last() -> None:
    public = units(ROWS).public
    require_lasting(public, "files")
    for other, origin in (
        (replace(public, relation=Relation.ADD_OR_REMOVE_ONE), "files"),
        (replace(public, unit="user"), "files"),
        (public, ""),
    ):
        with pytest.raises(ArgumentError, match="for records in files under replace-one only"):
            require_lasting(other, origin)
