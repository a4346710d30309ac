import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.promises import hostile_rows
from tests.support.exact_curator import ExactCurator, public_of
from tests.support.formula_noise import FormulaNoise
from tests.support.kl_reference import LOGISTIC, NOISES, RHO, D, N, reference_run, twelve_records
from tests.support.plain_logistic import PlainLogistic

from privopt import Budget, Problem, Units, losses, minimize, zoo
from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.ledger import accounting
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.planning.users import clip_from
from privopt.precision import double_precision
from privopt.problems.constraints import L2Ball
from privopt.problems.growth import KL
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public
from privopt.result import Status
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.whitening import Whitening

WIDE = Budget(1e8, 1e-6)
BUDGET = Budget(1.0, 1e-6)
MULTIPLIER = 1.0 / math.sqrt(2.0 * RHO)
GIVEN = {"step_size": 4.0, "clip": 1.0, "curvature": 0.25, "noise_multiplier": MULTIPLIER}
SOLVER = AdaptiveGradientDescent(
    most_steps=8, window=10, noise_ratio=2.0, trace_ratio=1.0, returns="last", **GIVEN
)
LONG = replace(SOLVER, most_steps=3000, noise_ratio=0.5)
PAPER = replace(
    SOLVER, variant="paper", most_steps=4, step_size=2.0, noise_multiplier=1.0 / math.sqrt(2 * 200.0)
)
PUBLIC = Public(n=100_000, d=10)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def run(
    solver,
    *,
    units=None,
    problem=LOGISTIC,
    noise=None,
    curator_type=LocalCurator,
    right=(),
    start=None,
    **options,
):
    """A run of a solver with all fields given, on a ledger that holds its plan."""
    units = twelve_records() if units is None else units
    ledger = Ledger(WIDE, units.public.relation, plan=solver.event(units.public))
    curator = curator_type(units, *right, ledger, noise=NoiseSource(3) if noise is None else noise, **options)
    return curator, solver.solve(curator, problem, start)


def spent(transcript):
    """rho of the Gaussian releases, from their noise and their sensitivity."""
    return sum(float(np.sum(r.sensitivity**2 / (2.0 * r.scale**2))) for r in transcript)


@pytest.mark.parametrize(
    ("solver", "noise", "expected", "used", "releases"),
    [
        (SOLVER, "zero", [1.6419841554e-01, -1.5168110024e-02, -1.5157409354e-01], 0.1158142513, 8),
        (SOLVER, "cos", [1.1592277823e00, -4.0669877016e-01, 4.0921316820e-01], 0.1158142513, 8),
        (PAPER, "zero", [2.5049433968e-02, -2.8930576155e-03, -2.2641560418e-02], 1.0, 2),
        (PAPER, "cos", [5.1858501230e-02, -6.1214199502e-03, -4.1708894593e-02], 1.0, 4),
    ],
    ids=["practical, no noise", "practical", "paper, no noise", "paper"],
)
def test_iterates_and_spending_have_their_reference_values(solver, noise, expected, used, releases):
    result = reference_run(solver, noise)
    np.testing.assert_allclose(result.params, expected, rtol=1e-8)
    assert result.findings["budget_used"].value == pytest.approx(used, rel=1e-9)
    assert result.transcript.releases == releases


