"""How often private certificates hold, and how far they are from what they certify: 200 runs on one data set."""

import numpy as np
import pytest

from privopt import Budget, Problem, Units, losses
from privopt.curator.local import LocalCurator
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.goldstein_certificate import free_certificate
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.solvers import O2NC

N, D, RUNS = 20_000, 10, 200
BUDGET = Budget(1.0, 1e-6)


class Watched(LocalCurator):
    """A curator that remembers the last query, for a look at its true answer."""

    def release(self, query, *arguments, **named):
        self.asked = query
        return super().release(query, *arguments, **named)


def labelled_records():
    """Records of length 1 whose labels follow a direction with noise; a tenth of them is plainly wrong."""
    rng = np.random.default_rng(0)
    direction, rows = rng.normal(size=D), rng.normal(size=(N, D))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.sign(rows @ direction + 0.3 * rng.normal(size=N))
    return rows, np.where(rng.random(N) < 0.1, -labels, labels)


@pytest.mark.audit
def test_certificates_hold_as_often_as_they_say_and_are_close():
    rows, labels = labelled_records()
    units, problem = Units.from_arrays(rows, labels, row_bound=1.0), Problem(losses.ramp())
    true, released, free = [], [], []
    with double_precision():
        solver = O2NC(oracle="gradients", certificate_share=0.1).configure(
            Instance(problem, units.public, BUDGET)
        )
        engine = InProcessEngine(units)
        for seed in range(RUNS):
            ledger = Ledger(BUDGET, units.public.relation, plan=solver.event(units.public))
            curator = Watched(units, ledger, noise=NoiseSource(1000 + seed))
            found = solver.solve(curator, problem).findings
            released.append(float(found["certificate"].value))
            true.append(np.linalg.norm(engine.clipped_sum(curator.asked) / N))
            count = len(curator.asked.points)
            steps = [one for one in curator.transcript if one.name == "ClippedGradient"][-count:]
            mean = np.mean([np.asarray(one.released[0]) for one in steps], axis=0)
            free.append(free_certificate(mean, [float(one.scale[0]) for one in steps]))
    true, released, free = map(np.asarray, (true, released, free))
    assert 0.93 <= np.mean(released >= true) <= 0.99
    assert 0.93 <= np.mean(free >= true) <= 1.0
    assert np.median(released) <= 2.5 * np.median(true)
    assert np.median(released) < np.median(free)
