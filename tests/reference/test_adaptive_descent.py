import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.formula_noise import FormulaNoise
from tests.plain_logistic import PlainLogistic
from tests.reference.adaptive_descent import AdaptiveDescent
from tests.reference.promises import assert_replays, assert_tight, hostile_rows, largest_move

from privopt.curator import Curator
from privopt.data import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.result import Status

N, D, RHO, DELTA = 12, 3, 2.0, 1e-6
SOLVER = AdaptiveDescent(loss=PlainLogistic(), clip=1.0, step_size=4.0, most_steps=8, ratio=2.0, window=10)
LONG = replace(SOLVER, most_steps=3000, ratio=0.5)
FILTER = {"composition": "gaussian", "budget": Budget(gaussian_epsilon(math.sqrt(2 * RHO), DELTA), DELTA)}


def arrays():
    i, j = np.arange(N)[:, None], np.arange(D)[None, :]
    return np.sin(1 + i + 2 * j) / math.sqrt(3), np.where(np.arange(N) % 3 == 0, 1.0, -1.0)


def as_units(rows, targets):
    return Units.from_arrays(rows, targets, row_bound=1.0)


def ledger():
    return Ledger(FILTER["budget"], "replace-one", composition="gaussian")


def program(solver):
    return lambda door: solver.solve(door, jnp.zeros(D, jnp.float64))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (lambda k, shape: np.zeros(shape), [0.16419841554, -0.015168110024, -0.15157409354]),
        (lambda k, shape: np.cos(1 + 2 * k + 3 * np.arange(D)), [1.1592277823, -0.40669877016, 0.4092131682]),
    ],
    ids=["no noise", "formula noise"],
)
def test_iterates_and_spending_have_their_reference_values(formula, expected):
    book = ledger()
    assert book.remaining == pytest.approx(RHO, rel=1e-9)
    result = program(SOLVER)(Curator(as_units(*arrays()), book, noise=FormulaNoise(formula)))
    # The rows are stored in float32.
    np.testing.assert_allclose(result.params, expected, atol=1e-6)
    assert result.status is Status.FINISHED
    assert book.spent / RHO == pytest.approx(0.1158142513, rel=1e-6)


def test_it_stops_when_the_budget_is_spent_and_replays_under_a_fresh_ledger():
    book = ledger()
    result = program(LONG)(Curator(as_units(*arrays()), book, noise=NoiseSource(3)))
    assert result.status is Status.BUDGET_SPENT
    assert 1 < len(result.transcript) < 3000
    assert book.spent <= RHO * (1 + 1e-9)
    assert book.remaining <= 1e-9 * RHO  # the last step took what was left
    assert_replays(program(LONG), result, as_units(*arrays()).public, ledger())


def test_the_transcript_costs_what_the_ledger_says_was_spent():
    book = ledger()
    result = program(LONG)(Curator(as_units(*arrays()), book, noise=NoiseSource(3)))
    assert result.transcript.epsilon(DELTA) == pytest.approx(book.spent_epsilon(DELTA), rel=1e-9)
    assert result.transcript.epsilon(DELTA) <= FILTER["budget"].epsilon * (1 + 1e-9)


@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_record_moves_a_gradient_by_more_than_its_sensitivity(kind):
    rows, targets = arrays()
    other = rows.copy()
    other[3] = hostile_rows(other[5])[kind]
    left, right = as_units(rows, targets), as_units(other, targets)
    assert largest_move(program(SOLVER), left, right, **FILTER) <= 1.0


def test_the_audit_notices_an_understated_sensitivity():
    rows = np.tile([0.6, 0.0, 0.8], (N, 1))
    other = rows.copy()
    other[2] *= -1.0
    left, right = (as_units(x, np.ones(N)) for x in (rows, other))
    assert_tight(program(replace(SOLVER, clip=0.2)), left, right, **FILTER)
