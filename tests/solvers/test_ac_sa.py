"""AC-SA: its reference values, its guarantee, and the restarts that halve a gap."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1
from privopt.solvers.ac_sa import ACSAState, ac_sa_step, gap_bound, gradient_point, stage_lengths

CURVATURES, LINEAR = np.array([1.0, 0.3, 0.05]), np.array([1.0, -1.0, 0.5])
PLAIN = Problem(losses.squared)


def accelerate(steps, *, noise=None, problem=PLAIN, start=None, mu=0.05, smoothness=1.0, stages=1):
    """AC-SA on f = x' A x / 2 - b' x."""
    with double_precision():
        state = ACSAState.at(jnp.zeros(3, jnp.float64) if start is None else jnp.asarray(start, jnp.float64))
        numbers = {
            "strong_convexity": jnp.asarray(mu, jnp.float64),
            "smoothness": jnp.asarray(smoothness, jnp.float64),
        }
        for _ in range(stages):
            state = state.restarted()
            for t in range(1, steps + 1):
                middle = gradient_point(state, **numbers)
                gradient = CURVATURES * middle - LINEAR + (0.0 if noise is None else noise(t))
                state = ac_sa_step(state, middle, gradient, problem=problem, **numbers)
        return np.asarray(state.average), bool(state.finite)


def gap(params):
    best = LINEAR / CURVATURES
    return 0.5 * np.sum(CURVATURES * (params - best) ** 2)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, (0.487804878, -0.487804878, 0.243902439)),
        (2, (0.8054452638, -1.0172055209, 0.5464170921)),
        (10, (0.9990510385, -3.3927179246, 4.0018992366)),
        (40, (1.0000043108, -3.3271778827, 8.5639964363)),
    ],
)
def test_the_reference_values(steps, expected):
    """user-level reference, R5."""
    np.testing.assert_allclose(accelerate(steps)[0], expected, rtol=1e-8)


def test_the_reference_value_with_noise():
    """user-level reference, R5."""
    found, _ = accelerate(10, noise=lambda t: 0.1 * np.array([np.cos(t), np.sin(t), np.cos(2 * t)]))
    np.testing.assert_allclose(found, (1.0767845894, -3.4534247945, 3.9978747393), rtol=1e-8)


def test_a_plain_reference_written_from_the_paper_agrees():
    """Ghadimi, Lan 2012, (2.2) to (2.4) with the projection onto a ball."""
    mu, smoothness, radius = 0.05, 1.0, 3.0
    x = average = np.zeros(3)
    for t in range(1, 13):
        alpha, gamma = 2 / (t + 1), 4 * smoothness / (t * (t + 1))
        below = gamma + (1 - alpha**2) * mu
        middle = ((1 - alpha) * (mu + gamma) * average + alpha * ((1 - alpha) * mu + gamma) * x) / below
        gradient = CURVATURES * middle - LINEAR
        x = (alpha * mu * middle + ((1 - alpha) * mu + gamma) * x - alpha * gradient) / (mu + gamma)
        x = x * min(1.0, radius / np.linalg.norm(x))
        average = alpha * x + (1 - alpha) * average
    found, _ = accelerate(12, problem=Problem(losses.squared, constraint=L2Ball(radius)))
    np.testing.assert_allclose(found, average, rtol=1e-10)


def test_a_penalty_that_is_not_smooth_is_met_by_its_proximal_map():
    """The minimum of f + 0.4 |x|_1 is soft-thresholded entry by entry."""
    found, _ = accelerate(8000, problem=Problem(losses.squared, L1(0.4)))
    expected = np.sign(LINEAR) * np.maximum(np.abs(LINEAR) - 0.4, 0.0) / CURVATURES
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("steps", [3, 10, 40, 160])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_the_gap_stays_below_the_guarantee(steps, spread):
    """Its mean over 10 noises; the worst ratio that was found is 0.41."""
    rng = np.random.default_rng(steps)
    gaps = [gap(accelerate(steps, noise=lambda t: spread * rng.normal(size=3))[0]) for _ in range(10)]
    bound = gap_bound(
        smoothness=1.0,
        strong_convexity=0.05,
        distance=float(np.linalg.norm(LINEAR / CURVATURES)),
        variance=3 * spread**2,
        steps=steps,
    )
    assert np.mean(gaps) <= 0.5 * bound


def test_every_restart_halves_the_bound():
    variance, distance = 3 * 0.05**2, float(np.linalg.norm(LINEAR / CURVATURES))
    first = 0.5 * distance**2
    lengths = stage_lengths(smoothness=1.0, strong_convexity=0.05, variance=variance, gap=first, stages=4)
    assert list(lengths) == sorted(lengths)
    for k, length in enumerate(lengths):
        # |x - x*|^2 <= 2 gap / mu at the start of a run.
        reached = gap_bound(
            smoothness=1.0,
            strong_convexity=0.05,
            distance=(2 * first * 0.5**k / 0.05) ** 0.5,
            variance=variance,
            steps=length,
        )
        assert reached <= first * 0.5 ** (k + 1)


def test_restarts_begin_where_the_last_run_ended():
    once, _ = accelerate(18)
    again, _ = accelerate(18, start=once)
    np.testing.assert_allclose(accelerate(18, stages=2)[0], again, rtol=1e-12)


def test_a_gradient_that_is_not_finite_stops_every_movement():
    good, finite = accelerate(3)
    assert finite
    found, finite = accelerate(9, noise=lambda t: np.full(3, np.nan if t > 3 else 0.0))
    assert not finite
    np.testing.assert_array_equal(found, good)
