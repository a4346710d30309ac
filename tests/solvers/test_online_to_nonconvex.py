import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.precision import double_precision
from privopt.solvers.online_to_nonconvex import (
    flattest_block,
    longest_move,
    mean_of_points,
    moved,
    opened,
    places_of,
    schedule,
    whole_blocks,
)

I, J = np.arange(1, 41)[:, None], np.arange(1, 4)[None, :]
ROWS = np.cos(0.7 * I * J) + 0.1 * J
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
TARGETS = 1.5 * np.abs(np.sin(np.arange(1, 41)))


@pytest.fixture(autouse=True)
def precise():
    with double_precision():
        yield


take_step = jax.jit(moved)


def block_reach(radius, window, places):
    """How far the points of a block of M lie from their mean, at most, with steps no longer than D.

    Points k steps apart are at most k D apart in the middle of steps, (k + 1) D anywhere on them; averaged over the
    block that is D (M - 1) / 2 or less than D (M + 1) / 2.
    """
    return radius * (window - 1 if places == "middle" else window + 1) / 2.0


def reach_of_points(state, centre):
    """How far the points that make the result lie from a point, at most."""
    return np.sqrt(np.max(np.sum(np.square(state.points - centre[None]), axis=1), initial=0.0))


def mean_gradient(at, clip):
    predictions = ROWS @ np.asarray(at)
    slopes = np.where(predictions > 0, np.sign(predictions - TARGETS), 0.0)
    return ROWS.T @ np.clip(slopes, -clip, clip) / len(ROWS)


def formula_noise(t):
    return 0.05 * np.cos(t + 2 * np.arange(1, 4))


def run(plan, *, start=np.zeros(3), gradient=lambda at: mean_gradient(at, 0.8), scale=1.0, **settings):
    state = opened(jnp.asarray(start), plan, **settings)
    visited = []
    for t in range(1, len(plan.radii) + 1):
        visited.append(np.asarray(state.at))
        state = take_step(state, jnp.asarray(scale * (gradient(state.at) + formula_noise(t))))
    return state, np.asarray(visited)


