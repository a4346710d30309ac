"""Objective perturbation: reference values, the exact privacy loss in one dimension, certificates, and pairings."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.linear_model import LogisticRegression
from tests.support.formula_noise import FormulaNoise, cosines, silence
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.curves import gaussian_delta
from privopt.ledger.events import Repeated, ShiftedGaussianEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L2Ball, LpBall
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, NoRegulariser, Ridge
from privopt.proofs.huberised_sum import HuberisedSum
from privopt.public import Public, Relation
from privopt.queries.minimisers import PerturbedMinimiser
from privopt.queries.slopes import ClippedGradient
from privopt.result import Result
from privopt.solvers.objective_perturbation import ObjectivePerturbation

LOGISTIC = Problem(losses.logistic, Ridge(0.1))
BUDGET = Budget(1.0, 1e-6)
LINE = np.sin(1.0 + np.arange(6))[:, None]
SIGNS = np.sign(np.cos(2.0 * np.arange(6)))
RELATIONS = ("replace-one", "add-or-remove-one")


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def first_alone(k, shape):
    """The noise inside the objective; the noise that hides the residual is left out."""
    return cosines(k, shape) if k == 0 else silence(k, shape)


def stored(rows, targets, relation="replace-one", **options):
    return Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, storage="float64", **options)


def solved(units, problem, solver=None, *, budget=BUDGET, noise=None):
    solver = (solver or ObjectivePerturbation()).configure(Instance(problem, units.public, budget))
    wide = replace(budget, epsilon=1e6) if budget.is_private else budget
    ledger = Ledger(wide, units.public.relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=noise or NoiseSource(3)), problem).params


def audited(left, right, query, multiplier, *, understate=0.0):
    mechanism = query.mechanism(multiplier, left.public)
    ledger = Ledger(Budget(1e6, 1e-6), left.public.relation, plan=mechanism.event())
    curator = Audit(left, right, ledger, noise=NoiseSource(3), understate=understate)
    curator.release(query, mechanism)
    ((_, ratio),) = curator.moves
    return ratio


# Reference values ----------------------------------------------------------------------------------------------------


def test_without_noise_it_is_the_minimiser():
    units = stored(*reference_arrays())
    found = solved(units, LOGISTIC, budget=Budget(math.inf, 1e-6))
    np.testing.assert_allclose(found, [-0.0559294056, -0.2324524522, -0.2996494784], atol=1e-10)
    value = LOGISTIC.objective(found, units.private_features, jnp.asarray(units.private_targets))
    assert float(value) == pytest.approx(0.6748366266343765, abs=1e-13)


def test_without_noise_it_agrees_with_scikit_learn():
    draw = np.random.default_rng(2)
    rows = draw.normal(size=(200, 5)) / 4
    targets = np.sign(rows @ np.ones(5) + draw.logistic(size=200))
    found = solved(stored(rows, targets), LOGISTIC, budget=Budget(math.inf, 1e-6))
    kept = np.asarray(stored(rows, targets).private_features)
    direct = LogisticRegression(C=1 / (0.1 * 200), fit_intercept=False, tol=1e-12).fit(kept, targets)
    np.testing.assert_allclose(found, direct.coef_[0], atol=1e-5)


def test_the_perturbed_minimiser_has_its_reference_value():
    """Linear term 0.8 cos(1 + 0.7 j) on the scale of the sum, C = 1."""
    units = stored(*reference_arrays())
    solver = ObjectivePerturbation(noise_multiplier=0.4, ridge_total=0.1)
    noise = FormulaNoise(first_alone)  # sigma = 0.4 * 2 C
    found = solved(units, LOGISTIC, solver, noise=noise)
    np.testing.assert_allclose(found, [-0.3767323049, -0.1900758049, 0.0859763161], atol=1e-8)


@pytest.mark.parametrize(
    ("loss", "relation", "sigma"),
    [
        (losses.logistic, "add-or-remove-one", 4.2344892110),
        (losses.logistic, "replace-one", 8.4689784221),
        (losses.quantile(0.5, 2.0), "add-or-remove-one", 4.3753352705),
        (losses.quantile(0.5, 2.0), "replace-one", 8.75067054),
    ],
)
def test_the_noise_inside_the_objective_has_its_reference_scale(loss, relation, sigma):
    """C = 1, beta = 1/4, Lambda = 100, at (1, 1e-6), without the residual's noise."""
    public = Public(n=1000, d=1, relation=Relation.parse(relation))
    query = PerturbedMinimiser(problem=Problem(loss, Ridge(0.1)), clip=1.0, ridge=0.1)
    multiplier = calibrate(
        lambda z: query.mechanism(z, public).event().events[0], Budget(1.0, 1e-6), relation
    )
    assert multiplier * query.sensitivity(public) == pytest.approx(sigma, rel=3e-8)


