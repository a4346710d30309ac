"""The share of the achievable improvement that a run's releases tell, and the sentences on it."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.improvement_calibration import summary, told

from privopt import Budget, LinearRegression, LogisticRegression, minimize
from privopt.data.units import Units
from privopt.ledger.curves import gaussian_mu
from privopt.planning import improvement
from privopt.planning.improvement import Evidence, improvement_share
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE
from privopt.planning.task import Instance
from privopt.planning.whitening import SHARE, WhiteningRule
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solvers.whitening import FITTED, Whitening, fitted

D, N = 12, 20_000
PROBLEM = Problem(losses.logistic, Ridge(1e-5, (1.0,) * (D - 1) + (0.0,)), constant=D - 1)


def instance(epsilon: float = 1.0, n: int = N, problem: Problem = PROBLEM) -> Instance:
    return Instance(problem, Public(n=n, d=D), Budget(epsilon, 1e-8))


def said(strength: float, noise: float, *, loss: Any = losses.logistic) -> Any:
    """Of one gradient at 0 that is this strong in every direction but the constant's, with this noise."""
    rule = WhiteningRule.of(instance(n=10**7), SHARE)
    draw = np.random.default_rng(1)
    gradient = strength * draw.choice([-1.0, 1.0], D) + noise * draw.standard_normal(D)
    evidence = Evidence.of([jnp.zeros(D)], [jnp.asarray(gradient)], [noise], 1.0)
    assert evidence is not None
    return improvement_share(rule, np.eye(D) / D, evidence, loss, np.full(D, 0.1), Public(n=10**7, d=D))


def test_a_strong_signal_is_found_and_a_faint_one_is_not() -> None:
    strong, faint = said(0.1, 1e-3), said(1e-4, 0.05)
    assert strong.is_found
    assert strong.low < strong.middle < strong.high <= 1.0
    assert not faint.is_found
    public, budget = Public(n=10_000, d=D), Budget(1.0, 1e-8)
    assert improvement.reached(faint, public, budget) == improvement.NOTHING_FOUND
    assert set(improvement.findings(faint, public, budget)) == {IMPROVEMENT_SHARE}
    assert set(improvement.findings(strong, public, budget)) == {IMPROVEMENT_SHARE, *IMPROVEMENT_ENDS}


def test_a_model_at_the_optimum_has_nearly_all_and_one_far_from_it_less_than_nothing() -> None:
    rule, draw = WhiteningRule.of(instance(n=10**7), SHARE), np.random.default_rng(2)
    rows = rule.directions(np.eye(D) / D)
    best = draw.normal(size=D) * 0.3
    points = [jnp.asarray(0.5 * best * step / 10 + 0.1 * draw.normal(size=D)) for step in range(10)]
    gradients = [jnp.asarray(0.25 * rows.damping) * (point - best) for point in points]
    evidence = Evidence.of(points, gradients, [1e-4] * 10, 1.0)
    assert evidence is not None
    shares = []
    for times in (1.0, 0.7, -1.0):
        params = rows.map() @ best * times
        found = improvement_share(
            rule, np.eye(D) / D, evidence, losses.logistic, params, Public(n=10**7, d=D)
        )
        assert found is not None
        shares.append(found.middle)
    assert shares[0] > 0.97
    assert 0.8 < shares[1] < 0.95
    assert shares[2] < -1.0


def test_nothing_is_said_without_noise_of_other_losses_or_of_what_is_not_finite() -> None:
    rule, public, zeros = WhiteningRule.of(instance(), SHARE), Public(n=N, d=D), jnp.zeros(D)
    assert Evidence.of([zeros], [zeros], [0.0], 1.0) is None
    assert Evidence.of([], [], [], 1.0) is None
    broken = Evidence.of([zeros], [zeros * math.nan], [1.0], 1.0)
    whole = Evidence.of([zeros], [zeros], [1.0], 1.0)
    assert broken is not None
    assert whole is not None
    assert improvement_share(rule, np.eye(D), broken, losses.logistic, zeros, public) is None
    assert improvement_share(rule, np.eye(D), whole, losses.huber(0.5), zeros, public) is None
    assert improvement_share(rule, np.eye(D), whole, losses.logistic, jnp.zeros((D, 3)), public) is None


@pytest.mark.at_once("numbers that are coin flips-8.0", "unreadable-8.0")
@pytest.mark.parametrize("epsilon", [2.0, 8.0])
@pytest.mark.parametrize("kind", ["coin flips", "constant", "unreadable", "numbers that are coin flips"])
def test_of_targets_that_say_nothing_it_is_said_that_nothing_was_found(kind: str, epsilon: float) -> None:
    draw = np.random.default_rng(4)
    features = draw.uniform(-1.0, 1.0, (4_000, 8))
    flips = draw.integers(0, 2, 4_000)
    declared: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6, "bounds": (-1, 1), "random_state": 3}
    model: Any = LogisticRegression(classes=[0, 1], **declared)
    if kind == "numbers that are coin flips":
        model = LinearRegression(target_bounds=(0, 1), **declared)
    targets = {"constant": np.ones(4_000), "unreadable": np.full(4_000, 7)}.get(kind, flips)
    found = model.fit(features, targets).privacy_.findings[IMPROVEMENT_SHARE]
    assert found.meaning == improvement.NOTHING_FOUND
    assert found.value == 0.0