def test_the_reference_run_has_its_values():
    state, visited = run(schedule(np.full(20, 2.0 * 0.3 / 6), 0.15, 0.5), window=5)
    expected = {
        1: [0.0037124719, -0.0010637332, -0.0028271335],
        19: [1.6072892101, -0.2953902909, 0.0632940357],
    }
    for step, point in expected.items():
        np.testing.assert_allclose(visited[step], point, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        state.means[0], [0.0596087979, -0.0304062476, -0.0201235931], rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(
        mean_of_points(state), [1.4280598570, -0.2912600793, -0.0218020862], rtol=0, atol=1e-10
    )
    lengths = np.linalg.norm(state.gradients, axis=1)
    np.testing.assert_allclose(
        lengths, [0.2029348055, 0.2138771442, 0.1218689450, 0.0553027838], rtol=0, atol=1e-10
    )
    assert int(flattest_block(state)) == 3


def test_a_schedule_that_shrinks_has_its_reference_value():
    t = np.arange(1, 61)
    radii = 2 * (2 / 4 * (1 - t / 60) + 2 / 200) / 5
    step_sizes = 4 * radii / (np.sqrt(4) * np.sqrt((0.3 * 0.8) ** 2 + 3 * 0.02**2))
    state, _ = run(schedule(radii, step_sizes, 0.5), window=4, kept=6)
    np.testing.assert_allclose(
        mean_of_points(state), [1.7801320633, -0.8912944539, 1.5653941901], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("places", ["middle", "uniform"])
def test_points_stay_as_near_to_each_other_as_promised(places):
    steps, window, radius = 60, 6, 0.1
    drawn = places_of(places, steps, seed=5)
    state, visited = run(schedule(np.full(steps, radius), 100.0, drawn), window=window)
    moves = np.linalg.norm(np.diff(visited, axis=0), axis=1)
    assert np.all(moves <= radius * (1 - drawn[:-1] + drawn[1:]) + 1e-12)
    assert moves.max() <= longest_move(np.full(steps, radius), places)
    for block in np.split(visited, steps // window):
        apart = np.linalg.norm(block - block.mean(axis=0), axis=1).max()
        assert apart <= block_reach(radius, window, places) + 1e-12
    assert float(reach_of_points(state, mean_of_points(state))) <= block_reach(radius, window, places)
    assert np.all(np.linalg.norm(visited, axis=1) <= radius * steps)


def test_a_longer_unit_of_length_rescales_the_run():
    radii, step_sizes = np.linspace(0.1, 0.02, 20), np.full(20, 0.15)
    plain, points = run(schedule(radii, step_sizes, 0.5), window=5)
    longer, far = run(
        schedule(3 * radii, 9 * step_sizes, 0.5),
        window=5,
        gradient=lambda at: mean_gradient(np.asarray(at) / 3, 0.8),
        scale=1 / 3,
    )
    np.testing.assert_allclose(far, 3 * points, rtol=1e-12, atol=1e-12)
    steeper, same = run(schedule(radii, step_sizes / 7, 0.5), window=5, scale=7.0)
    np.testing.assert_allclose(same, points, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(steeper.gradients, 7 * plain.gradients, rtol=1e-12)
    assert longer.params.shape == (3,)


@pytest.mark.parametrize(("steps", "window", "expected"), [(23, 5, (20, 5)), (3, 20, (3, 3)), (0, 4, (0, 1))])
def test_steps_are_cut_to_whole_blocks(steps, window, expected):
    assert whole_blocks(steps, window) == expected


def test_without_steps_the_start_is_the_result():
    state = opened(jnp.ones(3), schedule(np.zeros(0), 0.1, 0.5), window=1)
    np.testing.assert_array_equal(mean_of_points(state), np.ones(3))
    assert float(reach_of_points(state, jnp.zeros(3))) == 0.0


def test_any_stretch_of_points_may_make_the_result():
    plan = schedule(np.full(12, 0.1), 0.15, 0.5)
    for first, kept in ((4, 5), (0, 12)):
        state, visited = run(plan, window=4, first=first, kept=kept)
        np.testing.assert_allclose(mean_of_points(state), visited[first : first + kept].mean(axis=0))


def test_a_matrix_of_parameters_moves_as_its_entries():
    plan = schedule(np.full(4, 0.1), 0.15, 0.5)
    flat, wide = opened(jnp.zeros(6), plan, window=2), opened(jnp.zeros((3, 2)), plan, window=2)
    for t in range(4):
        gradient = jnp.cos(jnp.arange(6.0) + t)
        flat, wide = take_step(flat, gradient), take_step(wide, gradient.reshape(3, 2))
    # Compiled as for users, the norms of the two shapes are summed in two orders: 2e-15 apart at most in 200 such runs.
    np.testing.assert_allclose(mean_of_points(wide).reshape(-1), mean_of_points(flat), rtol=1e-14)


def test_nothing_moves_from_the_first_gradient_on_that_is_not_finite():
    state = opened(jnp.zeros(3), schedule(np.full(4, 0.1), 0.15, 0.5), window=2)
    state = take_step(state, jnp.ones(3))
    stopped = take_step(state, jnp.asarray([np.nan, 0.0, 0.0]))
    assert not bool(stopped.finite)
    np.testing.assert_array_equal(stopped.params, state.params)


def test_steps_and_windows_that_do_not_fit_are_refused():
    plan = schedule(np.full(7, 0.1), 0.15, 0.5)
    with pytest.raises(ValueError, match="whole number of blocks of 3"):
        opened(jnp.zeros(3), plan, window=3)
    with pytest.raises(ValueError, match="not among those of 7 steps"):
        opened(jnp.zeros(3), plan, window=7, first=5, kept=3)
    with pytest.raises(ValueError, match="drawn by a public seed"):
        places_of("uniform", 4)