def test_the_plan_of_the_planner_has_its_reference_values():
    plans = {
        (10_000, 100, 1.0, 1e-6, "add-or-remove-one", 1e-3): (0.001, 0.0089240),
        (100_000, 30, 0.3, 1e-6, "replace-one", 1e-3): (0.001, 0.0010128),
        (200_000, 55, 0.5, 1e-3, "replace-one", 0.0): (3.419e-5, 0.0034190),
    }
    for (n, d, epsilon, delta, relation, ridge), (total, excess) in plans.items():
        public = Public(n=n, d=d, relation=Relation.parse(relation))
        problem = Problem(losses.logistic, Ridge(ridge))
        solver = ObjectivePerturbation().filled(Instance(problem, public, Budget(epsilon, delta)))
        assert solver.ridge_total == pytest.approx(total, rel=2e-4)
        found = solver.forecast(Instance(problem, public, Budget(epsilon, delta))).excess
        assert found == pytest.approx(excess, rel=2e-4)


# The exact privacy loss in one dimension -----------------------------------------------------------------------------


def on_the_line(record, relation):
    """Six records in one dimension and one more, (1, sign) or none."""
    rows = LINE if record is None else np.concatenate([LINE, [[1.0]]])
    targets = SIGNS if record is None else np.append(SIGNS, record)
    return stored(rows, targets, relation, n=7)


def noise_and_volume(query, units, points):
    """b(w) and |b'(w)| on a line of minimisers, by the formulas of the loss."""
    rows, targets = jnp.asarray(units.private_features)[:, 0], jnp.asarray(units.private_targets)
    caps = query.clip / jnp.maximum(jnp.abs(rows), 1e-300)

    def implied(w):
        slopes = query.problem.loss.huberised_slope(rows * w, targets, caps)
        return -(rows @ slopes + 7 * query.ridge * w)

    noise, slope = jax.vmap(jax.value_and_grad(implied))(points)
    return np.asarray(noise), np.abs(np.asarray(slope))


def hockey_stick(left, right, epsilon, points, atoms=((0.0,), (0.0,))):
    """The larger of the two directions, by quadrature, atoms beside the densities."""
    return max(
        np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), points)
        + np.sum(np.maximum(np.subtract(mass, np.multiply(math.exp(epsilon), others)), 0.0))
        for one, other, mass, others in ((left, right, *atoms), (right, left, *atoms[::-1]))
    )


