"""Payoffs of candidates and their gaps: exact where players are linear, and a range that is attained."""

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.precision import double_precision
from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.gaps import nonprivate_gap
from privopt.problems.saddle import BilinearGame, SaddleProblem
from privopt.public import Relation
from privopt.queries.payoffs import CandidateGaps, CandidatePayoffs, PayoffMeans

RELATIONS = ("replace-one", "add-or-remove-one")
WIDE = 100.0


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def gaps(query, rows, relation="replace-one", n=None):
    """Minus the gaps, and what one unit may move them by."""
    units = Units.from_arrays(
        rows, relation=relation, row_bound=1e3, n=len(rows) if n is None else n, storage="float64"
    )
    curator = LocalCurator(units, Unlimited(units.public.relation))
    asked = CandidateGaps(mean=curator.hold_mean(query))
    value = np.asarray(curator.private_value(asked, EveryUnit(), None))
    return value, float(asked.sensitivity(units.public))


def none(count, size):
    return np.zeros((count, 0, size))


@pytest.mark.later("True")
@pytest.mark.parametrize("offsets", [False, True])
def test_gaps_of_a_matrix_game_are_exact(offsets):
    game = BilinearGame(rows=3, columns=4, offsets=offsets)
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (20, game.width))
    x, y = rng.dirichlet(np.ones(3), 5), rng.dirichlet(np.ones(4), 5)
    query = CandidatePayoffs(
        game=game, x=x, y=y, x_answers=none(5, 3), y_answers=none(5, 4), payoff_clip=WIDE
    )
    value, _ = gaps(query, rows)
    exact = [nonprivate_gap(game, rows, None, *pair).low for pair in zip(x, y, strict=True)]
    np.testing.assert_allclose(-value, exact, atol=1e-12)


def test_answers_that_are_given_take_the_place_of_vertices():
    def payoff(x, y, features, target):
        del target
        return (features @ x) ** 2 + x[0] * y[0]

    game = SaddleProblem(payoff, x=L1Ball(1.0), y=Simplex(), sizes=(2, 2), curvatures=(2.0, 0.0))
    rng = np.random.default_rng(1)
    rows, x, y = rng.normal(size=(9, 2)), np.array([[0.5, 0.2]]), np.array([[0.3, 0.7]])
    answers = np.array([[[0.0, 0.0], [-0.5, 0.1]]])
    query = CandidatePayoffs(game=game, x=x, y=y, x_answers=answers, y_answers=none(1, 2), payoff_clip=WIDE)
    value, _ = gaps(query, rows)
    first = max(np.mean((rows @ x[0]) ** 2) + x[0, 0] * end for end in (0.0, 1.0))
    last = min(np.mean((rows @ one) ** 2) + one[0] * 0.3 for one in answers[0])
    assert -value[0] == pytest.approx(first - last, rel=1e-12)


def listed_payoff(x, y, features, target):
    """x^T M y, M a record's four numbers."""
    del target
    return x @ features.reshape(2, 2) @ y


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_stated_range_is_attained(relation):
    """8 B / n under replace-one, 4 B / n under add-or-remove-one: two candidates that move against each other."""
    game = SaddleProblem(listed_payoff, x=Simplex(), y=Simplex(), sizes=(2, 2))
    query = CandidatePayoffs(
        game=game,
        x=np.eye(2),
        y=np.eye(2),
        x_answers=np.eye(2)[:, None],
        y_answers=np.eye(2)[::-1, None],
        payoff_clip=1.0,
    )
    # Row 0 holds f(x_0, e_1) and f(e_0, y_0) = M_01, M_00; row 1 M_10, M_11.
    n, steep = 6, np.array([-1.0, 1.0, -1.0, 1.0])
    left = np.zeros((n, 4))
    left[-1] = steep
    right = left.copy()
    right[-1] = -steep
    sides = (left, right) if relation == "replace-one" else (left, left[:-1])
    (one, stated), (other, _) = (gaps(query, rows, relation, n) for rows in sides)
    moved = np.ptp(one - other)
    assert stated == pytest.approx((8.0 if relation == "replace-one" else 4.0) / n, rel=1e-9)
    assert 0.999999 * stated < moved <= stated


@pytest.mark.parametrize("bad", [np.nan, 1e300, -np.inf])
def test_hopeless_records_count_as_little_as_others(bad):
    game = BilinearGame(rows=2, columns=2)
    query = CandidatePayoffs(
        game=game, x=np.eye(2), y=np.eye(2), x_answers=none(2, 2), y_answers=none(2, 2), payoff_clip=1.0
    )
    rows = np.random.default_rng(2).choice([-1.0, 1.0], (8, 4))
    other = rows.copy()
    other[3] = bad
    (one, stated), (two, _) = gaps(query, rows), gaps(query, other)
    assert np.all(np.isfinite(two))
    assert np.ptp(one - two) <= stated


def test_gaps_of_something_else_that_is_held_are_refused():
    game = BilinearGame(rows=2, columns=2)
    units = Units.from_arrays(np.ones((4, 4)), relation="replace-one", row_bound=3.0)
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    mean = curator.hold_mean(PayoffMeans(game=game))
    with pytest.raises(TypeError, match="is a function of CandidatePayoffs"):
        CandidateGaps(mean=mean).sensitivity(units.public)
