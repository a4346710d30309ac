"""How much of what there is to learn a run's releases say was learnt, and the sentences on it."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from privopt import Budget, minimize
from privopt.data.units import Units
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.planning import improvement_words
from privopt.planning.improvement_share import SCALES, Evidence, learnt
from privopt.planning.instance import Instance
from privopt.planning.plan import IMPROVEMENT_SHARE
from privopt.planning.whitening import SHARE, WhiteningRule
from privopt.planning.whitening_forecast import FITTED, fitted
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solvers.whitening import Whitening

D, N = 12, 20_000
PROBLEM = Problem(losses.logistic, Ridge(1e-5, (1.0,) * (D - 1) + (0.0,)), constant=D - 1)


def instance(epsilon: float = 1.0, n: int = N, problem: Problem = PROBLEM) -> Instance:
    return Instance(problem, Public(n=n, d=D), Budget(epsilon, 1e-8))


def said(strength: float, noise: float, *, outputs: int = 1) -> Any:
    """Of gradients at 0 that are this strong in every direction, with this noise."""
    rule = WhiteningRule.of(instance(), SHARE)
    generator = np.random.default_rng(1)
    shape = (D, outputs) if outputs > 1 else (D,)
    gradient = strength * generator.choice([-1.0, 1.0], shape) + noise * generator.standard_normal(shape)
    evidence = Evidence(jnp.zeros(shape), jnp.asarray(gradient), noise)
    loss = losses.logistic if outputs == 1 else losses.softmax(outputs)
    problem = Problem(loss, PROBLEM.regulariser, constant=D - 1)
    return learnt(rule, np.eye(D) / D, evidence, problem, np.zeros(shape), 0.0)


def test_a_strong_signal_is_learnt_and_a_faint_one_is_hidden() -> None:
    assert said(0.1, 1e-4).share() > 0.95
    middling = said(0.1, 0.05)
    assert 0.3 < middling.share() < 0.95
    faint = said(1e-4, 0.05)
    assert faint.hidden
    assert faint.share() < 0.3
    assert not middling.hidden
    assert said(0.1, 1e-4, outputs=3).share() > 0.95


def test_what_moves_all_predictions_by_a_constant_is_not_counted() -> None:
    rule = WhiteningRule.of(instance(), SHARE)
    along = np.zeros(D)
    along[-1] = (
        0.3  # the gradient of a base rate: with a moment that is diagonal, only in the constant's direction
    )
    evidence = Evidence(jnp.zeros(D), jnp.asarray(along), 0.01)
    counted = learnt(rule, np.eye(D) / D, evidence, PROBLEM, np.zeros(D), 0.0)
    assert counted is not None
    assert counted.hidden
    whole = learnt(rule, np.eye(D) / D, evidence, Problem(losses.logistic), np.zeros(D), 0.0)
    assert whole is not None
    assert not whole.hidden


def test_the_gain_is_that_of_the_best_linear_estimate() -> None:
    found = said(0.1, 0.05)
    assert np.sum(found.chances) == pytest.approx(1.0)
    assert np.sum(found.weights) == pytest.approx(1.0)
    for times in (1.0, 2.0):
        gains = [
            sum(
                a * scale * g * times**2 / (scale * g * times**2 + 1.0)
                for a, g in zip(found.weights, found.strength, strict=True)
            )
            for scale in SCALES
        ]
        assert found.gain(times) == pytest.approx(float(np.dot(found.chances, gains)))


def test_more_records_raise_the_share_as_far_as_is_said() -> None:
    found = said(0.1, 0.05)
    times = found.times(0.9)
    assert times > 1
    assert found.share(times) == pytest.approx(0.9, abs=1e-6)
    assert found.times(1.0) == math.inf


def test_nothing_is_said_without_noise_or_of_what_is_not_finite() -> None:
    rule = WhiteningRule.of(instance(), SHARE)
    zeros = jnp.zeros(D)
    assert learnt(rule, np.eye(D), Evidence(zeros, zeros, 0.0), PROBLEM, zeros, 0.0) is None
    assert learnt(rule, np.eye(D), Evidence(zeros, zeros * math.nan, 1.0), PROBLEM, zeros, 0.0) is None


def test_sentences_round_and_say_what_would_double_the_share() -> None:
    public, budget = Public(n=10_000, d=D), Budget(1.0, 1e-8)
    said = improvement_words.expected(4.0, 2.0, public, budget)
    assert said.startswith(
        "between 10 % and 35 % of what there is to learn; about 27,000 records at the same"
    )
    epsilon = float(said.split("or epsilon ")[1].split(" ")[0])
    times = gaussian_mu(epsilon, 1e-8) / gaussian_mu(1.0, 1e-8)
    assert times == pytest.approx(4.0 / 1.5, rel=0.05)
    assert said.endswith("would double it")
    assert improvement_words.expected(1.0, 2.0, public, budget).endswith("would bring it to 90 %")
    assert improvement_words.expected(0.01, 2.0, public, budget).endswith("would add little")
    far = improvement_words.more(0.1, lambda _: 1e3, public, budget)
    assert far == "; more than 100 times as many records would double it"
    assert improvement_words.more(0.1, lambda _: 90.0, public, Budget(3.0, 1e-8)).endswith(
        "epsilon would double it"
    )
    assert [improvement_words.about(share) for share in (0.01, 0.38, 0.99)] == [
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
    assert "of what there is to learn" in str(found)
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


def test_a_run_says_about_how_much_was_learnt() -> None:
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
