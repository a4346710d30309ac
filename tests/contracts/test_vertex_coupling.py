"""Minimisers that draw vertices, on neighbours with the same draws: their hidden scores move within what is charged."""

import numpy as np
import pytest
from tests.contracts.cases import EVERY_CASE as CASES
from tests.contracts.cases import N, as_units, toy_arrays

from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.planning.instance import Instance
from privopt.solvers.vertex_solver import VertexSolver

DRAWN = [case for case in CASES if isinstance(case.solver, VertexSolver)]
OTHERS = {
    "opposite": lambda features, targets: (-1e6 * features, targets),
    "not a number": lambda features, targets: (np.full_like(features, np.nan), targets),
    "huge": lambda features, targets: (np.full_like(features, 1e300), -targets),
}


def watched(case, units, monkeypatch, forced=None):
    """The logits of every step, what was drawn, and the stream; drawn is what `forced` says if it is given."""
    logits, drawn, streams = [], [], []
    original = VertexStream.draw

    def draw(self, state, noise):
        private_logits = np.asarray(self._logits(state, state.drawn)).copy()
        indices = original(self, state, noise)
        logits.append(private_logits)
        drawn.append(indices if forced is None else forced[len(drawn)])
        streams.append(self)
        return drawn[-1]

    solver = case.solver.configure(Instance(case.problem, units.public, Budget(50.0, 1e-5)))
    ledger = Ledger(Budget(1e6, 1e-5), units.public.relation, plan=solver.event(units.public))
    with monkeypatch.context() as patch:
        patch.setattr(VertexStream, "draw", draw)
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(5)), case.problem)
    return np.asarray(logits), drawn, streams[0], np.asarray(result.params)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "relation", ["replace-one", pytest.param("add-or-remove-one", marks=pytest.mark.audit)]
)
@pytest.mark.parametrize("case", DRAWN, ids=[case.name for case in DRAWN])
def test_scores_move_by_no_more_than_the_declared_range(case, relation, other, monkeypatch):
    features, targets = toy_arrays(case)
    replaced, turned = features.copy(), targets.copy()
    replaced[-1], turned[-1] = OTHERS[other](features[-1], targets[-1])
    kept = N if relation == "replace-one" else N - (2 if case.by_user else 1)
    left = as_units(features[:kept], targets[:kept], relation, by_user=case.by_user)
    right = as_units(replaced, turned, relation, by_user=case.by_user)
    one, drawn, stream, params = watched(case, left, monkeypatch)
    two, _, _, again = watched(case, right, monkeypatch, drawn)
    np.testing.assert_array_equal(params, again)  # a function of what was drawn
    moved = np.ptp(one - two, axis=1)
    bounds = np.asarray([stream.range_bounds(pattern) for pattern in stream.participation])
    within = np.all(moved[None, :] <= bounds * (1.0 + 1e-9), axis=1)
    assert within.any()  # the range of the items that the unit is in
    # Nothing moves before the first item that the unit is in.
    first = np.argmax(moved > 1e-9 * bounds.max()) if moved.max() > 0 else 0
    assert np.all(moved[:first] <= bounds[:, :first].min(axis=0, initial=np.inf) + 1e-9 * bounds.max())
    if other == "opposite" and relation == "replace-one" and not case.by_user:
        assert moved.max() >= 0.05 * bounds.max()  # the record is one that shows