@pytest.mark.audit
def test_ranges_hold_on_twenty_problems_whose_share_is_known() -> None:
    found = summary(told(seed, sizes=(3_000,), widths=(6,)) for seed in range(400, 420))
    assert found["claimed"] <= 0.5  # of two
    assert found["given"] >= 0.7
    assert found["holds"] >= 0.75


@pytest.mark.audit
def test_ranges_hold_on_two_hundred_problems_whose_share_is_known() -> None:
    found = summary(told(seed) for seed in range(200))
    assert found["claimed"] <= 0.1
    assert found["given"] >= 0.8
    assert 0.85 <= found["holds"] <= 0.95


def test_sentences_round_and_say_what_would_double_the_share() -> None:
    public, budget = Public(n=10_000, d=D), Budget(1.0, 1e-8)
    said = improvement.expected(4.0, 2.0, public, budget)
    assert said.startswith(f"between 10 % and 35 % {improvement.OF}; about 27,000 records at the same")
    epsilon = float(said.split("or epsilon ")[1].split(" ")[0])
    times = gaussian_mu(epsilon, 1e-8) / gaussian_mu(1.0, 1e-8)
    assert times == pytest.approx(4.0 / 1.5, rel=0.05)
    assert said.endswith("would double it")
    assert improvement.expected(1.0, 2.0, public, budget).endswith("would bring it to 90 %")
    assert improvement.expected(0.01, 2.0, public, budget).endswith("would add little")
    far = improvement.more(0.1, lambda _: 1e3, public, budget)
    assert far == "; more than 100 times as many records would double it"
    assert improvement.more(0.1, lambda _: 90.0, public, Budget(3.0, 1e-8)).endswith(
        "epsilon would double it"
    )
    assert [improvement.about(share) for share in (0.01, 0.38, 0.99)] == [
        "less than 10 %",
        "about 40 %",
        "more than 90 %",
    ]


def test_predictions_are_ranges_that_shrink_with_data_and_budget() -> None:
    solver = Whitening()
    found = solver.plan(instance())
    assert found.predicted_range is not None
    assert found.predicted_excess is not None
    low, high = found.predicted_range
    assert low < found.predicted_excess < high
    assert f"between {low:.3g} and {high:.3g}" in str(found)
    assert improvement.OF in " ".join(str(found).split())
    for better in (instance(epsilon=3.0), instance(n=4 * N)):
        plan = solver.plan(better)
        assert plan.predicted_range is not None
        assert plan.predicted_range[1] < high
        assert plan.indicators[IMPROVEMENT_SHARE].value > found.indicators[IMPROVEMENT_SHARE].value
    hopeless = solver.plan(instance(epsilon=1e-4))
    assert hopeless.predicted_range is not None
    assert hopeless.predicted_range[1] <= math.log(2.0) * (1 + 1e-9)


@pytest.mark.parametrize(
    "loss",
    [
        losses.logistic,
        losses.squared,
        losses.huber(0.5),
        losses.smoothed_hinge(0.5),
        losses.quantile(0.5, 0.1),
    ],
)
def test_every_fitted_loss_has_a_range(loss: Any) -> None:
    assert type(loss) in FITTED
    found = Whitening().plan(instance(problem=Problem(loss, PROBLEM.regulariser, constant=D - 1)))
    assert found.predicted_range is not None


def test_other_losses_have_no_range_and_no_noise_has_no_error() -> None:
    other = losses.smoothed(losses.absolute(), radius=0.1)
    assert fitted(other) is None
    exact = Whitening().plan(instance(epsilon=math.inf))
    assert (exact.predicted_excess, exact.predicted_range) == (0.0, None)
    plan = Whitening().plan(instance(problem=Problem(other, PROBLEM.regulariser, constant=D - 1)))
    assert plan.predicted_range is None
    assert plan.predicted_excess is not None
    assert IMPROVEMENT_SHARE not in plan.indicators


@pytest.mark.audit
def test_a_run_says_about_how_much_was_reached() -> None:
    generator = np.random.default_rng(3)
    features = generator.uniform(-1.0, 1.0, (N, D - 1))
    rows = np.column_stack([features, np.ones(N)]) / math.sqrt(D)
    chances = 1.0 / (1.0 + np.exp(-features @ generator.normal(size=D - 1)))
    targets = np.where(generator.random(N) < chances, 1.0, -1.0)
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    shares = []
    for epsilon in (0.003, 0.03, 0.3):
        result = minimize(PROBLEM, units, budget=Budget(epsilon, 1e-8), solver=Whitening(), random_state=4)
        found = result.findings[IMPROVEMENT_SHARE]
        shares.append(found.value)
        assert found.meaning in str(result.report).replace("\n                ", " ")
        assert found.meaning.split(" ")[-1] in result.report.to_html()
        assert "quality: " in repr(result)
        assert result.report.to_dict()["findings"][IMPROVEMENT_SHARE]["meaning"] == found.meaning
    assert shares[0] < 0.5 < shares[1] < shares[2]
    assert shares[2] > 0.9
