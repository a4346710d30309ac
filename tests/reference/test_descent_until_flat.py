from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.descent_until_flat import DescentUntilFlat
from tests.reference.promises import (
    NO_PRIVACY,
    assert_rehearses,
    assert_replays,
    assert_tight,
    hostile_rows,
    largest_move,
    solve,
)

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, PureEvent, Repeated, Sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import AboveThreshold
from privopt.problems import losses
from privopt.queries.slopes import GradientNorm

N, D = 400, 3
TEST = AboveThreshold(0.1, *AboveThreshold.best_split(2.0), reversed=True)
SOLVER = DescentUntilFlat(
    loss=losses.squared, steps=30, step_size=1.0, clip=1.0, test=TEST, noise=Gaussian(20.0)
)
SILENT = replace(
    SOLVER, test=AboveThreshold(0.1, np.inf, np.inf, reversed=True), noise=Gaussian(0.0), clip=10.0
)


def arrays():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(N, D))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    return rows, np.clip(rows @ [0.8, -0.4, 0.2], -1, 1)


def as_units(rows, targets):
    return Units.from_arrays(rows, targets, row_bound=1.0)


def program(solver):
    return lambda curator: solver.solve(curator, jnp.zeros(D, jnp.float64))


def answers(result):
    return [bool(r.released[0]) for r in result.transcript if r.name == "AboveThreshold.answer"]


def test_without_noise_it_stops_where_the_gradient_first_falls_below():
    rows, targets = arrays()
    w, steps = np.zeros(D), 0
    while np.linalg.norm(gradient := rows.T @ (rows @ w - targets) / N) >= 0.1:
        w, steps = w - gradient, steps + 1
    result = solve(
        program(SILENT),
        as_units(rows, targets),
        plan=SILENT.event(as_units(rows, targets).public),
        budget=NO_PRIVACY,
    )
    assert 0 < steps < 30
    assert answers(result) == [False] * steps + [True]
    np.testing.assert_allclose(result.params, w, atol=1e-6)


def test_replay_and_price():
    units = as_units(*arrays())
    plan = SOLVER.event(units.public)
    result = solve(program(SOLVER), units, plan=plan)
    assert_replays(program(SOLVER), result, units.public)
    assert_rehearses(program(SOLVER), plan, units.public)
    asked = answers(result)
    assert asked == [False] * (len(asked) - 1) + [True]
    # The stream once, however many answers it gave, and the gradients that were released.
    spent = Sequence((PureEvent(2.0), Repeated(GaussianEvent(20.0), len(asked) - 1)))
    assert result.transcript.epsilon(1e-5) == pytest.approx(accounting.epsilon(spent, 1e-5, "replace-one"))


def test_under_a_filter_the_stream_is_charged_once():
    units = as_units(*arrays())
    ledger = Ledger(Budget(20.0, 1e-5), "replace-one", composition="zcdp")
    result = program(SOLVER)(LocalCurator(units, ledger, noise=NoiseSource(3)))
    releases = len(answers(result)) - 1
    assert ledger.spent == pytest.approx(2.0**2 / 2 + releases / (2 * 20.0**2))
    again = Ledger(Budget(20.0, 1e-5), "replace-one", composition="zcdp")
    assert_replays(program(SOLVER), result, units.public, again)
    assert again.spent == ledger.spent


def test_a_stream_gives_no_answer_after_its_hit():
    units = as_units(*arrays())
    curator = LocalCurator(units, Ledger(NO_PRIVACY, "replace-one"))
    stream = curator.stream("norms", AboveThreshold(1e3, np.inf, np.inf, reversed=True))
    norm = GradientNorm(loss=losses.squared, at=jnp.zeros(D, jnp.float64), clip=1.0)
    assert stream.ask("answer", norm)
    with pytest.raises(RuntimeError, match="stopped at its first hit"):
        stream.ask("answer", norm)


@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_record_moves_a_norm_or_a_gradient_by_more_than_its_sensitivity(kind):
    rows, targets = arrays()
    other = rows.copy()
    other[3] = hostile_rows(other[5])[kind]
    left, right = as_units(rows, targets), as_units(other, targets)
    assert largest_move(program(SOLVER), left, right, plan=SOLVER.event(left.public)) <= 1.0


def test_the_audit_notices_an_understated_sensitivity():
    rows = np.tile([0.6, 0.0, 0.8], (N, 1))
    other = rows.copy()
    other[7] *= -1.0
    left, right = (as_units(x, np.full(N, 5.0)) for x in (rows, other))
    assert_tight(program(SOLVER), left, right, plan=SOLVER.event(left.public))
