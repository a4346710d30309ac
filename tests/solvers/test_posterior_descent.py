"""Posterior descent: equal to a plain run of its specification, what it does without signal, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support import posterior_reference

from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.estimators.linear import LogisticRegression
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.queries.moments import pack, unpack
from privopt.solve import minimize, plan
from privopt.solvers.posterior_descent import LEAST_GAIN, PosteriorDescent, evidence, ridge_of
from privopt.solvers.whitening import Whitening
from privopt.status import Status

BUDGET = Budget(1.0, 1e-6)
D = 6


def logistic(strength=1e-2):
    """The last column is free of the ridge."""
    return Problem(losses.logistic, Ridge(strength, weights=(1.0,) * (D - 1) + (0.0,)))


def units(n=2_000, seed=0, relation="replace-one", signal=3.0, **options):
    """Columns of different sizes and a column of ones; many more ones than minus ones."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, D)) * 0.5 ** np.arange(D)
    rows[:, -1] = 1.0
    weights = signal * np.array([1.0, -1.0, 2.0, 0.0, 3.0, 0.5])
    labels = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-rows @ weights)), 1.0, -1.0)
    size = n if relation == "add-or-remove-one" else None
    return Units.from_arrays(rows, labels, **({"row_bound": 2.0, "relation": relation, "n": size} | options))


def by_reference(solver, public, problem, transcript, start=None):
    """The same run by the specification, from what was released."""
    first, *others = transcript
    gradients = np.concatenate([np.asarray(one.released).reshape(-1, D) for one in others])
    rule, inner = solver.rule, solver.inner
    with double_precision():
        moment = np.asarray(unpack(np.asarray(first.released).reshape(-1), D))
    clip = rule.coordinates(moment).clip
    ridge = problem.regulariser
    strengths = np.zeros(D)
    if isinstance(ridge, Ridge):
        strengths = ridge.strength * np.asarray(ridge.weights or (1.0,) * D)
    return posterior_reference.run(
        moment,
        gradients,
        gram_noise=rule.gram_noise,
        floor=rule.floor,
        row_bound=public.row_bound,
        noise=inner.noise_multiplier * public.relation.factor * clip / public.n,
        strengths=strengths,
        constant=inner.constant,
        start=np.zeros(D) if start is None else start,
    )


@pytest.mark.later(
    "problem0-replace-one-1.0-None-None",
    "problem1-add-or-remove-one-0.1-25-None",
    "problem2-replace-one-10.0-40-start2",
)
@pytest.mark.parametrize(
    ("problem", "relation", "epsilon", "steps", "start"),
    [
        (logistic(), "replace-one", 1.0, None, None),
        (logistic(), "add-or-remove-one", 0.1, 25, None),
        (logistic(0.3), "replace-one", 10.0, 40, np.linspace(-1.0, 2.0, D)),
        (Problem(losses.logistic), "replace-one", 0.3, 1, None),
    ],
)
def test_it_equals_the_plain_run_of_its_specification(problem, relation, epsilon, steps, start):
    data, budget = units(relation=relation), Budget(epsilon, 1e-6)
    solver = Whitening(inner=PosteriorDescent(steps=steps, constant=D - 1)).configure(
        Instance(problem, data.public, budget)
    )
    result = minimize(problem, data, budget=budget, solver=solver, start=start, random_state=1)
    params, gain, taus, weights, heat = by_reference(solver, data.public, problem, result.transcript, start)
    np.testing.assert_allclose(result.params, params, atol=5e-7)
    found = result.findings
    np.testing.assert_allclose(found["gain"].value, gain, atol=1e-6)
    np.testing.assert_allclose(np.square(found["tau"].value), taus, rtol=1e-6)
    np.testing.assert_allclose(found["prior_weights"].value, weights, atol=1e-6)
    assert found["heat"].value == pytest.approx(heat)
    assert found["mean_gain"].value == pytest.approx(np.mean(gain))
    assert 0.08 <= found["curvature"].value <= 0.25