def test_what_is_spent_is_what_the_transcript_says_and_all_of_it():
    for solver in (SOLVER, LONG, PAPER):
        curator, result = run(solver)
        rho = 0.5 / solver.noise_multiplier**2
        assert spent(result.transcript) == pytest.approx(result.findings["budget_used"].value * rho, rel=1e-9)
        assert spent(result.transcript) <= rho * (1 + 1e-9)
        assert result.transcript.epsilon(1e-6) == pytest.approx(curator.ledger.spent_epsilon(1e-6))
    curator, result = run(LONG)
    assert result.status is Status.BUDGET_SPENT
    assert result.findings["budget_used"].value == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("rho", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize("most_steps", [1, 2, 500])
@pytest.mark.parametrize("variant", ["practical", "paper"])
def test_no_budget_and_no_data_make_it_overspend(variant, most_steps, rho):
    multiplier = 1.0 / math.sqrt(2.0 * rho)
    solver = replace(LONG, variant=variant, most_steps=most_steps, noise_multiplier=multiplier, window=30)
    for rows in (np.zeros((2, 1)), np.ones((2, 1)), np.full((2, 1), np.nan)):
        units = Units.from_arrays(rows, [1.0, -1.0], row_bound=1.0, n=2)
        _, result = run(solver, units=units)
        assert spent(result.transcript) <= rho * (1 + 1e-9)
        assert np.all(np.isfinite(result.params))
        assert result.transcript.releases <= solver.releases()


def test_a_single_step_gets_the_whole_budget():
    _, result = run(replace(SOLVER, most_steps=1))
    assert spent(result.transcript) == pytest.approx(RHO, rel=1e-9)


def test_nothing_is_released_after_the_last_step_and_the_norm_stays_in_its_range():
    _, result = run(LONG)
    costs = [0.5 * float(r.sensitivity[0] / r.scale[0]) ** 2 for r in result.transcript]
    assert sum(costs[:-1]) < RHO * (1 - 1e-9)  # only the last one empties the purse
    full = float(result.transcript[0].sensitivity[0]) / math.sqrt(2 * RHO)
    for release in list(result.transcript)[1:-1]:
        norm = float(release.scale[0]) / LONG.noise_ratio
        assert full * (1 - 1e-9) <= float(release.scale[0])
        assert 0.3 * full <= norm <= max(LONG.clip, full / LONG.noise_ratio) * (1 + 1e-9)


def test_replace_one_with_four_times_the_budget_is_add_or_remove_one():
    """The factor enters only through the sensitivity."""
    noise = [FormulaNoise(NOISES["cos"]) for _ in range(2)]
    added = replace(LONG, noise_multiplier=1.0 / math.sqrt(2.0 * RHO / 4.0), most_steps=40)
    one = run(replace(LONG, most_steps=40), noise=noise[0])[1]
    other = run(added, units=twelve_records("add-or-remove-one"), noise=noise[1])[1]
    np.testing.assert_allclose(one.params, other.params, rtol=1e-9)


def test_a_rotation_of_the_rows_rotates_the_run():
    units = twelve_records()
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    draws = np.random.default_rng(1).normal(size=(100, D))
    left = FormulaNoise(lambda k, shape: draws[k].reshape(shape))
    right = FormulaNoise(lambda k, shape: (rotation @ draws[k]).reshape(shape))
    turned = Units.from_arrays(rows @ rotation.T, targets, row_bound=1.0, n=N, storage="float64")
    short = replace(LONG, most_steps=30)
    one, other = run(short, noise=left)[1], run(short, units=turned, noise=right)[1]
    np.testing.assert_allclose(rotation @ np.asarray(one.params), other.params, rtol=1e-6)


EVERY_WAY = {
    "last": (LONG, LOGISTIC),
    "average": (replace(LONG, returns="average"), LOGISTIC),
    "flattest": (replace(LONG, returns="flattest"), LOGISTIC),
    "selected": (replace(LONG, returns="selected"), Problem(PlainLogistic(), Ridge(0.1))),
    "paper": (PAPER, LOGISTIC),
    "paper, selected": (replace(PAPER, returns="selected"), LOGISTIC),
    "ridge and ball": (LONG, Problem(PlainLogistic(), Ridge(0.1), L2Ball(0.5))),
    "l1": (replace(LONG, most_steps=100), Problem(losses.huber(0.5), L1(0.02))),
}


@pytest.mark.later("paper, selected", "selected")
@pytest.mark.parametrize("way", EVERY_WAY)
def test_it_replays_and_rehearses(way):
    solver, problem = EVERY_WAY[way]
    units = twelve_records()
    _, result = run(solver, problem=problem)
    again = solver.solve(Replay(result.transcript, units.public), problem)
    assert np.array_equal(again.params, result.params)
    assert again.status is result.status
    assert again.findings["gradient_norm"] == result.findings["gradient_norm"]
    assert result.transcript.event() == solver.event(units.public)
    rehearsal = DryRun(units.public)
    solver.solve(rehearsal, problem)
    assert rehearsal.transcript.event() == solver.event(units.public)


@pytest.mark.parametrize("way", ["last", "selected", "paper, selected", "ridge and ball"])
@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_record_moves_a_release_by_more_than_its_sensitivity(kind, way):
    solver, problem = EVERY_WAY[way]
    units = twelve_records()
    rows, targets = np.asarray(units.private_features, np.float64), np.asarray(units.private_targets)
    rows[3], targets[3] = hostile_rows(rows[5])[kind], -targets[3]
    right = Units.from_arrays(rows, targets, row_bound=1.0, n=N, storage="float64")
    audit, _ = run(replace(solver, most_steps=8), problem=problem, curator_type=Audit, right=(right,))
    assert max(ratio for _, ratio in audit.moves) <= 1.0


@pytest.mark.parametrize("understated", [False, True])
@pytest.mark.parametrize("variant", ["practical", "paper"])
def test_a_record_can_move_a_gradient_by_all_of_its_sensitivity(variant, understated):
    rows = np.tile([0.6, 0.0, 0.8], (N, 1))
    other = rows.copy()
    other[2] *= -1.0
    left, right = (Units.from_arrays(x, np.ones(N), row_bound=1.0, storage="float64") for x in (rows, other))
    solver = replace(SOLVER, variant=variant, clip=0.2, most_steps=3)
    options = {"understate": 0.002} if understated else {}
    audit, _ = run(solver, units=left, curator_type=Audit, right=(right,), **options)
    largest = max(ratio for _, ratio in audit.moves)
    assert largest > 1.0 if understated else 0.999 <= largest <= 1.0


def test_a_selection_is_priced_with_the_rest():
    selected = AdaptiveGradientDescent(returns="selected", selection_share=0.1)
    solver = selected.configure(Instance(Problem(losses.logistic), PUBLIC, BUDGET))
    event = solver.event(PUBLIC)
    assert 0.999 <= accounting.epsilon(event, 1e-6, PUBLIC.relation) <= 1.0
    gaussian = 0.5 / solver.noise_multiplier**2
    assert solver.selection.epsilon**2 / 8 == pytest.approx(0.1 / 0.9 * gaussian)
    assert solver.scaled(2.0).selection.epsilon == pytest.approx(solver.selection.epsilon / 2)


@pytest.mark.parametrize(
    ("clip", "curvature", "growth", "expected"),
    [
        (2.0, 1.0, KL(gamma=2**-0.5, kappa=2.0), 1.7847911718e-07),
        (2.0, 3.0, KL(gamma=4**-0.75, kappa=4 / 3), 1.2935384507e-04),
    ],
)
def test_the_prediction_has_its_reference_values(clip, curvature, growth, expected):
    solver = AdaptiveGradientDescent(
        clip=clip, curvature=curvature, trace_ratio=10.0, noise_ratio=2.0 / math.sqrt(10.0), growth=growth
    )
    problem = Problem(losses.RecordLoss(lambda w, x, y: jnp.sum(w * x)))
    plan = solver.plan(Instance(problem, PUBLIC, BUDGET))
    assert plan.predicted_excess == pytest.approx(expected, rel=1e-3)  # calibration leaves a little
    exact = replace(solver, noise_multiplier=1.0 / gaussian_mu(1.0, 1e-6), step_size=1.0, window=300)
    exact = exact.filled(Instance(problem, PUBLIC, BUDGET))
    assert exact.forecast(Instance(problem, PUBLIC, BUDGET)).excess == pytest.approx(expected, rel=1e-9)
    assert solver.plan(Instance(Problem(problem.loss), replace(PUBLIC, n=3), BUDGET)).predicted_excess <= (
        growth.excess_at(clip) * (1 + 1e-9)
    )


def test_the_plan_says_how_flat_an_iterate_can_become():
    flat = [
        AdaptiveGradientDescent(most_steps=10**9)
        .plan(Instance(Problem(losses.logistic), replace(PUBLIC, n=n), BUDGET))
        .indicators["stationarity"]
        .value
        for n in (1_000, 100_000)
    ]
    assert flat[0] == pytest.approx(10.0 * flat[1], rel=1e-2)  # n^-1/2
    assert (
        AdaptiveGradientDescent().plan(Instance(Problem(losses.huber(1.0)), PUBLIC, BUDGET)).predicted_excess
        is None
    )


def test_a_known_condition_sets_the_window():
    def window(problem):
        return AdaptiveGradientDescent().filled(Instance(problem, PUBLIC, BUDGET)).window

    assert window(Problem(losses.logistic)) == 300
    assert window(Problem(losses.logistic, Ridge(0.1))) == 30
    assert window(Problem(losses.logistic, growth=KL(gamma=10.0, kappa=2.0))) == 300
    assert window(Problem(losses.logistic, growth=KL(gamma=7.0, kappa=2.0))) == round(12 * 49 * 0.25)
    assert window(Problem(losses.logistic, growth=KL(gamma=0.1, kappa=2.0))) == 30
    assert window(Problem(losses.logistic, growth=KL(gamma=99.0, kappa=2.0))) == 500


def test_defaults_follow_the_kind_of_loss():
    own = Problem.from_pytree(lambda w, x, y: (x @ w["a"] - y) ** 2, {"a": jnp.zeros(49)})
    kinds = (
        (Problem(losses.logistic), 1.0, 3 / 10**0.5),
        (Problem(losses.softmax(4)), 2.0, 3 / 40**0.5),
        (own, 49.0, 3 / 7),
    )
    for problem, trace, ratio in kinds:
        solver = AdaptiveGradientDescent().filled(Instance(problem, PUBLIC, BUDGET))
        assert (solver.trace_ratio, solver.noise_ratio) == (trace, pytest.approx(ratio))
    few = AdaptiveGradientDescent().filled(Instance(Problem(losses.logistic), replace(PUBLIC, d=3), BUDGET))
    assert few.noise_ratio == 1.0
    assert (
        AdaptiveGradientDescent(variant="paper")
        .filled(Instance(Problem(losses.logistic), PUBLIC, BUDGET))
        .step_size
        == 2.0
    )


def test_the_lengths_for_a_loss_of_the_users_own_are_those_of_gradient_descent():
    wide = replace(PUBLIC, row_bound=2.0)
    for curvature, expected in ((math.inf, 0.5 * 4.0), (3.0, 3.0)):
        problem = Problem(losses.RecordLoss(lambda w, x, y: (x @ w - y) ** 4, curvature=curvature))
        solver = AdaptiveGradientDescent().filled(Instance(problem, wide, BUDGET))
        assert (solver.curvature, solver.window) == (expected, 300)
        assert solver.clip == 0.6 * 2.0
        assert solver.step_size == 1.0 / expected
    steep = Problem(losses.RecordLoss(lambda w, x, y: jnp.sin(3.0 * x @ w), lipschitz=6.0))
    solver = AdaptiveGradientDescent().filled(Instance(steep, wide, BUDGET))
    assert (solver.clip, solver.curvature) == (6.0, 0.5 * 6.0 * 2.0)


def test_without_noise_it_is_plain_descent():
    problem = Problem(losses.squared, Ridge(0.5))
    rows = np.random.default_rng(0).normal(size=(30, 3))
    units = Units.from_arrays(rows, rows @ [1.0, -2.0, 0.5], row_bound=10.0, storage="float64")
    result = minimize(
        problem,
        units,
        budget=Budget(math.inf, 1e-6),
        solver=AdaptiveGradientDescent(most_steps=300, step_size=0.2),
    )
    best = np.linalg.solve(rows.T @ rows / 30 + 0.5 * np.eye(3), rows.T @ (rows @ [1.0, -2.0, 0.5]) / 30)
    np.testing.assert_allclose(result.params, best, rtol=1e-8)
    assert result.transcript.releases == 300


@pytest.mark.audit
def test_a_network_of_the_users_own_is_fitted_from_its_pytree():
    def loss(params, features, target):
        hidden = jnp.tanh(features @ params["in"])
        return 0.5 * (hidden @ params["out"] - target) ** 2

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3))
    start = {"in": rng.normal(size=(3, 4)) / 2, "out": rng.normal(size=4) / 2}
    units = Units.from_arrays(rows, np.tanh(rows[:, 0]), row_bound=4.0)
    result = minimize(
        loss,
        units,
        budget=Budget(4.0, 1e-6),
        start=start,
        random_state=0,
        solver=AdaptiveGradientDescent(step_size=0.5, clip=1.0, window=60),
    )

    def mean_loss(params):
        return float(np.mean(jax.vmap(loss, (None, 0, 0))(params, jnp.asarray(rows), jnp.tanh(rows[:, 0]))))

    assert result.params["in"].shape == (3, 4)
    assert mean_loss(result.params) < 0.3 * mean_loss(start)
    assert "clip_from" in " ".join(result.plan.notices)


