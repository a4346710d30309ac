"""Above 64 workers sums meet in a tree of workers: the bits of one process, also where one is lost in the tree."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

ray = pytest.importorskip("ray")

from ray.exceptions import RayError  # noqa: E402
from tests.support.sharded import ShardsHere, sent  # noqa: E402

from privopt.engine.on_ray import fleet  # noqa: E402
from privopt.engine.on_ray.engine import RayEngine  # noqa: E402
from privopt.engine.on_ray.layout import lay_out  # noqa: E402
from privopt.engine.on_ray.shard import SOURCE  # noqa: E402
from privopt.errors import DataUnavailable  # noqa: E402

RECORDS, D = 130, 3
ABOUT = Description(row_bound=1.5, classes=(0, 1))
QUERY = ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=0.3)


@pytest.fixture(autouse=True)
def _one_record_a_part(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 1)
    monkeypatch.setattr(ray, "wait", lambda answers, **_: (answers, []))
    with double_precision():
        yield


class TreeHere(ShardsHere):
    """Shards in this process whose sums are added up as those of actors are: by each other, where they are many.

    Attributes:
        combined: how many answers each combination was of.
    """

    combined: list[int]
    _patience = 60.0

    def _answers(
        self, known_as: int, calls: Mapping[int, Any], *, fetch: bool, told: bool = False
    ) -> list[Any]:
        if not fetch:
            self.combined = []
            for worker in self.workers:
                worker.actor = _Counted(worker.actor, self.combined)
        return super()._answers(known_as, calls, fetch=True, told=told)


class _Counted:
    def __init__(self, actor: Any, combined: list[int]) -> None:
        self._actor, self._combined = actor, combined

    def __getattr__(self, name: str) -> Any:
        return self if name == "combine" else getattr(self._actor, name)

    def remote(self, *answers: Any) -> Any:
        self._combined.append(len(answers))
        return self._actor.combine.remote(*answers)


def engines(workers: int) -> tuple[RayEngine, TreeHere, bytes]:
    rng = np.random.default_rng(1)
    rows, targets = rng.normal(size=(RECORDS, D)), rng.integers(0, 2, RECORDS)
    source = ArrayRecords(rows, targets)
    layout = lay_out(source, ABOUT, None)
    shards = TreeHere(source, ABOUT, layout, workers=workers, backwards=False)
    ranges = [(plan.first, plan.first + plan.units) for plan in layout.plans]
    expected = InProcessEngine(Units.from_arrays(rows, targets, **ABOUT.arguments())).clipped_sum(QUERY)
    engine = RayEngine(shards, layout.public, SOURCE, ranges, layout.seeded, None)
    return engine, shards, expected.tobytes()


@pytest.mark.parametrize(("workers", "combined"), [(65, [64, 1, 2]), (130, [64, 64, 2, 3])])
def test_above_64_workers_a_tree_has_the_bits_of_one_process(
    workers: int, combined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "get", sent)
    engine, shards, expected = engines(workers)
    assert engine.clipped_sum(QUERY).tobytes() == expected
    assert shards.combined == combined


def test_up_to_64_workers_the_driver_adds_up_itself() -> None:
    engine, shards, expected = engines(fleet._BRANCHES)
    assert engine.clipped_sum(QUERY).tobytes() == expected
    assert not hasattr(shards, "combined")


def test_where_one_is_lost_in_the_tree_all_are_asked_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(answer: Any) -> Any:
        raise RayError

    monkeypatch.setattr(ray, "get", lost)
    engine, _, expected = engines(65)
    assert engine.clipped_sum(QUERY).tobytes() == expected


def test_where_the_tree_does_not_answer_in_time_all_are_asked_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "wait", lambda answers, **_: ([], answers))
    engine, shards, expected = engines(65)
    shards._patience = 0.1
    assert engine.clipped_sum(QUERY).tobytes() == expected


def test_where_the_cluster_breaks_under_the_tree_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray itself does, which may even end this process."""
    monkeypatch.setattr(ray, "wait", lambda answers, **_: ([], answers))
    monkeypatch.setattr(ray, "get", lambda *_, **__: pytest.fail("Ray was waited for"))
    engine, shards, _ = engines(65)
    shards.cluster.lost = "our cluster has lost a process"  # type: ignore[misc]
    with pytest.raises(
        DataUnavailable, match="our cluster has lost a process: the records cannot be computed"
    ):
        engine.clipped_sum(QUERY)