@pytest.mark.at_once("l1-add-or-remove-one-None-0.003667-0.03892")
@pytest.mark.parametrize(
    ("relation", "neighbour", "exact", "bound"),
    [("replace-one", -1.0, 3.095e-2, 0.2713), ("add-or-remove-one", None, 3.667e-3, 3.892e-2)],
)
@pytest.mark.parametrize("lasso", [0.0, 0.4], ids=["smooth", "l1"])
def test_the_exact_privacy_loss_stays_below_the_curve(relation, neighbour, exact, bound, lasso):
    """Away from 0 the density of the minimiser is that of its noise by change of variables; l1 makes an atom at 0."""
    sides = [on_the_line(record, relation) for record in (1.0, neighbour)]
    factor = Relation.parse(relation).factor
    points = np.linspace(-60.0, 60.0, 60_001)
    for ridge in (0.5, 1.0, 3.0):
        query = PerturbedMinimiser(problem=Problem(losses.logistic), clip=1.0, ridge=ridge / 7)
        maps = [noise_and_volume(query, side, jnp.asarray(points)) for side in sides]
        for sigma in (1.5, 2.0, 3.0):
            found = [_output(noise, volume, points, sigma, lasso) for noise, volume in maps]
            (left, left_atom), (right, right_atom) = found
            assert np.trapezoid(left, points) + left_atom == pytest.approx(1.0, abs=2e-3)
            for epsilon in (0.5, 1.0, 2.0):
                curve = gaussian_delta(factor / sigma, epsilon - math.log1p(0.25 / ridge))
                apart = hockey_stick(left, right, epsilon, points, ((left_atom,), (right_atom,)))
                assert apart <= curve
                if (ridge, sigma, epsilon, lasso) == (3.0, 1.5, 1.0, 0.0):
                    assert apart == pytest.approx(exact, rel=2e-4)
                    assert curve == pytest.approx(bound, rel=2e-4)


def _output(noise, volume, points, sigma, lasso):
    """Density away from 0 and the atom at 0; noises within `lasso` of b(0) have the minimiser 0."""
    density = volume * stats.norm.pdf(noise - lasso * np.sign(points), scale=sigma)
    at_zero = np.interp(0.0, points, noise)
    atom = stats.norm.cdf(at_zero + lasso, scale=sigma) - stats.norm.cdf(at_zero - lasso, scale=sigma)
    return density, atom if lasso else 0.0


def folded_delta(mu, epsilon):
    """The curve of the loss mu |Z| + mu^2 / 2, from the survival function of the normal."""
    least = epsilon - mu**2 / 2
    if least < 0:
        return 1.0 - 2.0 * math.exp(epsilon) * stats.norm.sf(mu)
    return 2.0 * (stats.norm.sf(least / mu) - math.exp(epsilon) * stats.norm.sf(least / mu + mu))


@pytest.mark.parametrize(("epsilon", "expected"), [(0.5, 1.474791096e-3), (0.01, 1.707925838e-1)])
def test_the_folded_curve_has_its_reference_values(epsilon, expected):
    """C = 1, sigma = 5, beta = 1/4, Lambda = 10."""
    assert folded_delta(0.2, epsilon - math.log1p(0.025)) == pytest.approx(expected, rel=1e-8)


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_exact_privacy_loss_of_a_two_signed_loss_stays_below_the_folded_curve(relation):
    factor = Relation.parse(relation).factor
    points = np.linspace(-40.0, 40.0, 40_001)
    tightest = 0.0
    for ridge in (0.5, 1.0, 3.0):
        query = PerturbedMinimiser(problem=Problem(losses.huber(0.5)), clip=0.5, ridge=ridge / 7)
        for targets in ((4.0, -4.0), (0.3, -0.7), (0.0, 4.0)):
            records = targets if relation == "replace-one" else (targets[0], None)
            maps = [noise_and_volume(query, on_the_line(r, relation), jnp.asarray(points)) for r in records]
            for sigma in (0.75, 1.5):
                densities = [volume * stats.norm.pdf(noise, scale=sigma) for noise, volume in maps]
                for epsilon in (0.5, 1.0, 2.0):
                    curve = folded_delta(0.5 * factor / sigma, epsilon - math.log1p(1.0 / ridge))
                    apart = hockey_stick(*densities, epsilon, points)
                    assert apart <= curve
                    tightest = max(tightest, apart / curve)
    assert tightest > 0.1


# Certificates --------------------------------------------------------------------------------------------------------

