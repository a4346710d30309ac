"""Neighbours where others change their place, or the one that differs its part: none moves a sum beyond its clip."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.engine.rounding import rounding_bound
from privopt.engine.streamed import open_streamed
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.testing.toy_data import hostile_numbers

pytest.importorskip("ray")

from tests.support.sharded import on_shards

N, D, CLIP = 20, 4, 0.3  # units, of whom there are 19 or 20
SMALL = 3  # units of a part
LAYOUTS = ("dense", "int8", "sparse", "users", "sparse users", "int16 users")
QUERIES = {
    "near": ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=CLIP),
    "far": ClippedGradient(loss=losses.squared, at=np.full(D, 1e6), clip=CLIP),
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", SMALL)
    with double_precision():
        yield


class Neighbours:
    """Hostile and ordinary records of N units, of users with one to four each, none of whom loses any to the cap."""

    def __init__(self, layout: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.owners = np.arange(N)
        if "users" in layout:
            self.owners = rng.permutation(np.repeat(np.arange(N), rng.integers(1, 5, N)))
        rows = len(self.owners)
        self.rows = np.where(
            rng.random((rows, 1)) < 0.5, hostile_numbers(rng, (rows, D)), rng.normal(size=(rows, D))
        )
        self.targets = rng.choice([-1.0, 1.0], rows)
        self.by_user, self.is_sparse = "users" in layout, "sparse" in layout
        storage: Any = layout.split()[0] if "int" in layout else "float32"
        self.about = {"row_bound": 1.5, "n": N, "storage": storage, "max_records_per_user": 4}

    def source(self, kept: Any, owners: Any, targets: Any) -> ArrayRecords:
        """The records at some places, of owners with other names or targets."""
        rows: Any = self.rows[kept]
        names = np.array([f"u{owner}" for owner in owners[kept]]) if self.by_user else None
        return ArrayRecords(sparse.csr_array(rows) if self.is_sparse else rows, targets[kept], names)

    def without(self, unit: int) -> ArrayRecords:
        """All but one."""
        return self.source(self.owners != unit, self.owners, self.targets)

    def replaced(self, unit: int) -> ArrayRecords:
        """One has another name, and the opposite targets: of another part, as likely as not."""
        mine = self.owners == unit
        return self.source(
            slice(None), np.where(mine, N + unit, self.owners), np.where(mine, -1, 1) * self.targets
        )

    def all(self) -> ArrayRecords:
        """Everybody."""
        return self.source(slice(None), self.owners, self.targets)


def engine_in(place: str, source: ArrayRecords, about: Description, folder: Path) -> Any:
    if place == "streamed":
        return open_streamed(source, about, Placement(spool=folder, memory=1), noise=NoiseSource(1))
    if place == "shards":
        return on_shards(source, about, workers=3, backwards=True, noise=NoiseSource(1))
    private = source._private
    return InProcessEngine(
        Units.from_arrays(
            private.private_features,
            private.private_targets,
            groups=private.private_keys,
            noise=NoiseSource(1),
            **about.arguments(),
        )
    )


def worst(layout: str, place: str, units: Any, seed: int, folder: Path) -> tuple[float, int]:
    """The largest move over what is allowed, and of how many neighbours."""
    pairs = Neighbours(layout, seed)
    slack = 2.0 * float(rounding_bound(CLIP, N))
    found, tried = 0.0, 0
    for relation, reach in (("add-or-remove-one", 1.0), ("replace-one", 2.0)):
        about = Description(relation=relation, **pairs.about)
        everybody = engine_in(place, pairs.all(), about, folder)
        assert len(everybody._private_ranges) > 2
        for unit in units:
            other = pairs.without(unit) if reach == 1.0 else pairs.replaced(unit)
            engine = engine_in(place, other, about, folder)
            for query in QUERIES.values():
                moved = np.linalg.norm(engine.clipped_sum(query) - everybody.clipped_sum(query))
                found = max(found, float(moved) / (reach * CLIP + slack))
                tried += 1
            engine.close()
        everybody.close()
    return found, tried


@pytest.mark.later("dense-shards")
@pytest.mark.parametrize(
    ("layout", "place"), [("dense", "shards"), ("users", "in memory"), ("int8", "streamed")]
)
def test_no_neighbour_moves_a_sum_over_parts_beyond_its_clip(layout: str, place: str, tmp_path: Path) -> None:
    found, _ = worst(layout, place, (0, 7, N - 1), 0, tmp_path)
    assert 0.5 < found <= 1.0 + 1e-12


@pytest.mark.audit
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", ["in memory", "streamed", "shards"])
def test_no_neighbour_of_many_moves_a_sum_over_parts_beyond_its_clip(
    layout: str, place: str, tmp_path: Path, evidence: Any
) -> None:
    seeds = range(40 if place == "in memory" else 8)
    found = [worst(layout, place, range(N), seed, tmp_path) for seed in seeds]
    largest, tried = max(ratio for ratio, _ in found), sum(count for _, count in found)
    evidence("parts", f"{layout}, {place}", tried=tried, of="neighbours", largest=largest, bound=1.0)
    assert 0.9 < largest <= 1.0 + 1e-12
