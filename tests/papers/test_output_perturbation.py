"""Output perturbation: its sensitivities, attacked by neighbours, and the optimum without noise."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.places import Stretch
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.output_perturbation import OutputPerturbation
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, NoRegulariser, Ridge
from privopt.proofs.contraction import geometric_sum, largest_step
from privopt.public import Public, Relation
from privopt.queries.minimisers import DescentEnd, HuberisedMinimiser

RELATIONS = ("replace-one", "add-or-remove-one")
BUDGET = Budget(1.0, 1e-6)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def stored(rows, targets, relation="replace-one"):
    return Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=len(rows), storage="float64")


def solved(units, problem, solver, budget=BUDGET):
    solver = solver.configure(Instance(problem, units.public, budget))
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), problem)


def moved(left, right, query):
    """How far the value moved, over its sensitivity."""
    ledger = Ledger(Budget(1e6, 1e-6), left.public.relation)
    curator = Audit(left, right, ledger, noise=NoiseSource(3))
    curator.release(query, Gaussian(1.0))
    ((_, ratio),) = curator.moves
    return ratio


@pytest.mark.parametrize(
    ("ridge", "relation", "expected"),
    [(0.01, "replace-one", 0.1563869249305184), (0.0, "add-or-remove-one", 0.15)],
)
def test_the_stability_of_descent_has_its_reference_values(ridge, relation, expected):
    """C = 1, n = 1000, eta = 3, T = 50."""
    public = Public(n=1000, d=1, relation=Relation.parse(relation))
    query = DescentEnd(
        problem=Problem(losses.logistic, Ridge(ridge)), clip=1.0, start=jnp.zeros(1), step_size=3.0, steps=50
    )
    assert query.sensitivity(public) == pytest.approx(expected, rel=3e-9)  # and the rounding of 50 steps


@pytest.mark.parametrize("shrink", [0.0, 1e-12, 0.3, 1.0])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_geometric_sum_is_a_sum(shrink, steps):
    assert geometric_sum(shrink, steps) == pytest.approx(sum((1 - shrink) ** k for k in range(steps)))


@pytest.mark.at_once("problem2-replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(losses.logistic, Ridge(0.05)),
        Problem(losses.squared, Ridge(0.5)),
        Problem(losses.huber(0.5), L1(0.02)),
        Problem(losses.smoothed_hinge(0.2), NoRegulariser(), L2Ball(0.7)),
        Problem(losses.squared, Ridge(0.1), Box(-0.2, 0.4)),
    ],
)
def test_no_neighbour_moves_the_end_of_the_descent_too_far(problem, relation):
    worst = 0.0
    for seed in range(12):
        left, right = neighbours(seed, relation)
        for steps, slower in ((1, 1.0), (5, 1.0), (40, 0.4)):
            query = DescentEnd(
                problem=problem,
                clip=0.4,
                start=jnp.zeros(3),
                step_size=slower * largest_step(problem, left.public),
                steps=steps,
            )
            worst = max(worst, moved(left, right, query))
    assert 0.99 < worst <= 1.0


@pytest.mark.parametrize("count", [31, 37, 45, 60])
@pytest.mark.parametrize(("step_size", "steps"), [(4.0, 1), (7.9, 1), (2.0, 5)])
def test_one_more_record_in_a_block_that_drew_more_than_its_size_moves_the_descent_no_further(
    count, step_size, steps
):
    """The others pull one way, and the mean is over all of them: one that pulls the other way counts twice."""
    targets = np.append(np.ones(count), -1.0)
    data = [
        Units.from_arrays(
            np.ones((size, 1)), targets[:size], relation="add-or-remove-one", row_bound=1.0, n=90
        )
        for size in (count, count + 1)
    ]
    left, right = (units.subset(Stretch(0, count + 1), 30) for units in data)
    query = DescentEnd(
        problem=Problem(losses.logistic), clip=0.5, start=jnp.zeros(1), step_size=step_size, steps=steps
    )
    assert moved(left, right, query) <= 1.0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("ridge", [0.1, 1.0])
def test_no_neighbour_moves_the_minimiser_too_far(relation, ridge):
    worst = 0.0
    for seed in range(12):
        left, right = neighbours(seed, relation)
        query = HuberisedMinimiser(problem=Problem(losses.squared), clip=0.1, ridge=ridge)
        worst = max(worst, moved(left, right, query))
    assert 0.99 < worst <= 1.0


def neighbours(seed, relation):
    """Twelve records with slopes of every size; one is turned, replaced by something hostile, or not there."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(12, 3)) * (1.0 if seed % 2 else 0.01)
    targets = np.sign(draw.normal(size=12))
    rows[4] = 5.0 * draw.normal(size=3)  # clipped to the row bound
    other = rows.copy()
    other[4] = -rows[4] if seed % 3 else draw.choice([1e30, 0.0, np.nan]) * np.ones(3)
    if relation == "add-or-remove-one":
        other[4] = np.nan  # an absent record is a zero row
    return stored(rows, targets, relation), stored(other, targets, relation)


