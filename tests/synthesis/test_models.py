"""Models of a table: their marginals, adjoints and samples agree with the joint table written out."""

import numpy as np
import pytest

from privopt.problems.workload import Workload
from privopt.synthesis.adaptive_marginals import (
    Logits,
    Measured,
    MixtureFit,
    ProductMixture,
    first_logits,
    nearest_shares,
)
from privopt.synthesis.base import Histogram, systematic_counts
from privopt.synthesis.mirror_fit import AnswerMap, Draws, LeastSquares, Likelihood, MirrorFit

LEVELS = (3, 4, 2, 5)
THREE_BITS = Workload.ways((2, 2, 2), 2)
RAMP = (1 + np.arange(8)) / 36


def mixture(seed=0, components=6):
    rng = np.random.default_rng(seed)
    logits = Logits(rng.normal(size=components), rng.normal(size=(components, sum(LEVELS))))
    return logits, logits.model(LEVELS)


def test_answers_on_three_bits_are_those_of_the_reference():
    expected = np.array([6, 8, 10, 12, 4, 6, 12, 14, 3, 7, 11, 15]) / 36
    np.testing.assert_allclose(AnswerMap(THREE_BITS).answers(RAMP), expected, atol=1e-15)


def test_transcript_likelihood_and_its_gradient_are_those_of_the_reference():
    answer_map = AnswerMap(THREE_BITS)
    misfit = Likelihood([Draws(answer_map.answers(RAMP), 3.0, np.array([3, 3, 12, 20]))])
    value, gradient = MirrorFit(iterations=0, entropy=0.3).objective(answer_map, misfit, np.full(8, 1 / 8))
    expected = """6.822182514029 3.493018412269 0.164901118158 -6.164262983602
    2.516598058594 -0.812566043166 -1.140683337277 -7.469847439037"""
    assert value == pytest.approx(13.530949772723, abs=1e-8)
    np.testing.assert_allclose(gradient, [float(one) for one in expected.split()], atol=1e-8)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_answer_map_equals_sums_over_the_joint_table_and_has_the_right_adjoint(k):
    rng = np.random.default_rng(1)
    workload = Workload.ways(LEVELS, k)
    answer_map, table = AnswerMap(workload), rng.random(workload.universe)
    answers, residuals = answer_map.answers(table), rng.normal(size=workload.size)
    np.testing.assert_allclose(answers, workload.answers(table), atol=1e-12)
    assert residuals @ answers == pytest.approx(table @ answer_map.adjoint(residuals), rel=1e-10)


def test_the_answer_map_takes_sets_of_different_sizes_in_any_order_of_columns():
    rng = np.random.default_rng(2)
    workload = Workload(LEVELS, sets=((3, 0), (1,), (2, 3, 1), (0, 1)))
    table = rng.random(workload.universe)
    np.testing.assert_allclose(AnswerMap(workload).answers(table), workload.answers(table), atol=1e-12)


@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_mirror_descent_lowers_the_objective_and_stays_on_the_simplex(entropy):
    answer_map, rng = AnswerMap(THREE_BITS), np.random.default_rng(3)
    misfit = Likelihood([Draws(answer_map.answers(RAMP), 3.0, rng.integers(0, 24, 50))])
    fit = MirrorFit(iterations=200, entropy=entropy)
    start = np.full(8, 1 / 8)
    end = fit.fit(answer_map, misfit, start)
    before, _ = fit.objective(answer_map, misfit, start)
    after, gradient = fit.objective(answer_map, misfit, end)
    assert after < before
    assert np.all(end >= 0)
    assert end.sum() == pytest.approx(1, abs=1e-12)
    assert end @ gradient - gradient.min() < 1e-3 if entropy else after <= before  # certifies the minimum


def test_least_squares_on_exact_answers_are_met():
    answer_map = AnswerMap(THREE_BITS)
    misfit = LeastSquares(answer_map.answers(RAMP), np.ones(12))
    end = MirrorFit(iterations=500, curvature=3.0).fit(answer_map, misfit, np.full(8, 1 / 8))
    np.testing.assert_allclose(answer_map.answers(end), answer_map.answers(RAMP), atol=1e-6)


def test_a_mixture_has_the_marginals_of_its_joint_table():
    _, model = mixture()
    joint = model.marginal(range(4))
    for k in (1, 2, 3):
        workload = Workload.ways(LEVELS, k)
        np.testing.assert_allclose(model.answers(workload), workload.answers(joint), atol=1e-14)
    places = model.places
    np.testing.assert_allclose(
        model.pairs()[places[3], places[1]].ravel(), model.marginal((1, 3)), atol=1e-15
    )


