"""What is wrong in Kornowski, Liu, Talwar 2024 with estimates and their sensitivities, and right with ours."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.ball import haar_block
from privopt.queries.slopes import ClippedGradient
from privopt.queries.smoothed import SmoothedGradient
from privopt.queries.values import ValueGradient

LINEAR = losses.RecordLoss(lambda params, features, target: features @ params + 0.0 * target, lipschitz=1.0)


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def sphere(generator, count, dimension):
    drawn = generator.normal(size=(count, dimension))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def printed_estimate(slope, directions):
    """Equation (4), with the factor y_j that it lacks, of the linear loss <slope, x>."""
    return len(slope) / len(directions) * (directions @ slope) @ directions


def pair(n, dimension):
    """Records with the slope e_1, the last of them turned on the other side."""
    rows = np.tile(np.eye(dimension)[0], (n, 1))
    other = np.concatenate([rows[:-1], -rows[-1:]])
    return (Units.from_arrays(x, np.zeros(n), row_bound=1.0, storage="float64") for x in (rows, other))


def moved(query, n, dimension, understate=0.0):
    """How far the query moves over what it states, between two neighbours."""
    audit = Audit(*pair(n, dimension), Unlimited("replace-one"), noise=NoiseSource(0), understate=understate)
    audit.release(query, Gaussian(1.0))
    return audit.moves[0][1]


def test_the_printed_number_of_directions_does_not_keep_the_printed_sensitivity_and_a_clip_does():
    """E4: Lemma 4.3 with the parameters of Theorem 4.1 and L = Phi = alpha = epsilon = 1, far fewer than d^2."""
    d, beta, n = 64, 0.5, 100
    printed_m = math.ceil(d**0.75 / beta**2.5)
    assert printed_m < d**2 / 25
    generator, slope = np.random.default_rng(0), np.eye(d)[0]
    estimates = [printed_estimate(slope, sphere(generator, printed_m, d)) for _ in range(20)]
    moves = 2.0 * np.linalg.norm(estimates, axis=1) / n  # of a record and its opposite
    assert np.median(moves) > 1.1 * 2.0 / n
    assert np.max(moves) > 1.3 * 2.0 / n
    rows = haar_block(jax.random.key(0), d, d)
    query = ValueGradient(loss=LINEAR, at=jnp.zeros(d), directions=rows, smoothing=1.0, clip=1.0)
    assert 0.999 <= moved(query, n, d) <= 1.0


def test_a_replaced_record_moves_a_mean_twice_as_far_as_printed():
    """E5: equation (5) and Lemma 6.3 state L / B."""
    query = ClippedGradient(loss=LINEAR, at=jnp.zeros(3), clip=1.0)
    assert 0.999 <= moved(query, 10, 3) <= 1.0
    assert moved(query, 10, 3, understate=0.5) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("batch", [10, 100, 1000])
def test_with_common_directions_the_other_records_do_not_move_a_mean(batch):
    """E6: the printed bound adds deviations of all records, which have to shrink with the batch by many directions."""
    d, m = 8, 40
    generator = np.random.default_rng(batch)
    slopes = sphere(generator, batch, d)
    other = np.concatenate([slopes[:-1], -slopes[-1:]])
    directions = sphere(generator, m, d)
    means = [np.mean([printed_estimate(s, directions) for s in rows], axis=0) for rows in (slopes, other)]
    of_one = 2.0 * np.linalg.norm(printed_estimate(slopes[-1], directions)) / batch
    assert np.linalg.norm(means[0] - means[1]) == pytest.approx(of_one, rel=1e-9)
    printed = 2.0 / batch + 2.0 * d * math.sqrt(math.log(2 * d * batch / 1e-6) / m)
    assert printed > batch * of_one  # and does not fall with the batch


def test_directions_from_the_ball_shorten_the_gradient_and_ours_are_of_the_sphere():
    """E7: line 12 of Algorithm 3 draws y from the ball of radius alpha and multiplies it by alpha."""
    d, alpha, generator, slope = 3, 0.5, np.random.default_rng(1), np.array([1.0, 0.0, 0.0])
    points = sphere(generator, 100_000, d) * generator.random((100_000, 1)) ** (1 / d)
    printed = printed_estimate(slope, alpha * points) / alpha**2  # even once alpha is taken out
    assert np.linalg.norm(printed - d / (d + 2) * slope) < 0.01
    rows = haar_block(jax.random.key(1), d, d)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-12)
    query = ValueGradient(loss=LINEAR, at=jnp.zeros(d), directions=rows, smoothing=alpha, clip=2.0)
    units = Units.from_arrays(np.tile(slope, (4, 1)), np.zeros(4), row_bound=1.0, storage="float64")
    released = LocalCurator(units, Unlimited("replace-one")).release(query, Gaussian(0.0))
    np.testing.assert_allclose(query.gradient(released), slope, atol=1e-9)


def test_an_average_over_the_sphere_is_not_smooth_and_over_the_ball_it_is():
    """E8, in one dimension: the gradient of the absolute value at x + alpha and x - alpha jumps at alpha."""
    alpha, step = 0.5, 1e-6
    over_sphere = [0.5 * (np.sign(x + alpha) + np.sign(x - alpha)) for x in (alpha - step, alpha + step)]
    assert over_sphere[1] - over_sphere[0] == 1.0
    units = Units.from_arrays(np.ones((4, 1)), np.zeros(4), row_bound=1.0, storage="float64")
    found = [
        float(
            LocalCurator(units, Unlimited("replace-one")).release(
                SmoothedGradient(loss=losses.absolute(0.0), at=np.array([x]), smoothing=alpha, clip=2.0),
                Gaussian(0.0),
            )[0]
        )
        for x in (-alpha, 0.0, alpha - step, alpha + step)
    ]
    np.testing.assert_allclose(found, [-1.0, 0.0, 1.0, 1.0], atol=2.1 * step / alpha)
