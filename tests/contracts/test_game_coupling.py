"""Solvers of games that draw vertices, on neighbours with the same draws: hidden scores move within what is charged."""

import numpy as np
import pytest
from tests.contracts.game_cases import EVERY_GAME, RELATIONS, as_units, neighbours, toy_rows

from privopt.curator.local import LocalCurator
from privopt.games.moves import Noised
from privopt.ledger.amounts import Budget
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame

OTHERS = {
    "opposite": lambda row: -1e6 * row,
    "not a number": lambda row: np.full_like(row, np.nan),
    "huge": lambda row: np.full_like(row, 1e300),
}
_MEANWHILE = Budget(20.0, 1e-5)


def draws_only(case):
    """Whether draws are all that is released of either player's gradients, and there are some."""
    public = as_units(case, *toy_rows(case), "replace-one").public
    solver = case.solver.configure(Task(case.game, public, _MEANWHILE))
    noised = [isinstance(getattr(solver, who, None), Noised) for who in ("x", "y")]
    return not any(noised) and "exponential-mechanism selections" in solver.event(public).describe()


DRAWN = [case for case in EVERY_GAME if draws_only(case)]
# Payoffs that are compiled take longer.
QUICK = {case.name for case in DRAWN if isinstance(case.game, BilinearGame)}
PAIRS = [
    pytest.param(
        case,
        relation,
        marks=[] if case.name in QUICK and relation == RELATIONS[place % 2] else pytest.mark.audit,
        id=f"{case.name}, {relation}",
    )
    for place, case in enumerate(DRAWN)
    for relation in RELATIONS
]


def watched(case, units, monkeypatch, forced=None):
    """By stream, the logits of its steps; and what was drawn, which is as `forced` says if it is given."""
    streams, logits, drawn = [], [], []
    original = VertexStream.draw

    def draw(self, state, noise):
        private_logits = np.asarray(self._logits(state, state.drawn)).copy()
        if not any(one is state for one, _ in streams):
            streams.append((state, self))
            logits.append([])
        place = next(index for index, (one, _) in enumerate(streams) if one is state)
        logits[place].append(private_logits)
        indices = original(self, state, noise)
        drawn.append(indices if forced is None else forced[len(drawn)])
        return drawn[-1]

    solver = case.solver.configure(Task(case.game, units.public, _MEANWHILE))
    curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(5))
    with monkeypatch.context() as patch:
        patch.setattr(VertexStream, "draw", draw)
        result = solver.solve(curator, case.game)
    return [np.asarray(one) for one in logits], drawn, [stream for _, stream in streams], result.params


@pytest.mark.parametrize(("case", "relation"), PAIRS)
def test_scores_move_by_no_more_than_the_declared_range(case, relation, monkeypatch):
    features, targets = toy_rows(case)
    shown, streams = 0.0, []
    for name, other in OTHERS.items():
        left, right = neighbours(case, relation, features, targets, other(features[-1]))
        one, drawn, streams, params = watched(case, left, monkeypatch)
        two, _, _, again = watched(case, right, monkeypatch, drawn)
        chosen = case.solver.name == "boosted-saddle"  # of several runs, by scores that differ
        assert chosen or all(np.array_equal(*pair) for pair in zip(params, again, strict=True))
        touched = 0
        for mine, theirs, stream in zip(one, two, streams, strict=True):
            moved = np.ptp(mine - theirs, axis=1)
            bounds = np.asarray([stream.range_bounds(pattern) for pattern in stream.participation])
            within = np.all(moved[None, :] <= bounds * (1.0 + 1e-9), axis=1)
            assert within.any(), name  # of the items that the unit is in: nothing before the first of them
            assert moved[0] == 0.0
            touched += bool(moved.max() > 1e-9 * bounds.max())
            shown = max(shown, float(moved.max() / bounds.max()))
        if chosen and case.solver.candidates != 1:
            assert touched <= 2  # the streams of both players, of one run at most
    if all(len(stream.participation) == 1 for stream in streams) and not (case.by_user or chosen):
        assert shown > 0.05  # the record is one that shows; of batches, it may be in none