def test_a_step_size_without_the_ridge_in_the_smoothness_is_refused_because_it_expands():
    """At 2 / L1 the map is no contraction: one record moves the end by more than the formula's limit, mu = 0."""
    problem, steps = Problem(losses.squared, Ridge(2.0)), 30
    left, right = (stored(np.ones((2, 1)), np.array([0.0, target])) for target in (0.0, 9.0))
    wrong = 2.0 / losses.squared.curvature
    query = DescentEnd(problem=problem, clip=1.0, start=jnp.zeros(1), step_size=wrong, steps=steps)
    ends = [
        query.value(
            side.public, query.objective(side.public).over(side.private_features, side.private_targets)
        )
        for side in (left, right)
    ]
    assert np.linalg.norm(ends[0] - ends[1]) > 100.0 * 2.0 * wrong / 2 * steps
    with pytest.raises(ValueError, match=r"at most 2 / \(L \+ mu\)"):
        query.sensitivity(left.public)


def test_an_unregularised_minimiser_is_refused():
    query = HuberisedMinimiser(problem=Problem(losses.logistic), clip=1.0, ridge=0.0)
    with pytest.raises(ValueError, match="needs a ridge on every coordinate"):
        query.sensitivity(Public(n=10, d=2))


def test_users_are_refused():
    rows, targets = np.ones((6, 2)), np.ones(6)
    units = Units.from_arrays(rows, targets, groups=np.arange(6) // 2, row_bound=1.0)
    problem = Problem(losses.logistic, Ridge(0.1))
    assert "a unit is a user" in OutputPerturbation().applicable(problem, units.public)
    curator = LocalCurator(units, Ledger(Budget(1e6, 1e-6), "replace-one"))
    with pytest.raises(ValueError, match="which user owns them"):
        curator.release(HuberisedMinimiser(problem=problem, clip=1.0, ridge=0.1), Gaussian(1.0))


@pytest.mark.parametrize("form", ["steps", "minimiser"])
@pytest.mark.parametrize("targets", [np.sign(np.arange(30) - 14.5), np.full(30, 1e300), np.full(30, np.nan)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, np.inf])
def test_nothing_about_the_data_raises(form, targets, scale):
    rows = np.random.default_rng(1).normal(size=(30, 3)) * scale
    for loss in (losses.logistic, losses.squared):
        result = solved(stored(rows, targets), Problem(loss, Ridge(0.1)), OutputPerturbation(form=form))
        assert np.all(np.isfinite(result.params))


@pytest.mark.parametrize("form", ["steps", "minimiser"])
def test_without_noise_it_is_the_minimiser(form):
    units = stored(*reference_arrays())
    found = solved(
        units, Problem(losses.logistic, Ridge(0.1)), OutputPerturbation(form=form), Budget(math.inf, 1e-6)
    )
    np.testing.assert_allclose(
        found.params, [-0.0559294056, -0.2324524522, -0.2996494784], atol=1e-7 if form == "steps" else 1e-10
    )


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match=r"one of \['steps', 'minimiser'\], got 'sgd'"):
        OutputPerturbation(form="sgd")


def test_what_is_given_is_kept_and_the_rest_is_derived():
    problem, public = Problem(losses.logistic, Ridge(0.1)), Public(n=1000, d=5)
    solver = OutputPerturbation(steps=9, clip=0.3).configure(Instance(problem, public, BUDGET))
    assert (solver.steps, solver.clip) == (9, 0.3)
    assert solver.step_size == pytest.approx(2.0 / (0.25 + 0.2))
    assert replace(solver, noise_multiplier=None).configure(Instance(problem, public, BUDGET)) == solver
    assert solver.forecast(Instance(problem, public, BUDGET)).excess > 0
