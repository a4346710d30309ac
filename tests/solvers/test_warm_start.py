"""A start that is chosen privately among public points: what is chosen, what it costs, and where there is none."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import BoundedRangeEvent
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.values import CandidateValues
from privopt.solve import minimize, plan
from privopt.solvers import warm_start as planning
from privopt.solvers.o2nc import O2NC
from privopt.solvers.warm_start import WarmStart

RELATIONS = [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE]
BUDGET = Budget(1.0, 1e-6)
VALLEY = np.array([0.7, -0.6])


def two_valleys(params, features, target):
    """A deep valley far from 0 and a shallow one at 0, which descent from there does not leave."""
    deep = jnp.sum((params - jnp.asarray(VALLEY)) ** 2)
    return jnp.minimum(4.0 * jnp.sum(params**2) + 0.5, 4.0 * deep) + 0.0 * target * features[0]


def box(loss=two_valleys, p=2, **options):
    made = BlackBox(loss, value_range=(0.0, 4.0), scale=1.0, host=False, **options)
    return Problem.of_values(made, np.zeros(p))


def units_of(n=400, relation="replace-one", seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, 2))
    return Units.from_arrays(rows, np.zeros(n), row_bound=3.0, relation=relation, n=n)


def descent(**others):
    return O2NC(clip=1.0, distance=0.2, smoothing=0.05, **{"steps": 8, "window": 4, **others})


@pytest.mark.later("Relation.REPLACE_ONE")
@pytest.mark.parametrize("relation", RELATIONS)
def test_it_finds_the_valley_that_descent_does_not(relation):
    units = units_of(relation=relation)
    result = minimize(box(warm_start=256), units, budget=BUDGET, solver=descent(), random_state=1)
    assert np.linalg.norm(np.asarray(result.params) - VALLEY) < 0.3
    assert 0.998 <= result.transcript.epsilon(1e-6) <= 1.0
    plain = minimize(box(), units, budget=BUDGET, solver=descent(), random_state=1)
    assert np.linalg.norm(plain.params) < 0.3


def test_the_choice_has_a_fifth_of_rho():
    public = Public(n=400, d=2)
    solver = WarmStart(inner=descent()).configure(Instance(box(), public, BUDGET))
    choice = solver.event(public).events[0]
    assert isinstance(choice, BoundedRangeEvent)
    by_rest = 8 * 0.5 / solver.inner.noise_multiplier**2
    by_choice = choice.epsilon**2 / 8.0
    assert by_choice / (by_choice + by_rest) == pytest.approx(0.2, rel=1e-3)


def test_without_privacy_the_best_candidate_is_taken():
    result = minimize(box(warm_start=512), units_of(), budget=Budget(math.inf, 0.0), solver=descent(steps=0))
    assert np.linalg.norm(np.asarray(result.params) - VALLEY) < 0.1


def test_more_than_four_parameters_and_losses_that_are_no_black_box_are_refused():
    with pytest.raises(ValueError, match="next to nothing about a box in 5 parameters"):
        plan(
            box(lambda params, features, target: params[0], p=5, warm_start=64),
            n=100,
            d=5,
            epsilon=1.0,
            delta=1e-6,
        )
    with pytest.raises(ValueError, match="a warm start is for a black box"):
        plan(losses.logistic, n=100, d=2, epsilon=1.0, delta=1e-6, solver=WarmStart())
    for few in (1, -1, 2.0, True):
        with pytest.raises(ValueError, match="warm_start must be 0 or a whole number of at least 2"):
            box(warm_start=few)
    assert box() != box(warm_start=8)


def test_every_solver_of_a_plan_begins_warm_and_the_default_fits_its_budget():
    plans = plan(box(warm_start=64), n=400, d=2, epsilon=1.0, delta=1e-6)
    assert plans.default.solver == "privately clipped o2nc from a warm start"
    assert [other.solver for other in plans.plans[1:]] == ["o2nc from a warm start"]
    result = minimize(box(warm_start=64), units_of(), budget=BUDGET, random_state=1)
    names = [release.name for release in result.transcript]
    assert names.index("CandidateValues") < names.index("ValueNormCounts") < names.index("ValueGradient")
    assert 0.998 <= result.transcript.epsilon(1e-6) <= 1.0


def test_candidates_are_spread_over_the_box_and_hold_the_start():
    centre = np.array([3.0, -1.0, 0.0])
    points = planning.candidates(centre, 2.0, 1000, 7)
    assert points.shape == (1000, 3)
    assert np.array_equal(points[0], centre)
    assert np.abs(points - centre).max() <= 2.0
    assert np.allclose(np.mean(points, axis=0), centre, atol=0.02)
    assert np.array_equal(points, planning.candidates(centre, 2.0, 1000, 7))


def odd_values(params, features, target):
    first = round(float(features[0]), 3)
    if first == 0.1:
        raise RuntimeError
    if first == 0.2:
        return np.nan if params[0] > 0 else np.inf
    if first == 0.3:
        return -1e300 * params[0]
    return float(features @ params)


CANDIDATES = np.array([[0.0, 0.0], [5.0, 0.0], [-5.0, 0.3], [0.1, 4.0]])
BOX = Problem.of_values(BlackBox(odd_values, value_range=(5.0, 12.0), scale=1.0), np.zeros(2)).loss


def scores(loss=BOX, low=5.0, high=12.0):
    return CandidateValues(loss=loss, candidates=CANDIDATES, low=low, high=high)


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def of_rows(rows, relation="replace-one", **others):
    return Units.from_arrays(
        np.asarray(rows), np.zeros(len(rows)), row_bound=20.0, relation=relation, **others
    )


def test_scores_are_minus_mean_values_up_to_a_constant_and_bad_ones_count_as_the_worst():
    rows = np.array([[1.0, 2.0], [0.1, 5.0], [0.2, 1.0], [0.3, 2.0]])
    expected = []
    for row, point in itertools.product(rows, CANDIDATES):
        try:
            value = odd_values(point, np.float32(row).astype(float), 0.0)
        except RuntimeError:
            value = math.nan
        expected.append(np.clip(value, 5.0, 12.0) if not math.isnan(value) else 12.0)
    mean = np.reshape(expected, (4, 4)).mean(axis=0)
    for engine in (InProcessEngine, ReferenceEngine):
        found = engine(of_rows(rows)).clipped_sum(scores()) / 4
        assert np.allclose(found - found[0], mean[0] - mean, atol=1e-5)


@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "bad", [[0.1, 1.0], [0.2, 0.0], [0.3, 0.0], [20.0, 0.0], [-20.0, 0.0], [np.nan, 1.0]]
)
def test_a_unit_moves_the_scores_by_no_more_than_the_range(relation, bad, users):
    size = 2 if users else 1
    rows = np.tile([20.0, 0.1], (12 * size, 1))
    other = rows.copy()
    other[-size:] = bad
    keep = len(rows) - size if relation is Relation.ADD_OR_REMOVE_ONE else len(rows)
    groups = np.repeat(np.arange(12), size)
    left, right = (
        of_rows(
            X,
            relation,
            n=12,
            **({"groups": groups[: len(X)], "max_records_per_user": 2} if users else {}),
        )
        for X in (rows[:keep], other)
    )
    audit = Audit(left, right, Unlimited(relation))
    audit.release(scores(), ExponentialMechanism(1.0))
    assert audit.moves[0][1] <= 1.0
    if bad == [-20.0, 0.0]:  # likes best what the others like least
        assert audit.moves[0][1] > 0.99


def test_losses_that_are_traced_have_scores_too():
    logistic = scores(losses.logistic, 0.0, 3.0)
    rows = np.random.default_rng(1).normal(size=(9, 2))
    units = Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=5.0)
    fast, plain = (kind(units).clipped_sum(logistic) / 9 for kind in (InProcessEngine, ReferenceEngine))
    assert np.allclose(fast, plain, rtol=0, atol=1e-12)
    assert int(np.argmax(plain)) == 1


def test_the_chosen_candidate_is_nearly_the_best():
    units = of_rows(np.tile([-1.0, -2.0], (60, 1)))
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    query = scores(
        Problem.of_values(
            BlackBox(lambda p, f, t: float(f @ p), value_range=(-12.0, 12.0), scale=1.0), np.zeros(2)
        ).loss,
        -12.0,
        12.0,
    )
    chosen = [int(curator.release(query, ExponentialMechanism(20.0))) for _ in range(20)]
    assert np.mean(np.asarray(chosen) == 3) > 0.8
    assert jax.config.read("jax_enable_x64")