def test_on_a_transcript_that_is_made_up_it_equals_the_plain_run_too():
    """Gradients that no data would give, and a second moment that is singular."""
    problem, public = logistic(), units().public
    solver = Whitening(inner=PosteriorDescent(steps=12, constant=D - 1)).configure(
        Instance(problem, public, BUDGET)
    )
    result = minimize(problem, units(), budget=BUDGET, solver=solver, random_state=0)
    moment = np.outer(np.cos(np.arange(D)), np.cos(np.arange(D)))
    made_up = [np.asarray(pack(moment))]
    made_up += [0.2 * np.sin(1.0 + 0.7 * np.arange(D) + k) + 0.1 * np.arange(D) for k in range(12)]
    for release, values in zip(result.transcript, made_up, strict=True):
        np.asarray(release.released).flags.writeable = True
        np.asarray(release.released).reshape(-1)[:] = values
    with double_precision():
        again = solver.solve(Replay(result.transcript, public), problem)
    expected, *_ = by_reference(solver, public, problem, result.transcript)
    np.testing.assert_allclose(again.params, expected, atol=5e-7)


@pytest.mark.audit
def test_without_signal_the_result_stays_near_zero():
    """Labels that are coin flips: noise leaves about half of what it leaves after whitened descent."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2_000, D)) * 0.4
    data = Units.from_arrays(rows, np.sign(rng.normal(size=2_000)), row_bound=1.0)
    problem, budget = Problem(losses.logistic), Budget(0.1, 1e-6)
    lengths = {}
    for solver in ("posterior-descent", "whitening"):
        runs = [minimize(problem, data, budget=budget, solver=solver, random_state=seed) for seed in range(6)]
        predictions = [rows @ np.asarray(run.params) for run in runs]
        lengths[solver] = float(np.mean(np.square(predictions)))
        if solver == "posterior-descent":
            assert np.mean([run.findings["mean_gain"].value for run in runs]) < 0.4
    assert lengths["posterior-descent"] < 0.6 * lengths["whitening"]


@pytest.mark.audit
def test_gradients_of_noise_alone_are_shrunk_to_the_least_gain():
    noise, bend = np.float64(1e-4), np.full(D, 0.25)
    with double_precision():
        found = evidence(np.zeros(D), noise, bend, np.ones((3, D)))
        assert np.all(np.asarray(found.gain) < 0.1)
        np.testing.assert_allclose(ridge_of(found.gain, noise, bend), 3 * math.sqrt(1e-4))
        loud = evidence(np.ones(D), noise, bend, np.ones((3, D)))
        assert np.all(np.asarray(loud.gain) > 0.99)
        silent = evidence(np.zeros(D), np.float64(10.0), bend, np.ones((3, D)))
        np.testing.assert_allclose(silent.gain, LEAST_GAIN)


def test_no_steps_give_back_the_start():
    start = np.arange(float(D))
    solver = Whitening(inner=PosteriorDescent(steps=0))
    result = minimize(logistic(), units(), budget=BUDGET, solver=solver, start=start, random_state=0)
    np.testing.assert_allclose(result.params, start, atol=1e-9)
    assert result.transcript.releases == 1
    assert not result.findings


@pytest.mark.audit
def test_without_noise_it_is_whitened_descent_without_noise():
    problem, budget = logistic(), Budget(math.inf)
    found, plain = (
        minimize(problem, units(), budget=budget, solver=solver)
        for solver in ("posterior-descent", "whitening")
    )
    np.testing.assert_array_equal(found.params, plain.params)
    assert found.plan.releases == plain.plan.releases == 501


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e300])
def test_from_a_release_that_is_not_finite_nothing_moves(broken):
    problem, data = logistic(), units()
    solver = Whitening(inner=PosteriorDescent(steps=6)).configure(Instance(problem, data.public, BUDGET))
    result = minimize(problem, data, budget=BUDGET, solver=solver, random_state=0)
    assert result.status is Status.FINISHED
    released = np.asarray(list(result.transcript)[3].released)
    released.flags.writeable = True
    released.reshape(-1)[2] = broken
    with double_precision():
        again = solver.solve(Replay(result.transcript, data.public), problem)
    assert again.status is Status.DIVERGED
    assert np.all(np.isfinite(again.params))


def test_a_hopeless_second_moment_gives_finite_results():
    problem, data = logistic(), units()
    solver = Whitening(inner=PosteriorDescent(steps=6)).configure(Instance(problem, data.public, BUDGET))
    result = minimize(problem, data, budget=BUDGET, solver=solver, random_state=0)
    released = np.asarray(next(iter(result.transcript)).released)
    released.flags.writeable = True
    for hopeless in (np.nan, 0.0, -1e300):
        released.reshape(-1)[:] = hopeless
        with double_precision():
            again = solver.solve(Replay(result.transcript, data.public), problem)
        assert again.status is Status.FINISHED
        assert np.all(np.isfinite(again.params))


def test_the_whole_budget_is_planned_and_split_beforehand():
    data = units()
    solver = Whitening(inner=PosteriorDescent()).configure(Instance(logistic(), data.public, BUDGET))
    mu = gaussian_mu(BUDGET.epsilon, BUDGET.delta)
    moment, steps = 1.0 / solver.noise_multiplier**2, 60 / solver.inner.noise_multiplier**2
    assert moment == pytest.approx(0.1 * mu**2, rel=1e-6)
    assert moment + steps == pytest.approx(mu**2, rel=1e-6)
    leaves, _ = leaf_counts(solver.event(data.public))
    result = minimize(logistic(), data, budget=BUDGET, solver="posterior-descent", random_state=0)
    assert sum(leaves.values()) == 61 == solver.releases() == result.transcript.releases
    assert result.plan.solver == "whitened posterior-descent"
    assert "mean gain" in repr(result)
    assert "gain" in str(result.report)


def test_the_column_of_ones_may_be_told_to_the_solver_too():
    public = Public(n=1_000, d=D)
    given = Whitening(inner=PosteriorDescent(constant=2)).configure(Instance(logistic(), public, BUDGET))
    assert given.inner.constant == 2


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (losses.softmax(3), "two classes"),
        (losses.squared, "squared"),
        (losses.smoothed_hinge(0.5), "hinge"),
        (losses.poisson(2.0, 5.0), "poisson"),
    ],
)
def test_it_is_for_two_classes_by_their_odds(loss, word):
    with pytest.raises(ValueError, match=word):
        plan(Problem(loss), n=1_000, d=4, epsilon=1.0, delta=1e-6, solver="posterior-descent")


def test_alone_or_without_a_second_moment_it_says_where_it_belongs():
    with pytest.raises(ValueError, match=r"stands inside whitening.*Whitening\(inner=PosteriorDescent\(\)\)"):
        plan(logistic(), n=1_000, d=D, epsilon=1.0, delta=1e-6, solver=PosteriorDescent())
    planned = Whitening().configure(Instance(logistic(), Public(n=1_000, d=D), BUDGET)).rule.planned()
    with pytest.raises(ValueError, match="second moment of the rows"):
        PosteriorDescent().in_coordinates(replace(planned, rows=None))
    with pytest.raises(ValueError, match="constant=6 is no column"):
        plan(
            logistic(),
            n=1_000,
            d=D,
            epsilon=1.0,
            delta=1e-6,
            solver=Whitening(inner=PosteriorDescent(constant=6)),
        )


def test_estimators_take_it_by_name_and_users_are_protected_alike():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, size=(4_000, 4))
    labels = (rows[:, 0] - rows[:, 1] + 0.3 * rng.normal(size=4_000) > 0).astype(int)
    common = {"epsilon": 2.0, "delta": 1e-8, "bounds": (-1, 1), "classes": [0, 1], "random_state": 0}
    model = LogisticRegression(solver="posterior-descent", **common).fit(rows, labels)
    assert model.score(rows, labels) > 0.85
    data = units(n=3_000, groups=np.arange(3_000) // 3, max_records_per_user=3, user_weighting="user")
    result = minimize(logistic(), data, budget=BUDGET, solver="posterior-descent", random_state=0)
    assert result.status is Status.FINISHED
    assert result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon * (1 + 1e-6)


@pytest.mark.audit
def test_the_gain_grows_with_the_budget():
    gains = []
    for epsilon in (0.03, 0.3, 3.0):
        runs = [
            minimize(
                logistic(),
                units(),
                budget=Budget(epsilon, 1e-6),
                solver="posterior-descent",
                random_state=seed,
            )
            for seed in range(3)
        ]
        gains.append(np.mean([run.findings["mean_gain"].value for run in runs]))
    assert gains[0] < gains[1] < gains[2]
