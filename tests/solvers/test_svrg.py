"""Reference values of Wang, Ye, Xu 2017's Algorithms 1 and 2, repaired, and what the solvers' files promise."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.formula_noise import FormulaNoise, cosines
from tests.support.plain_logistic import PlainLogistic
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.errors import NotPriceable
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import EveryUnit, GaussianEvent, Poisson, Repeated, SampledEvent, leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public, Relation
from privopt.result import Status
from privopt.solve import minimize
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.svrg import SVRG

RIDGE = Problem(PlainLogistic(), Ridge(0.1))
CLOSE = {"rtol": 0, "atol": 2e-10}


def first_of(cycle):
    """Of so many draws in a row, only the first is noisy."""
    return lambda k, shape: (k % cycle == 0) * cosines(k // cycle, shape)


class ForcedBatches(LocalCurator):
    """A curator whose t-th inner step of epoch s draws the units i with i + s + t even."""

    def force(self, lengths):
        self.batches = [
            np.array([i for i in range(8) if (i + s + t) % 2 == 0])
            for s, length in enumerate(lengths)
            for t in range(length)
        ]
        return self

    def private_draw(self, sampling):
        return None if isinstance(sampling, EveryUnit) else self.batches.pop(0)

    def _compiles(self, slots, feeds):
        return False


def reference_units(**options):
    return Units.from_arrays(
        *reference_arrays(),
        row_bound=1.0,
        relation="add-or-remove-one",
        n=8,
        **({"storage": "float64"} | options),
    )


def solve(solver, problem, cycle=1):
    units = reference_units()
    ledger = Ledger(Budget(1e6, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
    curator = ForcedBatches(units, ledger, noise=FormulaNoise(first_of(cycle))).force(solver.lengths())
    return solver.solve(curator, problem)


GIVEN = {
    "epochs": 2,
    "rate": 0.5,
    "clip": 1.0,
    "noise_multiplier": 0.3,
    "curvature": 0.25,
    "radius": 20.0,
    "snapshot_share": 0.5,
    "snapshot_growth": 1.0,
    "snapshot_multipliers": (0.4, 0.4),
}


@pytest.mark.at_once("RV5d")
@pytest.mark.parametrize(
    ("solver", "problem", "expected"),
    [
        (
            SVRG(inner_steps=3, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, **GIVEN),
            RIDGE,
            [-0.1111750153, -0.2229476044, -0.2298644515],
        ),
        (
            SVRG.plus_plus(
                inner_steps=1, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, **GIVEN
            ),
            Problem(PlainLogistic(), L1(0.05)),
            [0.0, -0.0267623750, -0.1152497235],
        ),
        (
            SVRG(inner_steps=4, step_size=0.5, momentum=0.5, difference_clip=0.3, tail=0.5, **GIVEN),
            RIDGE,
            [-0.2183688410, -0.2994552802, -0.2397032220],
        ),
    ],
    ids=["RV5a", "RV5c", "RV5d"],
)
def test_the_reference_values(solver, problem, expected):
    np.testing.assert_allclose(solve(solver, problem).params, expected, **CLOSE)


def test_the_reference_value_of_the_papers_design():
    solver = SVRG(
        inner_steps=3, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, variant="paper", **GIVEN
    )
    result = solve(solver, RIDGE, cycle=2)  # all noise on the snapshot's release: RV5b
    np.testing.assert_allclose(result.params, [-0.0508265419, -0.1727711213, -0.2134587427], **CLOSE)


# Steps ---------------------------------------------------------------------------------------------------------------


def exact(solver, problem, **options):
    """Without noise, from all units: whether the compiled or eager loop descends to the optimum."""
    units = reference_units()
    ledger = Ledger(Budget(np.inf, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), problem, **options)


SILENT = {"noise_multiplier": 0.0, "clip": np.inf, "difference_clip": np.inf, "radius": np.inf}


def descended(problem):
    """The optimum, by gradient descent without noise."""
    units = reference_units()
    solver = GradientDescent(
        steps=600, step_size=2.0, clip=np.inf, momentum=0.5, returns="last", noise_multiplier=0.0
    )
    ledger = Ledger(Budget(np.inf, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger), problem).params


@pytest.mark.audit
def test_momentum_and_the_proximal_step_share_the_optimum_as_fixed_point():
    problem = Problem(losses.logistic, L1(0.05))
    units = reference_units()
    solver = SVRG(
        epochs=2, inner_steps=150, rate=1.0, step_size=1.0, momentum=0.8, tail=0.01, snapshot_multipliers=(0.0, 0.0),
        snapshot_share=0.5, snapshot_growth=1.0, curvature=0.25, **SILENT,
    )  # fmt: skip
    ledger = Ledger(Budget(np.inf, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger), problem)
    np.testing.assert_allclose(result.params, descended(problem), atol=1e-7)
    assert float(result.params[0]) == 0.0


@pytest.mark.audit
def test_infinite_epsilon_reaches_the_optimum_from_sampled_differences():
    budget = Budget(np.inf, 1e-6)
    result = minimize(RIDGE, reference_units(), budget=budget, solver=SVRG(rate=0.5), random_state=1)
    np.testing.assert_allclose(result.params, descended(RIDGE), atol=1e-6)


def test_the_iterates_stay_within_reach_of_the_snapshot():
    given = GIVEN | {"radius": 0.01}
    solver = SVRG(inner_steps=3, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, **given)
    assert 0 < np.linalg.norm(solve(solver, RIDGE).params) <= 0.02 * (1 + 1e-9)


def test_the_first_difference_of_an_epoch_is_released_as_exactly_zero():
    solver = SVRG(inner_steps=3, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, **GIVEN)
    differences = [r for r in solve(solver, RIDGE).transcript if r.name == "ClippedGradientDifference"]
    assert [r.count for r in differences] == [3, 3]
    for release in differences:
        assert release.sensitivity[0] == 0.0
        assert not np.any(release.released[0])
        assert np.all(release.sensitivity[1:] > 0)


class Eager(LocalCurator):
    """A curator that compiles no loops."""

    def _compiles(self, slots, feeds):
        return False


@pytest.mark.later("plus_plus")
@pytest.mark.parametrize("kind", [SVRG, SVRG.plus_plus])
def test_the_compiled_loop_walks_the_same_path_as_the_eager_one(kind):
    solver = kind(inner_steps=2, step_size=1.0, momentum=0.5, difference_clip=1.0, tail=0.5, **GIVEN)
    units = reference_units()
    ends = []
    for curator in (LocalCurator, Eager):
        ledger = Ledger(Budget(1e6, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
        ends.append(solver.solve(curator(units, ledger, noise=NoiseSource(4)), RIDGE).params)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)


def test_without_inner_steps_the_snapshots_are_released_and_the_start_comes_back():
    solver = SVRG(inner_steps=0, step_size=1.0, momentum=0.0, difference_clip=1.0, tail=1.0, **GIVEN)
    units = reference_units()
    ledger = Ledger(Budget(1e6, 1e-6), "add-or-remove-one", plan=solver.event(units.public))
    result = solver.solve(
        LocalCurator(units, ledger, noise=FormulaNoise()), RIDGE, jnp.asarray([1.0, 2.0, 3.0])
    )
    assert result.params.tolist() == [1.0, 2.0, 3.0]
    assert leaf_counts(result.transcript.event()) == ({GaussianEvent(0.4): 2}, ())


def test_barzilai_borwein_steps_never_exceed_the_given_step():
    settings = {
        "inner_steps": 5,
        "momentum": 0.0,
        "difference_clip": 1.0,
        "tail": 1.0,
        **(GIVEN | {"epochs": 3, "snapshot_multipliers": (0.4,) * 3}),
    }
    short = SVRG(step_size=0.01, barzilai_borwein=True, **settings)
    assert np.array_equal(solve(short, RIDGE).params, solve(SVRG(step_size=0.01, **settings), RIDGE).params)
    long = SVRG(step_size=30.0, barzilai_borwein=True, **settings)
    assert not np.array_equal(
        solve(long, RIDGE).params, solve(SVRG(step_size=30.0, **settings), RIDGE).params
    )


def test_a_diverging_run_gives_finite_parameters_and_says_so():
    solver = SVRG(
        inner_steps=4,
        step_size=1e300,
        momentum=0.5,
        difference_clip=1.0,
        tail=1.0,
        **(GIVEN | {"radius": np.inf}),
    )
    result = solve(solver, Problem(losses.squared, Ridge(1e200)))
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))


# Price ---------------------------------------------------------------------------------------------------------------


def public(n, d=20, relation=Relation.ADD_OR_REMOVE_ONE):
    return Public(n=n, d=d, relation=relation)


def test_the_calibrated_multipliers():
    given = SVRG(rate=0.02, inner_steps=100, snapshot_share=0.8)
    solver = given.configure(
        Instance(Problem(losses.logistic, Ridge(0.01)), public(1_000_000), Budget(1.0, 1e-6))
    )
    expected = [90.1154805, 52.0281969, 30.0384935, 17.3427323, 10.0128312, 5.7809108]
    np.testing.assert_allclose(solver.snapshot_multipliers, expected, rtol=1e-8)
    assert solver.noise_multiplier == pytest.approx(4.8009, rel=2e-3)


@pytest.mark.later("SVRG-Relation.REPLACE_ONE", "plus_plus-Relation.ADD_OR_REMOVE_ONE")
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("kind", [SVRG, SVRG.plus_plus])
def test_a_configured_run_costs_its_budget_and_no_more(kind, relation):
    known, budget = public(50_000, relation=relation), Budget(1.0, 1e-6)
    solver = kind().configure(Instance(RIDGE, known, budget))
    price = accounting.epsilon(solver.event(known), budget.delta, relation, near=budget.epsilon)
    assert solver.fallback is None
    assert 0.999 <= price / budget.epsilon <= 1.0
    assert solver.noise_multiplier * relation.factor >= 1.2
    assert solver.configure(Instance(RIDGE, known, budget)) == solver
    cheaper = accounting.epsilon(solver.scaled(2.0).event(known), budget.delta, relation, near=budget.epsilon)
    assert cheaper < 0.6 * price


def test_every_unit_in_every_batch_is_priced_as_gaussian_noise_alone():
    known, budget = public(50_000), Budget(1.0, 1e-6)
    solver = SVRG(rate=1.0).configure(Instance(RIDGE, known, budget))
    leaves, _ = leaf_counts(solver.event(known))
    assert all(isinstance(leaf, GaussianEvent) for leaf in leaves)
    spent = sum(count / leaf.noise_multiplier**2 for leaf, count in leaves.items())
    assert spent == pytest.approx(gaussian_mu(1.0, 1e-6) ** 2, rel=1e-6)
    assert solver.passes() == 6 + 2 * 6 * solver.inner_steps


def test_epochs_of_svrg_plus_plus_double():
    solver = SVRG.plus_plus().configure(Instance(RIDGE, public(200_000), Budget(1.0, 1e-6)))
    assert solver.lengths() == tuple(solver.inner_steps * 2**s for s in (1, 2, 3, 4))
    assert solver.releases() == 4 + 30 * solver.inner_steps


@pytest.mark.audit
def test_the_papers_noise_at_its_settings_is_far_from_what_is_claimed():
    n, steps, epsilon, delta = 200_000, 75_000, 0.2, 1e-3
    papers = np.sqrt(steps * np.log(1 / delta)) / (n * epsilon)  # equation (3) with c = 1, over G
    more = 20 * papers  # and even twenty times that, against a contribution of norm 2 G
    event = Repeated(SampledEvent(Poisson(1 / n), GaussianEvent(more / 2)), steps)
    assert accounting.delta(event, epsilon, "add-or-remove-one") > 100 * delta


def test_the_papers_design_split_in_two_costs_little_more_than_one_noise():
    solver = SVRG(variant="paper", epochs=6, inner_steps=100, rate=0.01, snapshot_share=0.8)
    solver = solver.configure(
        Instance(Problem(losses.logistic, Ridge(0.01)), public(100_000), Budget(1.0, 1e-6))
    )
    together = np.hypot(solver.snapshot_multipliers[0], solver.noise_multiplier * 0.25 / 0.01) / 100_000
    assert together == pytest.approx(1.3141e-3, rel=2e-3)
    assert solver.releases() == 1200


def test_a_delta_of_zero_is_refused():
    with pytest.raises(NotPriceable, match="delta = 0"):
        SVRG(fall_back=False).configure(Instance(RIDGE, public(50_000), Budget(1.0, 0.0)))


# One unit ------------------------------------------------------------------------------------------------------------


@pytest.mark.audit
@pytest.mark.parametrize("variant", ["once", "paper"])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_one_unit_moves_every_query_by_its_sensitivity_and_no_more(relation, variant):
    solver = SVRG(
        epochs=2, inner_steps=8, rate=0.5, step_size=2.0, momentum=0.0, clip=0.4, difference_clip=0.2, curvature=0.25,
        tail=1.0, radius=20.0, noise_multiplier=8.0, snapshot_multipliers=(8.0, 8.0), snapshot_share=0.5,
        snapshot_growth=1.0, variant=variant,
    )  # fmt: skip
    worst = {}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(40, 5))
        targets = np.sign(rng.normal(size=40))
        other = rows.copy()
        other[0] = -rows[0] if relation == "replace-one" else 0.0
        left, right = (
            Units.from_arrays(x, targets, row_bound=1.0, relation=relation, n=40) for x in (rows, other)
        )
        ledger = Ledger(Budget(1e6, 1e-6), relation, plan=solver.event(left.public))
        audit = Audit(left, right, ledger, noise=NoiseSource(seed))
        solver.solve(audit, RIDGE)
        for name, ratio in audit.moves:
            worst[name] = max(worst.get(name, 0.0), ratio)
    assert max(worst.values()) <= 1.0
    assert worst["ClippedGradient"] >= 1 - 1e-6
    if relation == "add-or-remove-one":
        assert worst["ClippedGradientDifference"] >= 1 - 1e-6


# Stability -----------------------------------------------------------------------------------------------------------


def configured(n, **settings):
    problem, budget = Problem(losses.logistic, Ridge(0.01)), Budget(1.0, 1e-5)
    instance = Instance(problem, public(n), budget)
    solver = SVRG(**settings).configure(instance)
    return solver, solver.instability(instance), solver.forecast(instance).notices


def test_with_enough_units_nothing_is_lowered():
    solver, nu, notices = configured(20_000)
    assert (solver.inner_steps, solver.snapshot_share, solver.momentum) == (52, 0.9, 0.0)
    assert nu < 0.15
    assert notices == ()


def test_first_the_inner_steps_are_lowered_then_the_share():
    fewer, nu, _ = configured(4_000)
    assert 30 < fewer.inner_steps < 52
    assert fewer.snapshot_share == 0.9
    assert nu <= 0.4
    less, nu, _ = configured(2_000)
    assert less.inner_steps == 30
    assert 0.5 < less.snapshot_share < 0.9
    assert nu == pytest.approx(0.4)


def test_too_few_units_fall_back_to_gradient_descent_with_a_sentence():
    solver, nu, notices = configured(500)
    assert nu > 0.4
    assert isinstance(solver.fallback, GradientDescent)
    assert f"nu = {nu:.3g}" in notices[0]
    assert "gradient descent runs instead" in notices[0]
    known = public(500)
    problem, budget = Problem(losses.logistic, Ridge(0.01)), Budget(1.0, 1e-5)
    descent = GradientDescent().configure(Instance(problem, known, budget))
    assert solver.fallback == descent
    assert solver.event(known) == descent.event(known)
    assert (solver.releases(), solver.passes()) == (descent.releases(), descent.passes())
    rehearsal = DryRun(known)
    solver.solve(rehearsal, problem)
    assert leaf_counts(rehearsal.transcript.event()) == leaf_counts(descent.event(known))


def test_what_is_given_is_kept_even_where_it_is_unstable():
    solver, nu, notices = configured(500, inner_steps=60, fall_back=False)
    assert (solver.inner_steps, solver.fallback) == (60, None)
    assert nu > 0.4
    assert "stability test fails" in notices[-1]


@pytest.mark.audit
def test_a_bad_condition_number_asks_for_momentum():
    known, budget = public(1_000_000), Budget(1.0, 1e-6)
    solver = SVRG().configure(Instance(Problem(losses.logistic, Ridge(1e-3)), known, budget))
    assert (solver.momentum, solver.inner_steps, solver.tail) == (0.9, 100, 0.5)
    free_intercept = Ridge(1e-2, weights=(1.0,) * 19 + (0.0,))
    solver = SVRG().configure(Instance(Problem(losses.logistic, free_intercept), known, budget))
    assert (solver.momentum, solver.inner_steps) == (0.0, 52)


def test_other_coordinates_change_lengths_and_no_price():
    known, budget = public(1_000_000), Budget(1.0, 1e-6)
    solver = SVRG().configure(Instance(RIDGE, known, budget))
    there = solver.in_coordinates(
        Coordinates(
            matrix=jnp.eye(20), stretch=1.0, clip=3.0, smoothness=0.3, ridge_smoothness=0.2, momentum=0.5
        )
    )
    assert there.event(known) == solver.event(known)
    assert (there.clip, there.difference_clip, there.curvature, there.step_size) == (
        3.0,
        3.0,
        0.3,
        pytest.approx(2.0),
    )
    unstable = SVRG().configure(Instance(RIDGE, public(100), budget))
    assert unstable.fallback is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "papers"}, r"variant must be one of \['once', 'paper'\], got 'papers'"),
        ({"schedule": "longer"}, r"schedule must be one of \['equal', 'doubling'\], got 'longer'"),
        ({"epochs": -1}, "epochs must be at least 0, got -1"),
        ({"rate": 0.0}, "rate must be above 0 and at most 1, got 0.0"),
        ({"snapshot_growth": 0.0}, "snapshot_growth must be above 0 and finite, got 0.0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SVRG(**settings)