rng = np.random.default_rng(5)
CLOUD = rng.normal(size=(60, 4))
ADVERSARIAL = {
    "duplicated": (np.repeat(CLOUD[:2], 30, axis=0), np.tile([1.0, -1.0], 30)),
    "huge rows": (CLOUD * 1e30, np.sign(CLOUD[:, 0])),
    "huge targets": (CLOUD, 1e300 * np.sign(CLOUD[:, 1])),
    "all equal": (np.ones((60, 4)), np.ones(60)),
    "all zero": (np.zeros((60, 4)), np.zeros(60)),
    "tiny rows": (CLOUD * 1e-30, np.sign(CLOUD[:, 0])),
    "not finite": (np.where(CLOUD > 1, np.nan, np.where(CLOUD < -1, np.inf, CLOUD)), np.sign(CLOUD[:, 0])),
    "on the kink": (np.ones((60, 4)) / 2, np.full(60, 0.5)),
}
PENALTIES = {
    "ridge": (Ridge(0.01), None),
    "elastic net": (ElasticNet(0.01, 0.01), None),
    "group lasso": (GroupLasso(0.01, ((0, 1), (2, 3))), None),
    "box": (Ridge(0.01), Box(-0.05, 0.1)),
    "ball": (L1(0.003), L2Ball(0.2)),
}


def certified(query, units, mechanism, noise):
    """The computed minimiser and the distance of 0 from the subdifferential, by one exact proximal step from it."""
    objective = query.objective(units.public)
    total = objective.over(units.private_features, units.private_targets)
    found = query.minimise(units.public, total, noise, mechanism.tolerance)
    slope = total.gradient(found) + objective.ridge_gradient(found) + noise
    step = 1.0 / objective.smoothness
    moved = query.problem.prox(jnp.asarray(found - step * slope), step * units.public.n)
    return found, np.linalg.norm(found - np.asarray(moved)) / step


@pytest.mark.at_once(
    "ball-all equal",
    "box-duplicated",
    "box-huge rows",
    "box-huge targets",
    "box-not finite",
    "box-on the kink",
    "box-tiny rows",
    "elastic net-all zero",
    "ridge-tiny rows",
)
@pytest.mark.parametrize("data", ADVERSARIAL)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_certificate_holds_on_any_data(penalty, data):
    regulariser, constraint = PENALTIES[penalty]
    for loss in (losses.logistic, losses.smoothed_hinge(0.1), losses.squared, losses.poisson(2.0, 3.0)):
        problem = Problem(loss, regulariser, *([] if constraint is None else [constraint]))
        units = stored(*ADVERSARIAL[data])
        query = PerturbedMinimiser(problem=problem, clip=0.4, ridge=0.02)
        for multiplier in (0.1, 5.0, 1e4):
            mechanism = query.mechanism(multiplier, units.public)
            noise = multiplier * 0.8 * NoiseSource(1).normal((4,))
            found, residual = certified(query, units, mechanism, noise)
            assert np.all(np.isfinite(found))
            # The mapping at a point is at most the least subgradient there, and its own rounding.
            assert residual <= 2.0 * mechanism.tolerance


@pytest.mark.parametrize("regulariser", [Ridge(1e-3), ElasticNet(1e-3, 1e-3)])
@pytest.mark.parametrize("loss", [losses.logistic, losses.squared])
def test_hiding_the_residual_costs_next_to_nothing(loss, regulariser):
    """The second noise's part of the excess, against the least that the first can have, 1 / 2 s^2 d^2 / tr(H)."""
    public = Public(n=200_000, d=55)
    problem = Problem(loss, regulariser)
    solver = ObjectivePerturbation().configure(Instance(problem, public, BUDGET))
    query = PerturbedMinimiser(problem=problem, clip=1.0, ridge=solver.ridge_total)
    mechanism = query.mechanism(solver.noise_multiplier, public, output_share=solver.output_share)
    assert mechanism.tolerance < 1e-9 * public.n
    noise = solver.noise_multiplier * query.sensitivity(public) / public.n
    trace = query.objective(public).curvature + public.d * 1e-3
    assert solver.output_share < 0.05
    assert (mechanism.output_stddev * trace / (public.d * noise)) ** 2 < 1e-3


