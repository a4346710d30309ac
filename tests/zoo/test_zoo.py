"""The zoo: the constants of every problem hold, its minimum is right, and its records add up to its objective."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.exact_curator import ClipMightBind, ExactCurator, exact_run, public_of
from tests.support.formula_noise import FormulaNoise

from privopt import zoo
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.problems.problem import Problem
from privopt.queries.slopes import ClippedGradientDifference, GradientNorm, MixedGradient
from privopt.solvers.gradient_descent import GradientDescent


def ball(problem, radius, centre=None):
    """Points of a ball, in its bulk, near its centre and on its surface."""
    generator = np.random.default_rng(5)
    directions = generator.standard_normal((150, problem.d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scale = np.tile([1.0, 1e-3, 0.0], 50)
    scale[2::3] = generator.uniform(0, 1, 50)
    return (0.0 if centre is None else centre) + directions * (radius * scale)[:, None]


def cube(problem, radius):
    return np.random.default_rng(5).uniform(-radius, radius, (150, problem.d))


def in_the_valley(problem):
    points = ball(problem, 1.0)
    points[:, 0] = np.random.default_rng(6).uniform(-1, 1, len(points))
    points[:, 1:] /= np.maximum(1.0, np.linalg.norm(points[:, 1:], axis=1, keepdims=True))
    return points


def around_the_minimiser(problem):
    return ball(problem, np.linalg.norm(problem.start - problem.minimiser), problem.minimiser)


def rightly_classified(problem):
    features, targets = problem.records(100)
    points = ball(problem, 20.0)
    points[:, 0] += 20.0 * np.random.default_rng(7).uniform(0, 5, len(points))
    kept = np.array([np.all(targets * (features @ w) >= 0) for w in points])
    assert kept.sum() > 20
    return np.concatenate([points[kept], [problem.start]])


# A problem, points of the region where its constants hold, and a number of records it has.
ZOO = {
    problem.name: (problem, points(problem), n)
    for problem, points, n in [
        (zoo.power(2.0, 5), lambda p: ball(p, 1.0), 7),
        (zoo.power(4.0, 5, radius=2.0, noise=0.5), lambda p: ball(p, 2.0), 8),
        (zoo.power(1.5, 5), lambda p: ball(p, 1.0), 8),
        (zoo.sine(5), lambda p: cube(p, 3.0), 7),
        (zoo.valley(4.0, 5, curvature=0.5), in_the_valley, 8),
        (zoo.valley(2.0, 5, curvature=3.0), in_the_valley, 8),
        (zoo.factorisation(0.1, 5), lambda p: ball(p, 0.1, p.minimiser), 8),
        (zoo.factorisation(0.25, 5), lambda p: ball(p, 0.25, p.minimiser), 8),
        (zoo.factorisation(0.5, 5), lambda p: ball(p, 0.5, p.minimiser), 7),
        (zoo.least_squares(5), around_the_minimiser, 200),
        (zoo.least_squares(6, rank=3), around_the_minimiser, 100),
        (zoo.leaky_link(5), around_the_minimiser, 100),
        (zoo.separable_logistic(5), rightly_classified, 100),
        (zoo.max_linear(5), lambda p: cube(p, 1.0), 8),
        (zoo.ball_logistic(5), lambda p: ball(p, 4.0), 200),
    ]
}
every_problem = pytest.mark.parametrize(("problem", "points", "n"), ZOO.values(), ids=ZOO)


@every_problem
def test_the_growth_holds_on_the_region_and_gap_is_the_excess_of_the_start(problem, points, n):
    growth = problem.growth
    for point in points:
        most = growth.excess_at(float(np.linalg.norm(problem.gradient(point))))
        assert problem.excess(point) <= most * (1 + 1e-8) + 1e-15
    assert growth.gap == pytest.approx(problem.excess(problem.start), rel=1e-12)
    assert growth.gap_within(problem.lipschitz) <= growth.gap


@pytest.mark.at_once(
    "ball_logistic(radius=4, d=5)",
    "factorisation(radius=0.25, d=5)",
    "max_linear(d=5)",
    "power(p=1.5, d=5)",
    "separable_logistic(d=5)",
    "sine(d=5)",
)
@every_problem
def test_the_bounds_of_one_record_hold_on_the_region(problem, points, n):
    features, targets = (jnp.asarray(part) for part in problem.records(n, seed=1))
    plain = Problem(problem.problem.loss)
    gradients = jax.jit(jax.vmap(plain.record_gradient, (None, 0, 0)))
    hessians = jax.jit(
        jax.vmap(jax.jacfwd(plain.record_gradient), (None, 0, 0))
        if not math.isinf(problem.smoothness)
        else jax.vmap(lambda w, x, y: jnp.zeros((problem.d, problem.d)), (None, 0, 0))
    )
    longest = max(
        float(jnp.max(jnp.linalg.norm(gradients(jnp.asarray(w), features, targets), axis=1))) for w in points
    )
    steepest = max(
        float(jnp.max(jnp.linalg.norm(hessians(jnp.asarray(w), features, targets), ord=2, axis=(1, 2))))
        for w in points[:30]
    )
    assert longest <= problem.lipschitz * (1 + 1e-9)
    assert steepest <= problem.smoothness * (1 + 1e-9)
    assert problem.lipschitz <= 4.0 * longest  # not needlessly large
    assert np.all(np.linalg.norm(features, axis=1) <= problem.row_bound)


@pytest.mark.at_once(
    "factorisation(radius=0.25, d=5)", "least_squares(d=6, rank=3)", "power(p=1.5, d=5)", "valley(p=2, d=5)"
)
@every_problem
def test_the_mean_over_the_records_is_the_objective(problem, points, n):
    features, targets = problem.records(n, seed=2)
    assert features.shape[0] == targets.shape[0] == n
    for point in points[:5]:
        params = jnp.asarray(point)
        mean = problem.problem.objective(params, jnp.asarray(features), jnp.asarray(targets))
        assert float(mean) == pytest.approx(problem.objective(point), rel=1e-12, abs=1e-14)
        gradients = jax.vmap(problem.problem.record_gradient, (None, 0, 0))(
            params, jnp.asarray(features), jnp.asarray(targets)
        )
        np.testing.assert_allclose(
            jnp.mean(gradients, axis=0), problem.gradient(point), rtol=1e-9, atol=1e-13
        )
        assert problem.excess(point) == pytest.approx(
            problem.objective(point) - problem.minimum, rel=1e-9, abs=1e-14
        )


@every_problem
def test_the_minimum_is_a_minimum(problem, points, n):
    assert all(problem.excess(point) >= 0.0 for point in points)
    if problem.minimiser is None:
        far = np.zeros(problem.d)
        far[0] = 400.0
        assert 0 < problem.excess(far) < 1e-10
        return
    assert np.linalg.norm(problem.gradient(problem.minimiser)) < 1e-14
    assert problem.excess(problem.minimiser) < 1e-30
    assert problem.objective(problem.minimiser) == pytest.approx(problem.minimum, abs=1e-16)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 4.0])
def test_a_power_attains_its_growth_everywhere(p):
    problem = zoo.power(p, 3)
    for point in ball(problem, 1.0):
        attained = problem.growth.excess_at(float(np.linalg.norm(problem.gradient(point))))
        assert attained == pytest.approx(problem.excess(point), rel=1e-12)
    expected = {1.5: 3.0, 2.0: 2.0, 3.0: 1.5, 4.0: 4.0 / 3.0}
    assert problem.growth.kappa == pytest.approx(expected[p])


def slack(problem, point):
    """How far the growth is from equality at a point; 1 is equality."""
    return problem.excess(point) / problem.growth.excess_at(float(np.linalg.norm(problem.gradient(point))))


def test_the_constants_of_the_other_problems_are_the_best_ones():
    sine = zoo.sine(3)
    grid = np.linspace(0.01, 30.0, 60_001)
    values = (2 * grid + 3 * np.sin(2 * grid)) ** 2 / (2 * (grid**2 + 3 * np.sin(grid) ** 2))
    assert 1.0 / (2.0 * sine.growth.gamma**2) == pytest.approx(0.1755309859, abs=5e-11)
    assert sine.growth.gamma == pytest.approx(1.68774996, abs=1e-8)
    assert values.min() == pytest.approx(0.1755309859, rel=1e-6)
    assert values.min() >= 0.1755309858
    assert slack(sine, [2.2017091764, 0.0, 0.0]) == pytest.approx(1.0, abs=1e-10)
    assert slack(zoo.factorisation(0.5, 3), [0.5, 0.0, 0.0]) == pytest.approx(1.0, abs=1e-12)
    for radius, (distance, angle) in {
        0.1: (0.1, 1.7215927741672068),
        0.25: (0.25, 1.960353815840031),
    }.items():
        worst = [1 + distance * math.cos(angle), distance * math.sin(angle), 0.0]
        assert 1.0 - 2e-6 < slack(zoo.factorisation(radius, 3), worst) <= 1.0
        assert zoo.factorisation(radius, 3).smoothness == pytest.approx({0.1: 2.63, 0.25: 3.6875}[radius])
    assert zoo.factorisation(0.5, 3).smoothness == pytest.approx(5.75)
    squares = zoo.least_squares(6, rank=3)
    features, _ = squares.records(100)
    weakest = np.linalg.eigh(features.T @ features)[1][:, 3]
    assert slack(squares, squares.minimiser + weakest) == pytest.approx(1.0, abs=1e-9)


def test_the_margin_bound_of_separable_records_is_that_of_its_two_formulas():
    features, targets = zoo.separable_logistic(4, margin=0.3).records(100)
    margin = np.min(targets * features[:, 0])
    assert margin == pytest.approx(0.3, rel=1e-6)
    assert zoo.separable_logistic(4, margin=0.3).growth.gamma == pytest.approx(2 * math.log(2) / margin)
    loose = zoo.separable_logistic(4, margin=0.3, slack=2.0)
    expected = (1 + math.exp(-2)) * math.log(1 + math.exp(2)) / margin
    assert loose.growth.gamma == pytest.approx(expected)
    for point in ball(loose, 2.0):  # every record's margin is at least -2 there
        assert slack(loose, point) <= 1.0


def network(params, features):
    hidden = jnp.tanh(params[:20].reshape(4, 5) @ features)
    return jnp.sum(params[20:] * hidden)


@pytest.mark.audit
def test_the_tangent_kernel_bounds_the_growth_of_a_network_at_its_start():
    generator = np.random.default_rng(0)
    params = jnp.asarray(generator.standard_normal(24))
    features = jnp.asarray(generator.standard_normal((6, 5)))
    growth = zoo.tangent_kernel_growth(network, params, features)

    @jax.jit
    @jax.value_and_grad
    def risk(w, targets):
        return 0.5 * jnp.mean((jax.vmap(network, (None, 0))(w, features) - targets) ** 2)

    for seed in range(5):
        value, gradient = risk(params, jnp.asarray(np.random.default_rng(seed).standard_normal(6)))
        assert float(value) <= growth.excess_at(float(jnp.linalg.norm(gradient))) * (1 + 1e-9)
    with pytest.raises(ValueError, match="no record twice"):
        zoo.tangent_kernel_growth(network, params, jnp.tile(features[:1], (2, 1)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.power(1.0), "p must be above 1"),
        (lambda: zoo.power(2.0, 0), "d must be at least 1"),
        (lambda: zoo.power(2.0, radius=0.0), "radius must be positive"),
        (lambda: zoo.sine(noise=math.inf), "noise must be positive and finite"),
        (lambda: zoo.valley(1.5), "p must be at least 2"),
        (lambda: zoo.factorisation(0.3), "one of \\[0.1, 0.25, 0.5\\]"),
        (lambda: zoo.least_squares(3, rank=4), "rank must be between"),
        (lambda: zoo.least_squares(3, table=3), "table must be above"),
        (lambda: zoo.least_squares(3, condition=0.5), "condition must be at least 1"),
        (lambda: zoo.leaky_link(3, leak=1.0), "leak must be in"),
        (lambda: zoo.separable_logistic(3, margin=0.9), "margin must be in"),
        (lambda: zoo.separable_logistic(3, slack=-1.0), "slack must be at least 0"),
        (lambda: zoo.ball_logistic(3, radius=0.1), "outside of radius"),
        (lambda: zoo.least_squares(3).records(150), "multiple of 100"),
        (lambda: zoo.power().records(0), "n must be at least 1"),
    ],
)
def test_parameters_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def descent(problem, steps=5):
    return GradientDescent(
        steps=steps,
        step_size=0.5 / min(problem.smoothness, 10.0),
        clip=2.0 * problem.lipschitz,
        momentum=0.0,
        returns="last",
        noise_multiplier=3.0,
    )


def curator_on(problem, n, relation, plan):
    features, targets = problem.records(n)
    units = Units.from_arrays(
        features, targets, relation=relation, row_bound=problem.row_bound, n=n, storage="float64"
    )
    return LocalCurator(units, Ledger(Budget(1e9, 1e-6), relation, plan=plan), noise=FormulaNoise())


@pytest.mark.later(
    "power(p=1.5, d=5)-replace-one", "power(p=4, d=5)-add-or-remove-one", "power(p=4, d=5)-replace-one"
)
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("problem", [zoo.power(4.0, 5), zoo.power(1.5, 5), zoo.sine(5)], ids=lambda p: p.name)
def test_the_exact_curator_gives_the_run_of_a_curator_on_the_records(problem, relation):
    solver, n = descent(problem), 200
    exact, _ = exact_run(solver, problem, n, noise=FormulaNoise(), relation=relation)
    curator = curator_on(problem, n, relation, solver.event(public_of(problem, n, relation)))
    curated = solver.solve(curator, problem.problem, jnp.asarray(problem.start))
    np.testing.assert_allclose(exact.params, curated.params, rtol=0, atol=1e-9)
    assert len(exact.transcript) == len(curated.transcript)
    for ours, theirs in zip(exact.transcript, curated.transcript, strict=True):
        np.testing.assert_allclose(ours.sensitivity, theirs.sensitivity, rtol=1e-12)


class Asking:
    """A solver-like program that asks for one of each kind of release, some of them under a filter."""

    def __init__(self, queries):
        self.queries = queries

    def run(self, curator):
        inner = curator.filtered("some", Gaussian(1.0))
        return [
            np.asarray(source.release(q, Gaussian(5.0))) for q in self.queries for source in (curator, inner)
        ]

    def event(self):
        return sequence([*(Gaussian(5.0).event() for _ in self.queries), Gaussian(1.0).event()])


@pytest.mark.audit
def test_the_exact_curator_answers_every_gradient_query_as_a_curator_does():
    problem, n = zoo.sine(4), 200
    at, before = jnp.linspace(0.5, 1.5, 4), jnp.linspace(0.4, 1.6, 4)
    loss = problem.problem.loss
    program = Asking(
        [
            GradientNorm(loss=loss, at=at, clip=40.0),
            ClippedGradientDifference(loss=loss, at=at, anchor=before, slope_clip=8.0),
            ClippedGradientDifference(loss=loss, at=at, anchor=before, slope_clip=0.5),  # binds
            ClippedGradientDifference(loss=loss, at=at, anchor=before, slope_clip=8.0, gradient_clip=40.0),
            MixedGradient(loss=loss, at=at, previous=before, clip=40.0, change_clip=0.1, gain=0.25),
            MixedGradient(loss=loss, at=at, previous=before, clip=40.0, change_clip=9.0, gain=1.0),
        ]
    )
    event = program.event()
    ledger = Ledger(Budget(1e9, 1e-6), "replace-one", plan=event)
    exact = program.run(ExactCurator(problem, public_of(problem, n), ledger, noise=FormulaNoise()))
    curated = program.run(curator_on(problem, n, "replace-one", event))
    for ours, theirs in zip(exact, curated, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_the_exact_curator_refuses_a_clip_that_might_bind():
    problem = zoo.sine(4)
    solver = replace(descent(problem), clip=0.5 * problem.lipschitz)
    with pytest.raises(ClipMightBind, match="a gradient of norm"):
        exact_run(solver, problem, 1000, noise=FormulaNoise())


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_tiled_curator_gives_the_run_of_a_curator_on_the_repeated_records(relation):
    problem, n = zoo.ball_logistic(4), 600
    solver = descent(problem)
    tiled, excess = exact_run(solver, problem, n, noise=FormulaNoise(), relation=relation)
    curator = curator_on(problem, n, relation, solver.event(public_of(problem, n, relation)))
    curated = solver.solve(curator, problem.problem, jnp.asarray(problem.start))
    np.testing.assert_allclose(tiled.params, curated.params, rtol=0, atol=1e-9)
    assert excess == pytest.approx(problem.excess(curated.params), rel=1e-6)


def test_phase_retrieval_has_two_minimisers_a_bound_on_gradients_and_no_smoothness():
    problem = zoo.phase_retrieval(4)
    features, targets = (jnp.asarray(part) for part in problem.records(200))
    assert problem.excess(problem.minimiser) < 1e-15
    assert problem.excess(-problem.minimiser) < 1e-15
    assert np.linalg.norm(problem.start - problem.minimiser) == pytest.approx(0.5)
    gradients = jax.jit(jax.vmap(problem.problem.record_gradient, (None, 0, 0)))
    for point in ball(problem, 2.0):
        found = gradients(jnp.asarray(point), features, targets)
        assert float(jnp.max(jnp.linalg.norm(found, axis=1))) <= problem.lipschitz
        np.testing.assert_allclose(jnp.mean(found, axis=0), problem.gradient(point), atol=1e-12)
        mean = problem.problem.objective(jnp.asarray(point), features, targets)
        assert float(mean) == pytest.approx(problem.objective(point), abs=1e-14)
    middle = problem.objective(np.zeros(4))  # between two minima: not convex
    assert middle > 0.5 * (problem.excess(problem.minimiser) + problem.excess(-problem.minimiser)) + 0.1
    with pytest.raises(ValueError, match="apart must be below 1"):
        zoo.phase_retrieval(4, apart=1.0)
