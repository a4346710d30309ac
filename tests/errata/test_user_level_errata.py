"""What is printed in *Faster Algorithms for User-Level Private Stochastic Convex Optimization* and does not hold.

Each test shows that the published version breaks the guarantee or the claim, and that what the library does in its
place does not. Numbers as E1, E2, ... count the corrections listed in the docs of the two algorithms.
"""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.ledger.accounting import delta
from privopt.ledger.events import GaussianEvent, Poisson, SampledEvent, TestedSampleEvent
from privopt.ledger.privacy_losses import inflated_rate
from privopt.mechanisms.tests import AboveThreshold

# Algorithm 2 at epsilon 1: Lap(8 / eps) on the threshold 4 K / 5, Lap(16 / eps) on scores of sensitivity 2.
THRESHOLD_SCALE, SCORE_SCALE, STEPS, MOVE = 8.0, 16.0, 16, 2.0


def test_e1_a_threshold_drawn_anew_each_step_is_not_private() -> None:
    """Linear losses and full participation: the scores are 4 K / 5 on D' and 2 (K - 1) / K more on D in every step."""
    vector = AboveThreshold(0.0, 1.0 / THRESHOLD_SCALE, 2.0 / SCORE_SCALE, reversed=True)
    on_left, on_right = vector.tail(-MOVE), vector.tail(0.0)
    assert on_left == pytest.approx(0.5414, abs=1e-4)
    redrawn = STEPS * math.log(on_left / on_right)
    assert redrawn == pytest.approx(1.27, abs=0.01)
    assert on_left**STEPS > math.e * on_right**STEPS + 1e-6  # not (1, 1e-6)-DP


def test_e1_a_threshold_drawn_once_costs_its_epsilon_however_often_the_answer_is_to_go_on() -> None:
    def all_pass(score: float) -> float:
        """P(score + nu_t >= xi for all t)."""
        return integrate.quad(
            lambda xi: (
                stats.laplace.pdf(xi, scale=THRESHOLD_SCALE)
                * stats.laplace.sf(xi - score, scale=SCORE_SCALE) ** STEPS
            ),
            -300.0,
            300.0,
            points=[0.0, score],
            limit=500,
        )[0]

    epsilon_threshold = MOVE / THRESHOLD_SCALE
    assert 0.0 < math.log(all_pass(MOVE) / all_pass(0.0)) <= epsilon_threshold


@pytest.mark.parametrize("times", [2, 3, 5])
def test_e2_a_user_drawn_several_times_moves_score_and_mean_as_often(times: int) -> None:
    """Drawn with replacement, one user is `times` of the K points; the proof counts them once."""
    points = 40
    together = np.zeros(points)
    moved = together.copy()
    moved[:times] = 1e6

    def score(values):
        return np.sum(np.abs(values[:, None] - values[None, :]) <= 1.0) / points

    move = abs(score(together) - score(moved))
    assert move == pytest.approx(2 * times * (points - times) / points)
    assert move > 2.0
    clipped = np.clip(moved, -1.0, 1.0), np.clip(-moved, -1.0, 1.0)
    assert abs(clipped[0].mean() - clipped[1].mean()) == pytest.approx(times * 2.0 / points)


def test_e2_nobody_is_drawn_twice() -> None:
    units = Units.from_arrays(np.ones((30, 2)), np.ones(30), row_bound=2.0)
    generator = np.random.default_rng(0)
    for _ in range(200):
        drawn = engine_on(units, "fast").draw(Poisson(0.9), generator)
        assert len(np.unique(drawn)) == len(drawn)

    class WithReplacement:
        kind, rate = "with-replacement", 0.1

    with pytest.raises(ValueError, match="no other way of drawing units has a tested price"):
        SampledEvent(WithReplacement(), GaussianEvent(1.0))  # type: ignore[arg-type]


@pytest.mark.at_once("1.0")
@pytest.mark.parametrize("queries", [0.5, 1.0, 2.0])
def test_e4_given_that_a_test_passed_the_release_is_less_amplified(queries: float) -> None:
    """The user raises the score by 1, the threshold is far above: given a pass the user is in the sample more often."""
    rate, stddev, at = 0.05, 1.0, 0.3
    vector = AboveThreshold(0.0, 1e6, queries)
    margin = 8.0 / queries
    without, within = (
        float(stats.laplace.sf(margin - score, scale=vector.query_scale)) for score in (0.0, 1.0)
    )
    given = rate * within / ((1 - rate) * without + rate * within)
    assert rate < given <= inflated_rate(rate, queries) * (1 + 1e-12)

    def released(inclusion: float) -> float:
        """delta of the Gaussian alone, given the pass: the user's vector is 1 on D and -1 on D'."""
        grid = np.linspace(-12, 12, 40_001)
        left, right = (
            (1 - inclusion) * stats.norm.pdf(grid, 0, stddev)
            + inclusion * stats.norm.pdf(grid, centre, stddev)
            for centre in (1.0, -1.0)
        )
        return float(np.trapezoid(np.maximum(0.0, left - math.exp(at) * right), grid))

    def amplified(at_rate: float) -> float:
        return delta(SampledEvent(Poisson(at_rate), GaussianEvent(stddev / 2.0)), at, "replace-one")

    assert released(given) > amplified(rate) * 1.05  # the published argument
    assert released(given) <= amplified(inflated_rate(rate, queries)) * (1 + 1e-3)  # ours
    event = TestedSampleEvent(rate, stddev / 2.0, 1, 0.1, queries)
    assert delta(event, at + 0.1 + queries, "replace-one") >= amplified(rate)


@pytest.mark.parametrize(("n", "m", "epsilon", "small"), [(10_000, 100, 1.0, 1e-12), (500, 10, 0.5, 1e-8)])
def test_e6_the_noise_on_the_score_leaves_its_band_more_often_than_claimed(n, m, epsilon, small) -> None:
    """Lap(20 / eps) is claimed to stay below 2 C / 15 with probability 1 - delta / (10 e^eps)."""
    claimed = small / (10 * math.exp(epsilon))
    logarithm = math.log(20 * n * m * math.exp(epsilon) / small)

    def leaves(constant: float) -> float:
        groups = constant * logarithm / epsilon
        return 2.0 * float(stats.laplace.sf(2.0 * groups / 15.0, scale=20.0 / epsilon))

    assert small < 20 * math.exp(epsilon) / (n * m) ** 2  # where the claim fails
    assert leaves(100.0) == pytest.approx((small / (20 * n * m * math.exp(epsilon))) ** (2 / 3))
    assert leaves(100.0) > claimed
    assert leaves(150.0) <= claimed