def test_a_clip_is_found_from_made_up_records():
    problem = Problem.from_pytree(lambda w, x, y: w["a"] * x[0] * y, {"a": 1.0})
    rows = np.array([[1.0], [2.0], [30.0]])
    assert clip_from(problem, rows, np.ones(3)) == 2.0
    assert clip_from(Problem(losses.softmax(3)), rows, np.zeros(3)) > 0.0
    with pytest.raises(ValueError, match="median gradient norm"):
        clip_from(problem, 0.0 * rows, np.ones(3))


def test_it_runs_whitened_and_for_users():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3)) @ np.diag([1.0, 0.1, 0.01])
    targets = np.where(rows @ [1.0, 10.0, 0.0] + rng.logistic(size=3000) / 10 > 0, 1.0, -1.0)
    budget = Budget(2.0, 1e-6)
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    whitened = Whitening(inner=AdaptiveGradientDescent())
    result = minimize(Problem(losses.logistic), units, budget=budget, solver=whitened, random_state=0)
    assert result.plan.settings["inner.returns"] == "average"
    assert result.transcript.event() == result.plan.event
    assert result.plan.epsilon <= budget.epsilon
    plain = minimize(
        Problem(losses.logistic), units, budget=budget, solver=AdaptiveGradientDescent(), random_state=0
    )

    def loss(params):
        return np.mean(np.logaddexp(0.0, -targets * (rows @ np.asarray(params))))

    assert loss(result.params) < loss(plain.params) < math.log(2.0)
    users = Units.from_arrays(rows, targets, row_bound=1.0, groups=np.repeat(np.arange(300), 10))
    owned = minimize(
        Problem(losses.logistic), users, budget=budget, solver=AdaptiveGradientDescent(), random_state=0
    )
    assert owned.transcript.event() == owned.plan.event


