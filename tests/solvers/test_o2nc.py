"""Reference runs of online-to-non-convex descent, and what its file promises."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.formula_noise import FormulaNoise
from tests.support.nonsmooth_reference import ReluAbsolute, formula, reference_rows

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import L2Ball
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1
from privopt.public import Public
from privopt.result import Status
from privopt.solve import minimize, plan
from privopt.solvers.clip_choice import PrivateClip
from privopt.solvers.o2nc import O2NC

CLOSE = {"rtol": 0, "atol": 1e-8}
PROBLEM = Problem(ReluAbsolute())
GUARANTEE = {
    "mode": "guarantee",
    "radius": 0.3,
    "step_size": 0.15,
    "window": 5,
    "steps": 20,
    "certificate_share": 0.0,
}


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def units_of(relation="replace-one", scale=1.0):
    rows, targets = reference_rows()
    return Units.from_arrays(rows, targets, row_bound=1.0 + 1e-6, storage="float64", relation=relation)


def solve(noise=None, units=None, problem=PROBLEM, start=None, **settings):
    """A run whose noise has a standard deviation of 0.05: 1.25 times the sensitivity 2 * 0.8 / 40."""
    units = units or units_of()
    settings = {"clip": 0.8, "noise_multiplier": 1.25, "places": "middle", **settings}
    solver = O2NC(**settings).filled(Instance(problem, units.public, Budget(1.0, 1e-6)))
    ledger = Ledger(Budget(1e6, 1e-6), units.public.relation, plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=noise or FormulaNoise(formula))
    return solver.solve(curator, problem, start)


def test_the_reference_run():
    result = solve(**GUARANTEE, returns="last")
    np.testing.assert_allclose(result.params, [1.4280598570, -0.2912600793, -0.0218020862], **CLOSE)


def test_the_reference_run_cut_after_a_window():
    result = solve(**{**GUARANTEE, "steps": 9}, returns="last")  # one window of 5
    np.testing.assert_allclose(result.params, [0.0596087979, -0.0304062476, -0.0201235931], **CLOSE)
    assert result.transcript.releases == 5


def gradients_of(result):
    return [np.asarray(release.released[0]) for release in result.transcript if release.sensitivity.size]


def test_the_released_windows_of_the_reference_run():
    released = np.array(gradients_of(solve(**GUARANTEE, returns="last")))
    norms = np.linalg.norm(released.reshape(4, 5, 3).mean(axis=1), axis=1)
    np.testing.assert_allclose(norms, [0.2029348055, 0.2138771442, 0.1218689450, 0.0553027838], **CLOSE)


def test_the_practical_reference_run():
    """Noise of 0.02 sets the step size, 0.05 is drawn: the reference keeps the two apart."""
    louder = FormulaNoise(lambda k, shape: 2.5 * formula(k, shape))
    result = solve(louder, oracle="gradients", distance=2.0, steps=60, window=4, noise_multiplier=0.5)
    np.testing.assert_allclose(result.params, [1.7801320633, -0.8912944539, 1.5653941901], **CLOSE)


def test_the_schedule_of_the_practical_mode():
    public = Public(n=20_190, d=10, row_bound=1.0)
    solver = O2NC(distance=4.0, clip=1.0).configure(Instance(PROBLEM, public, Budget(1.0, 1e-6)))
    sigma = solver.deviation(public)
    assert sigma == pytest.approx(0.007248497753, rel=1e-3)  # calibration leaves a little
    exact = 2.0 * math.sqrt(300) / (20_190 * gaussian_mu(1.0, 1e-6))
    assert exact == pytest.approx(0.007248497753, abs=1e-10)
    step_sizes = solver.schedule(parameters=10, stddev=0.007248497753)
    radii, longest = solver.windows.reaches, solver.windows.longest
    for t, a, length, eta in (
        (1, 1.016666666667, 0.096825396825, 0.287838601244),
        (300, 0.02, 0.001904761905, 0.005662398713),
    ):
        assert radii[t - 1] == pytest.approx(a, abs=1e-10)
        assert longest[t - 1] == pytest.approx(length, abs=1e-10)
        assert step_sizes[t - 1] == pytest.approx(eta, abs=1e-10)


@pytest.mark.audit
def test_a_rescaled_problem_is_solved_by_the_rescaled_run():
    """x -> 4 x: rows and clip a quarter, distance four times as long."""
    rows, targets = reference_rows()
    wide = Units.from_arrays(rows / 4.0, targets, row_bound=(1.0 + 1e-6) / 4.0, storage="float64")
    settings = {"steps": 40, "window": 4, "oracle": "gradients"}
    plain = solve(distance=2.0, **settings)
    scaled = solve(units=wide, distance=8.0, clip=0.2, **settings)
    np.testing.assert_allclose(scaled.params, 4.0 * np.asarray(plain.params), rtol=1e-6)


def test_no_run_goes_further_than_its_steps_allow():
    enormous = FormulaNoise(lambda k, shape: 1e6 * formula(k, shape))
    result = solve(enormous, distance=2.0, steps=40, window=4)
    solver = O2NC(distance=2.0, steps=40, window=4, mode="practical")
    longest = 2.0 * solver.windows.reaches / 5.0
    assert np.linalg.norm(result.params) <= longest.sum()
    assert result.status is Status.FINISHED


@pytest.mark.parametrize("steps", [0, 7])
def test_few_steps_are_whole_windows(steps):
    result = solve(steps=steps)
    assert result.transcript.releases == steps  # windows of 1
    assert np.all(np.isfinite(result.params))
    if steps == 0:
        assert len(result.transcript) == 0


def test_one_parameter_two_units_and_no_noise():
    units = Units.from_arrays(np.ones((2, 1)), np.array([0.2, 0.4]), row_bound=1.001)
    for epsilon in (1.0, math.inf):
        result = minimize(
            losses.capped(0.5), units, budget=Budget(epsilon, 1e-3), solver=O2NC(steps=20, window=4)
        )
        assert np.isfinite(result.params).all()
    assert 0.1 < float(result.params[0]) < 0.5  # without noise, near the targets


def test_the_certificate_of_the_guarantee_mode_is_released_and_priced():
    units = units_of()
    solver = O2NC(mode="guarantee", steps=20, window=5, clip=1.0)
    result = minimize(PROBLEM, units, budget=Budget(2.0, 1e-6), solver=solver, random_state=1)
    assert result.transcript.releases == 21
    assert result.transcript.epsilon(1e-6) <= 2.0
    bound, estimate = (result.findings[name].value for name in ("certificate", "certificate_estimate"))
    assert bound >= 0.0
    assert estimate > 0.0
    assert len(result.pictures) == 1
    assert "released for a part of the budget" in result.findings["certificate"].meaning


@pytest.mark.audit
def test_what_a_certificate_cannot_say_it_does_not_say():
    units, budget = units_of(), Budget(2.0, 1e-6)
    settings = {"steps": 10, "clip": 1.0}
    by_values = minimize(PROBLEM, units, budget=budget, solver=O2NC(oracle="values", **settings))
    assert "certificate_approximate" in by_values.findings
    assert "certificate" not in by_values.findings
    moving = minimize(
        PROBLEM, units, budget=budget, solver=O2NC(oracle="gradients", quantile=0.5, **settings)
    )
    assert "certificate" not in moving.findings
    best = minimize(PROBLEM, units, budget=budget, solver=O2NC(returns="best", **settings))
    assert not best.findings


def test_a_clip_that_follows_its_quantile_finds_the_gradients():
    """No gradient is longer than 1: a clip that begins at 0.02 goes up to it, and one that begins at 2 stays."""
    units = units_of()
    for first, low, high in ((0.02, 0.5, 1.7), (2.0, 2.0, 2.1)):
        solver = O2NC(clip=first, quantile=0.9, oracle="gradients", steps=60, distance=0.01, clip_rate=0.3)
        result = minimize(PROBLEM, units, budget=Budget(1e4, 1e-6), solver=solver, random_state=1)
        last = result.transcript[-1].sensitivity[0] * 40 / 2.0  # sqrt(c^2 + h^2)
        assert low < last < high


def test_samples_and_parts_are_priced_as_such():
    instance = Instance(PROBLEM, Public(n=1_000, d=3, row_bound=1.0), Budget(1.0, 1e-6))
    everybody, sampled, parts = (
        O2NC(steps=50, **one).configure(instance)
        for one in ({}, {"rate": 0.1, "oracle": "gradients"}, {"blocks": 5})
    )
    assert parts.noise_multiplier == pytest.approx(everybody.noise_multiplier / math.sqrt(5.0), rel=1e-3)
    assert sampled.noise_multiplier < everybody.noise_multiplier
    assert (everybody.passes(), sampled.passes(), parts.passes()) == (50.0, 5.0, 10.0)


@pytest.mark.parametrize(
    ("solver", "problem", "why"),
    [
        (O2NC(), Problem(losses.logistic, constraint=L2Ball(1.0)), "cannot be kept in a set"),
        (O2NC(), Problem(losses.logistic, L1(0.1)), "the penalty has none"),
        (O2NC(oracle="exact"), Problem(losses.softmax(3)), "no closed average"),
        (O2NC(blocks=30), Problem(losses.logistic), "less than two units"),
        (O2NC(quantile=0.5, oracle="jitter"), Problem(losses.logistic), "follows a quantile"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(solver, problem, why):
    with pytest.raises(ValueError, match=why):
        solver.configure(Instance(problem, Public(n=40, d=3), Budget(1.0, 1e-6)))


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="give one of them"):
        O2NC(rate=0.1, blocks=3)
    with pytest.raises(ValueError, match="smoothing must be positive"):
        O2NC(oracle="jitter", smoothing=0.0)
    with pytest.raises(ValueError, match="leave out `rate`"):
        O2NC(oracle="values", rate=0.1)


def own(params, features, target):
    """A user-written loss."""
    return jnp.abs(jnp.tanh(features @ params) - target)


def policy(params, features, target):
    """A black box: a threshold, then a cost."""
    return abs(float(features @ params) - target) + (params[0] > 0.5)


def squares(params, features, target):
    return (features @ params - target) ** 2


@pytest.mark.parametrize(
    ("stated", "taken"),
    [
        ({"curvature": 2.0, "lipschitz": 1.0, "convex": True}, "gradient-descent: "),
        ({"curvature": 2.0, "lipschitz": 1.0, "growth": KL(gamma=1.0, kappa=2.0)}, "gradient-descent: "),
        ({"curvature": 2.0, "convex": True}, "privately clipped gradient-descent: "),
        ({"curvature": 2.0, "lipschitz": 1.0}, "gradient-descent: "),
        ({"lipschitz": 1.0}, "privately clipped gradient-descent: "),
        ({"lipschitz": 1.0, "convex": False}, "privately clipped o2nc: "),
    ],
)
def test_auto_uses_what_a_loss_states_and_that_it_looks_convex(stated, taken):
    problem = Problem.from_pytree(squares, np.zeros(3), **stated)
    written = str(plan(problem, n=2_000, d=3, epsilon=1.0, delta=1e-6, row_bound=1.0, solver="auto"))
    assert written.startswith(taken)


@pytest.mark.parametrize(("host", "steps"), [(True, 100), (False, 300)])
def test_values_of_a_traced_black_box_are_asked_in_as_many_steps_as_gradients(host, steps):
    box = BlackBox(squares, value_range=(0.0, 10.0), scale=1.0, host=host)
    problem = Problem.of_values(box, np.zeros(3))
    instance = Instance(problem, Public(n=2_000, d=3, row_bound=1.0), Budget(1.0, 1e-6))
    assert O2NC().configure(instance).steps == steps


def test_auto_takes_it_where_the_loss_is_ones_own_or_not_convex():
    public = {"n": 2_000, "d": 3, "epsilon": 1.0, "delta": 1e-6, "row_bound": 1.0, "solver": "auto"}
    written = str(plan(own, start=np.zeros(3), **public))
    assert "privately clipped o2nc" in written
    assert "not known to be convex" in written
    assert "o2nc: " in str(plan(losses.ramp(), **(public | {"d": 2_500})))  # where whitening does not apply
    assert "whitened" in str(plan(losses.ramp(), **public))
    box = BlackBox(policy, value_range=(0.0, 10.0), scale=2.0)
    by_values = str(plan(box, start=np.zeros(3), **public))
    assert "privately clipped o2nc" in by_values
    assert "1,212,000 values" in by_values  # 2 k T n, and those of one step for the clip
    assert "whitened" in str(plan(losses.logistic, **public))


@pytest.mark.audit
def test_a_black_box_is_minimised_by_values_with_a_private_clip():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1.0, 1.0, (60, 2))
    units = Units.from_arrays(rows, rows @ [1.0, -1.0], row_bound=2.0)
    box = BlackBox(policy, value_range=(0.0, 5.0), scale=1.0)
    solver = PrivateClip(inner=O2NC(steps=10))
    result = minimize(box, units, budget=Budget(5.0, 1e-3), solver=solver, start=np.zeros(2), random_state=1)
    assert result.params.shape == (2,)
    assert 0.0 < result.findings["clip"].value <= 25.0
    assert result.transcript.epsilon(1e-3) <= 5.0


def test_a_guarantee_has_its_bound_or_says_that_it_is_vacuous():
    large, small = (
        O2NC(mode="guarantee", returns="random", radius=0.1, window=400, steps=20_000).plan(
            Instance(Problem(losses.ramp()), Public(n=n, d=3, row_bound=1.0), Budget(4.0, 1e-6))
        )
        for n in (3_000_000, 100)
    )
    assert large.bound is not None
    assert large.bound.value < 0.5  # no gradient is longer
    assert small.bound is None
    assert any("vacuous" in notice for notice in small.notices)