@pytest.mark.later("loss0")
@pytest.mark.parametrize("loss", [losses.logistic, losses.squared])
def test_sparse_rows_and_wide_problems_give_the_dense_answer(loss):
    """Above the dense dimension: conjugate gradients without, acceleration with a penalty."""
    dense = np.where(rng.random((80, 320)) < 0.05, rng.normal(size=(80, 320)), 0.0)
    targets = np.sign(dense @ np.ones(320) + 0.1)
    for problem in (Problem(loss, Ridge(0.05)), Problem(loss, ElasticNet(0.002, 0.05))):
        query = PerturbedMinimiser(problem=problem, clip=1.0, ridge=0.05)
        noise = 0.5 * np.cos(np.arange(320))
        found = []
        for features in (dense, sparse.csr_array(dense)):
            units = stored(features, targets)
            tolerance = query.mechanism(0.25, units.public).tolerance
            total = query.objective(units.public).over(units.private_features, units.private_targets)
            found.append(query.minimise(units.public, total, noise, tolerance))
        np.testing.assert_allclose(found[0], found[1], atol=1e-9)
        _, residual = certified(query, stored(dense, targets), query.mechanism(0.25, units.public), noise)
        assert residual <= 2.0 * tolerance


@pytest.mark.parametrize("epsilon", [1e-3, 0.1])
def test_hopeless_budgets_still_run(epsilon):
    units = stored(*reference_arrays())
    found = solved(units, Problem(losses.logistic), budget=Budget(epsilon, 1e-6))
    assert np.all(np.isfinite(found))


# Neighbours, and what fits together ----------------------------------------------------------------------------------