def test_a_divergent_run_returns_the_last_finite_point():
    steep = Problem(losses.RecordLoss(lambda w, x, y: jnp.sum(w**4)))
    solver = replace(LONG, step_size=1e308, clip=1e10, noise_multiplier=1e-3)
    _, result = run(solver, problem=steep, start=jnp.ones(D, jnp.float64))
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))


def test_what_cannot_be_solved_is_said():
    with pytest.raises(ValueError, match="without a penalty"):
        AdaptiveGradientDescent(variant="paper").check_applicable(
            Problem(losses.logistic, Ridge(0.1)), PUBLIC
        )
    with pytest.raises(ValueError, match="the penalty has none"):
        AdaptiveGradientDescent(returns="selected").check_applicable(
            Problem(losses.logistic, L1(0.1)), PUBLIC
        )
    with pytest.raises(ValueError, match="no balanced clip"):
        AdaptiveGradientDescent(balanced=True).check_applicable(Problem(losses.huber(1.0)), PUBLIC)
    for wrong in (
        {"variant": "fast"},
        {"returns": "best"},
        {"first_share": 0.0},
        {"clip": -1.0},
        {"most_steps": -1},
    ):
        with pytest.raises(ValueError, match=r"must be|one of"):
            AdaptiveGradientDescent(**wrong)


