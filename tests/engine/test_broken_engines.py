"""Engines of several parts with one mistake put in: the contract checks, which the sound ones pass, see each."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.spooled import spooled

from privopt.data.places import GivenPlaces
from privopt.data.units import Units
from privopt.engine import parts
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import ExactSum
from privopt.engine.reference import ReferenceEngine
from privopt.engine.streamed.spool import Spool
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.testing import ContractViolation, Rule, check_engine
from privopt.testing.engines import moved_on

pytest.importorskip("ray")

from tests.support.sharded import ShardsHere, sharded

from privopt.engine.on_ray.layout import Chosen
from privopt.engine.on_ray.shard import Shard

pytestmark = pytest.mark.evidence
D = 4
QUERY = ClippedGradient(loss=losses.logistic, at=np.array([3.0, -2.0, 5.0, 1.0]), clip=0.3)
RANGES = ("privopt.engine.in_process", "tests.support.sharded")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 2)  # five units in three parts
    with double_precision():
        yield


class InOnePart(ReferenceEngine):
    """The plain engine that a broken one is held to: what is broken about parts is no part of it."""

    def clipped_sum(self, query: Any, private_draw: Any = None) -> Any:
        return self.part_sum(query, private_draw)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.testing.engines.ReferenceEngine", InOnePart)


def makers(folder: Path) -> dict[str, Callable[[Units], Any]]:
    return {
        "in memory": InProcessEngine,
        "streamed": partial(spooled, folder=folder),
        "shards": partial(sharded, workers=2, backwards=True),
    }


def test_sound_engines_of_several_parts_pass(tmp_path: Path) -> None:
    for make, relation in zip(
        makers(tmp_path).values(), ["replace-one", "add-or-remove-one"] * 2, strict=False
    ):
        check_engine(make, queries=[QUERY, moved_on(D)], relations=[relation], pairs=1)


@pytest.mark.audit
@pytest.mark.parametrize("storages", [["float32", "float64"], ["int16", "int8"]])
@pytest.mark.parametrize("place", ["in memory", "streamed", "shards"])
def test_sound_engines_of_several_parts_pass_in_every_layout(
    place: str, storages: Any, tmp_path: Path
) -> None:
    layouts: Any = ["dense", "csr", "dense users", "csr users"]
    check_engine(makers(tmp_path)[place], layouts=layouts, storages=storages, pairs=20)


# What every engine has: the sum of a part, the parts, and how their sums meet ----------------------------------------


def unclipped(patch: pytest.MonkeyPatch) -> None:
    """A part adds up contributions that are ten times too long."""
    sound = InProcessEngine.part_sum
    patch.setattr(
        InProcessEngine,
        "part_sum",
        lambda self, query, draw=None: sound(self, dataclasses.replace(query, clip=10.0 * query.clip), draw),
    )


def cut_otherwise(ends: Callable[[int], list[Any]], patch: pytest.MonkeyPatch) -> None:
    for module in RANGES:
        patch.setattr(f"{module}.ranges_of", lambda units: ends(units.private_count))


def in_two_parts(patch: pytest.MonkeyPatch) -> None:
    """Parts overlap: the first unit of each is the last one of the part before."""
    sound = parts.part_ranges
    cut_otherwise(lambda count: [(max(start - 1, 0), stop) for start, stop in sound(count)], patch)


def in_no_part(patch: pytest.MonkeyPatch) -> None:
    """Parts end one unit early, but for the last."""
    sound = parts.part_ranges
    cut_otherwise(
        lambda count: [(start, stop - (stop < count)) for start, stop in sound(count)],
        patch,
    )


def norms_of_others(patch: pytest.MonkeyPatch) -> None:
    """A part has the rows of its own units, and the norms of the first ones of all."""
    sound = Units.part

    def part(self: Units, start: int, stop: int) -> Units:
        norms = self.private_norms[: stop - start]
        return dataclasses.replace(sound(self, start, stop), private_norms=norms)

    patch.setattr(Units, "part", part)


def no_carry(patch: pytest.MonkeyPatch) -> None:
    """What the lower digits have beyond their range is lost."""
    mask = (1 << 62) - 1
    patch.setattr(parts, "_carried", lambda high, low, plain: ExactSum(high, low & mask, plain))


def half_of_the_digits(patch: pytest.MonkeyPatch) -> None:
    """The lower digits are not added at all."""
    patch.setattr(parts, "_carried", lambda high, low, plain: ExactSum(high, 0 * low, plain))


def twice(patch: pytest.MonkeyPatch) -> None:
    """The answer of a part that was asked again, as its first one was late, counts as well."""
    sound = parts.total_of_parts

    def total(private_sums: Any, radius: Any) -> Any:
        first, *rest = private_sums
        return sound([first, first, *rest], radius)

    patch.setattr(parts, "total_of_parts", total)
    of_shards = ShardsHere.total

    def total_of_shards(self: ShardsHere, known_as: int, calls: Any, told: bool = False) -> ExactSum:
        late = dict(list(calls.items())[:1])
        return of_shards(self, known_as, calls).plus(of_shards(self, known_as, late))

    patch.setattr(ShardsHere, "total", total_of_shards)


def from_the_other_end(patch: pytest.MonkeyPatch) -> None:
    """Parts are told who is drawn by positions that they count from the other end."""
    sound = parts.shares_of_parts

    def shares(draw: Any, ranges: Any) -> Any:
        found = sound(draw, ranges)
        return [stop - 1 - start - share for share, (start, stop) in zip(found, ranges, strict=True)]

    for module in ("engine.parts", "engine.on_ray.engine"):
        patch.setattr(f"privopt.{module}.shares_of_parts", shares)


def everybody(patch: pytest.MonkeyPatch) -> None:
    """A part that is told who is drawn sums over all of its own."""
    sound = InProcessEngine.part_sum
    patch.setattr(InProcessEngine, "part_sum", lambda self, query, draw=None: sound(self, query, None))


OF_ALL = [
    unclipped,
    in_two_parts,
    in_no_part,
    norms_of_others,
    no_carry,
    half_of_the_digits,
    twice,
    from_the_other_end,
    everybody,
]


# What one of them has ------------------------------------------------------------------------------------------------


def other_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows are read from the spool one place too far; what belongs to them is not."""
    sound = Spool.keep

    def keep(self: Spool, private_values: Any) -> Any:
        return sound(
            self, np.roll(private_values, 1, axis=0) if np.ndim(private_values) == 2 else private_values
        )

    patch.setattr(Spool, "keep", keep)