@pytest.mark.at_once("True-replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("whitened", [False, True])
def test_no_record_moves_the_implied_noise_by_more_than_its_sensitivity(relation, whitened):
    matrix = jnp.asarray([[3.0, 0.5, 0.0], [0.5, 0.2, 0.1], [0.0, 0.1, 2.0]]) if whitened else None
    problem = Problem(losses.squared, ElasticNet(0.01, 0.1))
    worst = 0.0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        rows, targets = draw.normal(size=(12, 3)), draw.normal(size=12) * 10.0 ** draw.uniform(-2, 2)
        other, moved = rows.copy(), targets.copy()
        other[3] = draw.choice([1e30, 1.0, -1.0, 0.0, np.nan]) * draw.normal(size=3)
        moved[3] = 10.0 ** draw.uniform(-2, 5) * draw.choice([-1.0, 1.0])
        if seed % 4 == 0:  # the same row, pulled with all its clip to the other side
            other[3], targets[3], moved[3] = rows[3], 1e4, -1e4
        if relation == "add-or-remove-one":
            other[3] = np.nan  # an absent record is a zero row
        query = PerturbedMinimiser(problem=problem, clip=0.3, ridge=0.1, matrix=matrix)
        left, right = (stored(*side, relation, n=12) for side in ((rows, targets), (other, moved)))
        worst = max(worst, audited(left, right, query, 2.0))
    assert 0.999 < worst <= 1.0
    assert audited(left, left, query, 2.0) == 0.0


def test_the_audit_notices_an_understated_sensitivity():
    query = PerturbedMinimiser(problem=Problem(losses.squared), clip=0.3, ridge=1.0)
    rows = np.ones((6, 1))
    left, right = stored(rows, np.array([9.0, -9, 0, 0, 0, 0])), stored(rows, np.array([9.0, 9, 0, 0, 0, 0]))
    assert 0.999 <= audited(left, right, query, 0.5) <= 1.0
    assert audited(left, right, query, 0.5, understate=0.002) > 1.0


def test_whitened_coordinates_change_the_noise_and_not_the_event():
    """With B = s I and C_v = s C nothing changes; with a real B the implied noise is the one that was drawn."""
    units = stored(*reference_arrays())
    solver = ObjectivePerturbation(noise_multiplier=0.4, ridge_total=0.1).configure(
        Instance(LOGISTIC, units.public, BUDGET)
    )
    plain = run_in(units, solver, None)
    scaled = run_in(units, solver, coordinates(3.0 * np.eye(3), 3.0))
    np.testing.assert_allclose(plain.params, scaled.params, atol=1e-9)
    matrix = np.array([[1.2, -0.2, 0.05], [-0.2, 1.3, -0.2], [0.05, -0.2, 1.2]])
    whitened = run_in(units, solver, coordinates(matrix, 0.9))
    assert whitened.transcript.event() == plain.transcript.event() == solver.event(units.public)
    query = PerturbedMinimiser(problem=LOGISTIC, clip=0.9, ridge=0.1, matrix=jnp.asarray(matrix))
    total = query.objective(units.public).over(units.private_features, units.private_targets)
    implied = query.implied_noise(units.public, total, whitened.params)
    np.testing.assert_allclose(implied, 0.4 * 2 * 0.9 * np.cos(1 + 0.7 * np.arange(3)), atol=1e-8)


def coordinates(matrix, clip):
    return Coordinates(
        matrix=jnp.asarray(matrix),
        stretch=3.0,
        clip=clip,
        smoothness=0.275,
        ridge_smoothness=0.1,
        momentum=0.5,
    )


def run_in(units, solver, where):
    noise = FormulaNoise(first_alone)
    ledger = Ledger(Budget(1e6, 1e-6), "replace-one", plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=noise)
    if where is None:
        return solver.solve(curator, LOGISTIC)
    there = solver.in_coordinates(where)
    params, status, *_ = there.run_in(curator, LOGISTIC, jnp.zeros(3), where)
    return Result(params=params, status=status, transcript=curator.transcript)


@pytest.mark.parametrize(
    "change",
    [
        {"shift": 0.0},
        {"two_signed": True},
        {"tolerance": 1e-30},
        {"modulus": 1e9},
        {"size": 2},
        {"output_share": 0.2},
    ],
)
def test_a_mechanism_of_another_objective_is_refused(change):
    units = stored(*reference_arrays())
    query = PerturbedMinimiser(problem=LOGISTIC, clip=1.0, ridge=0.1)
    mechanism = replace(query.mechanism(1.0, units.public), **change)
    ledger = Ledger(Budget(1e6, 1e-6), "replace-one", plan=mechanism.event())
    curator = LocalCurator(units, ledger)
    if "output_share" in change:  # a choice, not a fact
        curator.release(query, mechanism)
        return
    with pytest.raises(ValueError, match="made for another objective"):
        curator.release(query, mechanism)
    assert len(curator.transcript) == 0


def test_other_pairings_are_refused():
    units = stored(*reference_arrays())
    query = PerturbedMinimiser(problem=LOGISTIC, clip=1.0, ridge=0.1)
    mechanism = query.mechanism(1.0, units.public)
    curator = LocalCurator(units, Ledger(Budget(1e6, 1e-6), "replace-one"))
    weaker = PerturbedMinimiser(problem=LOGISTIC, clip=1.0, ridge=0.2)
    with pytest.raises(ValueError, match="made for another objective"):
        curator.release(query, weaker.mechanism(1.0, units.public))
    with pytest.raises(ValueError, match="made for another objective"):
        curator.release(query, query.mechanism(1.0, replace(units.public, n=80)))
    with pytest.raises(ValueError, match="cannot be released by Gaussian"):
        curator.release(query, Gaussian(1.0))
    with pytest.raises(ValueError, match="ClippedGradient is not a minimisation"):
        curator.release(ClippedGradient(loss=losses.logistic, at=jnp.zeros(3), clip=1.0), mechanism)
    assert len(curator.transcript) == 0


def own_penalty():
    class Concave(Ridge):
        pass

    return Problem(losses.logistic, Concave(0.1))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Problem(losses.softmax(3), Ridge(0.1)), "has 3 outputs"),
        (Problem(losses.quantile(0.5, 0.0), Ridge(0.1)), "has a kink"),
        (Problem(losses.RecordLoss(lambda w, a, y: (a @ w - y) ** 2)), "convex loss of the library"),
        (Problem(losses.logistic, NoRegulariser(), LpBall(1.0, 1.5)), "exact projection"),
        (own_penalty(), "convex penalty of the library"),
    ],
)
def test_a_problem_that_the_proof_does_not_cover_is_refused(problem, message):
    public = Public(n=100, d=3)
    assert message in ObjectivePerturbation().applicable(problem, public)
    with pytest.raises(ValueError, match=message):
        ObjectivePerturbation().configure(Instance(problem, public, BUDGET))
    with pytest.raises(ValueError, match=message):
        PerturbedMinimiser(problem=problem, clip=1.0, ridge=0.1).mechanism(1.0, public)