def excess_on(problem, n, solver, runs, epsilon=1.0):
    """The mean excess on n units of a problem whose mean loss is known exactly."""
    budget, found = Budget(epsilon, 1e-6), []
    for seed in range(runs):
        public = public_of(problem, n)
        configured = solver.configure(Instance(problem.problem, public, budget))
        ledger = Ledger(budget, public.relation, plan=configured.event(public))
        curator = ExactCurator(problem, public, ledger, noise=NoiseSource(seed), bind=True)
        found.append(
            problem.excess(configured.solve(curator, problem.problem, jnp.asarray(problem.start)).params)
        )
    return float(np.mean(found))


@pytest.mark.audit
@pytest.mark.parametrize(
    ("p", "variant", "slope", "within"),
    [
        (2.0, "practical", 2.2, 0.35),
        (4.0, "practical", 0.9, 0.15),
        (2.0, "paper", 1.2, 0.3),
        (4.0, "paper", 0.6, 0.15),
    ],
)
def test_the_excess_falls_with_the_number_of_units_as_it_should(p, variant, slope, within):
    problem = zoo.power(p=p, d=10)
    step_size = 1.0 / ((5.0 if variant == "practical" else 2.0) * problem.smoothness)
    solver = AdaptiveGradientDescent(
        variant=variant,
        noise_ratio=2.0 / math.sqrt(10.0),
        step_size=step_size,
        window=30,
        clip=problem.lipschitz,
    )
    found = [excess_on(problem, n, solver, 8) for n in (10_000, 1_000_000)]
    assert math.log10(found[0] / found[1]) / 2.0 == pytest.approx(slope, abs=within)


def test_the_sensitivity_at_the_point_is_what_counts():
    """The library's logistic loss has half the sensitivity of the clip at zero."""
    plain, exact = (
        run(replace(SOLVER, most_steps=2), problem=problem, noise=FormulaNoise(NOISES["zero"]))[1]
        for problem in (LOGISTIC, Problem(losses.logistic))
    )
    first, second = (run_.transcript for run_ in (plain, exact))
    assert second[0].scale[0] == pytest.approx(
        first[0].scale[0] / 2.0, rel=1e-4
    )  # the probe's price is fixed
    assert second[1].sensitivity[0] < 0.6 * first[1].sensitivity[0]