def test_the_slopes_of_a_fit_are_those_of_finite_differences():
    from privopt.synthesis.adaptive_marginals import _slopes

    logits, _ = mixture()
    rng = np.random.default_rng(4)
    sets = [(0,), (2, 1), (0, 1, 3), (1, 0, 2, 3)]
    measured = [
        Measured(one, rng.random(np.prod([LEVELS[i] for i in one])), 1 + rng.random()) for one in sets
    ]
    scale = sum(one.precision * len(one.shares) for one in measured)

    def objective(point):
        model = point.model(LEVELS)
        return (
            sum(one.precision * np.sum((model.marginal(one.columns) - one.shares) ** 2) for one in measured)
            / scale
            / 2
        )

    slopes = _slopes(logits, LEVELS, measured, scale)
    for part in (0, 1):
        direction = [np.zeros_like(one) for one in logits]
        direction[part] = rng.normal(size=direction[part].shape)
        ahead = Logits(*(a + 1e-6 * b for a, b in zip(logits, direction, strict=True)))
        behind = Logits(*(a - 1e-6 * b for a, b in zip(logits, direction, strict=True)))
        expected = (objective(ahead) - objective(behind)) / 2e-6
        assert sum(np.sum(a * b) for a, b in zip(slopes, direction, strict=True)) == pytest.approx(
            expected, rel=1e-5
        )


def test_a_mixture_is_fitted_to_exact_marginals():
    _, truth = mixture(components=2)
    rng = np.random.default_rng(5)
    workload = Workload.ways(LEVELS, 2)
    measured = [Measured(one, truth.marginal(one), 1.0) for one in workload.sets]
    start = first_logits([truth.marginal((i,)) for i in range(4)], 20, rng)
    before = np.abs(start.model(LEVELS).answers(workload) - truth.answers(workload)).max()
    end = MixtureFit(steps=300).fit(start, LEVELS, measured)
    after = np.abs(end.model(LEVELS).answers(workload) - truth.answers(workload)).max()
    assert after < 0.1 * before


def test_no_measurement_and_no_step_leave_the_model_as_it_is():
    logits, model = mixture()
    for steps, measured in ((10, []), (0, [Measured((0,), np.array([1.0, 0.0, 0.0]), 1.0)])):
        again = MixtureFit(steps=steps).fit(logits, LEVELS, measured).model(LEVELS)
        np.testing.assert_array_equal(again.shares, model.shares)


def test_the_nearest_shares_are_on_the_simplex_and_leave_shares_alone():
    rng = np.random.default_rng(6)
    for _ in range(20):
        near = nearest_shares(rng.normal(size=7))
        assert near.min() >= 0
        assert near.sum() == pytest.approx(1)
    shares = rng.dirichlet(np.ones(5))
    np.testing.assert_allclose(nearest_shares(shares), shares, atol=1e-15)


@pytest.mark.parametrize("total", [0, 1, 7, 1000])
def test_systematic_counts_add_up_and_are_rounded_expectations(total):
    rng = np.random.default_rng(7)
    weights = rng.dirichlet(np.full(30, 0.1))
    weights[3] = weights[-1] = 0.0
    counts = systematic_counts(weights, total, rng)
    assert counts.sum() == total
    assert np.all(np.abs(counts - total * weights / weights.sum()) < 1 + 1e-9)
    assert counts[3] == counts[-1] == 0


def test_systematic_counts_have_the_right_expectation():
    rng, weights = np.random.default_rng(8), np.array([0.2, 0.5, 0.3])
    mean = np.mean([systematic_counts(weights, 5, rng) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean, 5 * weights, atol=0.05)


@pytest.mark.parametrize("kind", ["histogram", "mixture"])
def test_a_large_sample_has_the_model_marginals(kind):
    _, model = mixture()
    if kind == "histogram":
        model = Histogram(LEVELS, model.marginal(range(4)))
    rows = model.sample(20_000, np.random.default_rng(9))
    assert rows.shape == (20_000, 4)
    for columns in ((2,), (0, 3)):
        index = rows[:, columns[0]] if len(columns) == 1 else rows[:, 0] + 3 * rows[:, 3]
        shares = np.bincount(index, minlength=np.prod([LEVELS[i] for i in columns])) / len(rows)
        assert np.abs(shares - model.marginal(columns)).max() < 0.01


def test_one_column_and_no_rows_are_no_special_case():
    model = ProductMixture.independent([np.array([0.25, 0.75])])
    assert model.sample(0, np.random.default_rng(0)).shape == (0, 1)
    np.testing.assert_allclose(model.answers(Workload.ways((2,), 1)), [0.25, 0.75])
    uniform = Histogram.uniform((4,))
    np.testing.assert_allclose(uniform.marginal((0,)), 0.25)
    assert uniform.sample(4, np.random.default_rng(0)).shape == (4, 1)


def test_independent_columns_have_product_marginals():
    first, second = np.array([0.1, 0.9]), np.array([0.2, 0.3, 0.5])
    model = ProductMixture.independent([first, second])
    np.testing.assert_allclose(model.marginal((0, 1)), np.outer(second, first).ravel())