def test_users_are_refused():
    public = Public(n=100, d=3, unit="user", records_per_unit=3)
    assert "a unit is a user" in ObjectivePerturbation().applicable(LOGISTIC, public)


def test_a_ridge_that_is_too_small_for_the_budget_is_refused():
    with pytest.raises(ValueError, match="too small for epsilon 1: it must exceed"):
        ObjectivePerturbation(ridge_total=1e-4).configure(
            Instance(Problem(losses.logistic), Public(n=100, d=3), BUDGET)
        )


def test_an_intercept_gets_the_added_ridge_and_the_report_says_so():
    public = Public(n=10_000, d=3)
    problem = Problem(losses.logistic, Ridge(0.1, (1.0, 1.0, 0.0)))
    solver = ObjectivePerturbation().configure(Instance(problem, public, BUDGET))
    notices = solver.forecast(Instance(problem, public, BUDGET)).notices
    assert any("added ridge: 1 of 3 coordinates" in notice for notice in notices)
    objective = PerturbedMinimiser(problem=problem, clip=solver.clip, ridge=solver.ridge_total).objective(
        public
    )
    np.testing.assert_allclose(objective.added, [0.0, 0.0, solver.ridge_total])


def test_the_event_is_the_one_that_was_calibrated():
    public = Public(n=10_000, d=3)
    solver = ObjectivePerturbation().configure(Instance(LOGISTIC, public, BUDGET))
    inside, outside = solver.event(public).events
    assert inside == ShiftedGaussianEvent(1.0 / solver.noise_multiplier, math.log1p(0.25 / 1000.0))
    assert outside.noise_multiplier == pytest.approx(solver.noise_multiplier / solver.output_share)
    assert solver.scaled(2.0).noise_multiplier == 2.0 * solver.noise_multiplier


def test_what_the_price_rests_on_is_derived_whatever_was_given():
    instance = Instance(LOGISTIC, Public(n=10_000, d=3), BUDGET)
    right = ObjectivePerturbation().configure(instance)
    claimed = ObjectivePerturbation(shift=0.0, two_signed=not right.two_signed).configure(instance)
    assert claimed == right
    fewer = Instance(LOGISTIC, Public(n=1000, d=3), BUDGET)
    again = replace(right, noise_multiplier=None).filled(fewer)
    assert again.shift == math.log1p(0.25 / 100.0)


def test_a_ridge_of_zero_without_one_in_the_penalty_is_refused():
    with pytest.raises(ValueError, match=r"ridge_total must be positive where .* got 0\.0"):
        ObjectivePerturbation(ridge_total=0.0).configure(
            Instance(Problem(losses.logistic), Public(n=100, d=3), BUDGET)
        )


def test_a_block_that_nobody_was_drawn_into_has_a_minimiser_too():
    empty = HuberisedSum(losses.logistic, 1.0, np.zeros((0, 3), np.float32), np.zeros(0), None)
    np.testing.assert_array_equal(empty.gradient(np.ones(3)), np.zeros(3))


def test_a_loop_of_minimisations_is_refused_in_words():
    units = Units.from_arrays(np.eye(4), np.ones(4), row_bound=1.0)
    problem = Problem(losses.logistic, Ridge(1.0))
    query = PerturbedMinimiser(problem=problem, clip=1.0, ridge=1.0)
    with double_precision():
        mechanism = query.mechanism(5.0, units.public)
        ledger = Ledger(Budget(100.0, 1e-5), units.public.relation, plan=Repeated(mechanism.event(), 2))
        curator = LocalCurator(units, ledger, noise=NoiseSource(0))
        with pytest.raises(ValueError, match="not a loop"):
            curator.iterate(lambda state, release: release(query, mechanism), np.zeros(4), 2)