def no_steps(patch: pytest.MonkeyPatch) -> None:
    """A shard answers on what it has read, whatever was made of it."""
    sound = Shard.answer
    patch.setattr(
        Shard,
        "answer",
        lambda self, preparation, known_as, question, draws: sound(self, preparation, 0, question, draws),
    )


def first_numbers(patch: pytest.MonkeyPatch) -> None:
    """A shard keeps queries by their form, and with the numbers that came first."""
    sound = Shard._query
    kept: dict[tuple[int, bytes], Any] = {}
    patch.setattr(
        Shard,
        "_query",
        lambda self, question: kept.setdefault((id(self), question.form), sound(self, question)),
    )


def without_the_rest(patch: pytest.MonkeyPatch) -> None:
    """A shard answers for the first of its parts that are asked."""
    sound = Shard.answer
    patch.setattr(
        Shard,
        "answer",
        lambda self, preparation, known_as, question, draws: sound(
            self, preparation, known_as, question, dict(list(draws.items())[:1])
        ),
    )


def of_the_first_worker(patch: pytest.MonkeyPatch) -> None:
    """The sum is one worker's."""
    patch.setattr("privopt.engine.on_ray.fleet.total_of", lambda private_sums: private_sums[0])


def last_units(patch: pytest.MonkeyPatch) -> None:
    """A shard puts the last of its units into a block, as many as belong there."""
    sound = Chosen.applied

    def applied(self: Chosen, part: int, units: Units) -> Units:
        places, _, count, first = self.private_shares[part]
        chosen = GivenPlaces(np.arange(count - len(places), count))
        return sound(Chosen(self.size, {part: (chosen, 0, count, first)}), part, units)

    patch.setattr(Chosen, "applied", applied)


OF_ONE = [
    ("shards", last_units),
    ("streamed", other_rows),
    ("shards", no_steps),
    ("shards", first_numbers),
    ("shards", without_the_rest),
    ("shards", of_the_first_worker),
]


@pytest.mark.later(
    "shards-everybody",
    "shards-first_numbers",
    "shards-from_the_other_end",
    "shards-half_of_the_digits",
    "shards-in_no_part",
    "shards-in_two_parts",
    "shards-last_units",
    "shards-no_carry",
    "shards-no_steps",
    "shards-norms_of_others",
    "shards-twice",
)
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("place", "mistake"),
    [*((place, mistake) for mistake in OF_ALL for place in ("in memory", "shards")), *OF_ONE],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_mistake_is_seen(
    place: str, mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: Any
) -> None:
    mistake(monkeypatch)
    with pytest.raises(ContractViolation, match=r"disagree|understated|leaked|raise or warn") as raised:
        check_engine(
            makers(tmp_path)[place], queries=[QUERY, moved_on(D)], relations=["replace-one"], pairs=3
        )
    # Vectors of overlapping parts are more than there is room for, which is an error of its own.
    assert raised.value.rule in (Rule.PATHS, Rule.SENSITIVITY, Rule.COUNT, Rule.QUIET)
    evidence("mutants", f"{place}: {mistake.__doc__}", tried=1, of="mistakes")


def test_an_order_that_shows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of parts in floating point are near, so that no bound is broken; their bits tell who answered first."""
    rows = np.random.default_rng(0).normal(size=(15, D))
    units = Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=2.0)

    def bits() -> set[bytes]:
        engines = [sharded(units, workers=8, backwards=way) for way in (False, True)]
        return {engine.clipped_sum(QUERY).tobytes() for engine in engines}

    assert len(bits()) == 1
    monkeypatch.setattr(ExactSum, "value", lambda self, radius: self.plain)
    assert len(bits()) == 2
