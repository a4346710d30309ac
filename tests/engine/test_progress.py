"""How far a round is: told part after part where the number of parts is public, and nowhere else."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from rich.console import Console

from privopt.commands import screen
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import ROUND, shown_by, tell
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

N, D, SMALL = 100, 2, 32
QUERY = ClippedGradient(loss=losses.logistic, at=np.ones(D), clip=0.3)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
    with double_precision():
        yield


def heard(engine: InProcessEngine, draw: np.ndarray | None = None) -> list[tuple[str, float]]:
    told: list[tuple[str, float]] = []
    with shown_by(lambda what, share: told.append((what, share))):
        engine.clipped_sum(QUERY, draw)
    engine.clipped_sum(QUERY)  # nobody listens any more
    return told


def engine(relation: str = "replace-one", count: int = N) -> InProcessEngine:
    n = N if relation == "replace-one" else N + 5
    return InProcessEngine(
        Units.from_arrays(np.ones((count, D)), np.ones(count), row_bound=1.0, relation=relation, n=n)
    )


def test_every_part_is_told_of_under_replace_one() -> None:
    assert heard(engine()) == [(ROUND, k / 4) for k in (1, 2, 3, 4)]


def test_nothing_is_told_where_the_number_of_parts_is_private() -> None:
    assert heard(engine("add-or-remove-one")) == []
    assert heard(engine(), np.arange(50)) == []  # which parts have drawn units is secret
    units = engine().units
    drawn = dataclasses.replace(units, public=dataclasses.replace(units.public, drawn=True))
    assert heard(InProcessEngine(drawn)) == []


def test_one_part_is_no_share() -> None:
    told: list[float] = []
    with shown_by(lambda _, share: told.append(share)):
        tell(ROUND, 1, 1, engine().public)
    assert told == []


def test_the_bar_says_releases_of_the_plan_and_the_share_of_the_round() -> None:
    terminal = Console(width=120, force_terminal=True, record=True)
    shown: list[str] = []
    with screen.release_bar(terminal, "Fitting", 12) as advance:
        advance("gradient", 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rich.progress.Progress.update", lambda *_, doing, **__: shown.append(doing))
            for part in (1, 2, 4):
                tell(ROUND, part, 4, engine().public)
    assert shown == ["3/12 releases, 25% of the round", "3/12 releases, 50% of the round", "3/12 releases"]
