"""Gaussian and Laplace: the same promises for both."""

import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.support.scale_checks import LEVEL, WRONG_SCALES, coordinate_p_values

from privopt.ledger.events import GaussianEvent, LaplaceEvent, NonPrivateEvent
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.noise import NoiseSource

BOTH = pytest.mark.parametrize(
    ("kind", "event", "law"),
    [(Gaussian, GaussianEvent, stats.norm), (Laplace, LaplaceEvent, stats.laplace)],
    ids=["gaussian", "laplace"],
)
VALUE = np.array([1.0, -2.0, 0.0, 4e3])
SENSITIVITY = 0.02


@BOTH
def test_the_event_states_the_multiplier(kind: Any, event: Any, law: Any) -> None:
    assert kind(1.5).event() == event(1.5)
    assert kind(noise_multiplier=0.0).event() == NonPrivateEvent()
    assert hash(kind(2.0)) == hash(kind(2.0))
    assert isinstance(kind(1.0), Mechanism)
    assert pickle.loads(pickle.dumps(kind(1.5))) == kind(1.5)


@pytest.mark.later("laplace")
@BOTH
def test_the_noise_has_its_scale_in_every_coordinate(kind: Any, event: Any, law: Any) -> None:
    noise = NoiseSource(seed=30)
    claimed = 1.7 * SENSITIVITY
    for factor, accepted in [(1.0, True), *((wrong, False) for wrong in WRONG_SCALES)]:
        mechanism = kind(1.7 * factor)
        added = np.stack([mechanism.release(noise, VALUE, SENSITIVITY) for _ in range(4000)]) - VALUE
        p_values = coordinate_p_values(added / claimed, law.cdf)
        assert p_values.min() > LEVEL if accepted else p_values.max() < LEVEL


@BOTH
def test_noise_is_independent_between_coordinates_and_releases(kind: Any, event: Any, law: Any) -> None:
    noise = NoiseSource(seed=31)
    added = np.stack([kind(1.0).release(noise, np.zeros(3), 1.0) for _ in range(4000)])
    columns = np.hstack([added[1:], added[:-1]])
    correlation = np.corrcoef(columns, rowvar=False) - np.eye(6)
    assert np.abs(correlation[:3]).max() < 4.5 / math.sqrt(4000)


@pytest.mark.later("shape0-gaussian", "shape1-gaussian", "shape3-gaussian")
@BOTH
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
def test_release_is_draw_and_combine(kind: Any, event: Any, law: Any, shape: tuple[int, ...]) -> None:
    mechanism = kind(0.7)
    value = np.cos(np.arange(math.prod(shape))).reshape(shape)
    released = mechanism.release(NoiseSource(seed=32), value, 0.3)
    noise = mechanism.draw(NoiseSource(seed=32), mechanism.noise_shape(shape))
    assert released.shape == shape
    assert released.dtype == np.float64
    with jax.enable_x64(True):
        combined = mechanism.combine(jnp.asarray(value), 0.3, jnp.asarray(noise))
        compiled = jax.jit(mechanism.combine)(value, 0.3, noise)
        assert combined.dtype == compiled.dtype == jnp.float64
        assert np.array_equal(np.asarray(combined), released)
        # A compiled loop may fuse the multiplication into the addition: one rounding less.
        assert np.allclose(np.asarray(compiled), released, rtol=1e-15, atol=1e-16)


@BOTH
def test_noise_drawn_ahead_for_a_loop_gives_the_eager_releases(kind: Any, event: Any, law: Any) -> None:
    mechanism = kind(2.0)
    eager_source, ahead = NoiseSource(seed=33), NoiseSource(seed=33)
    eager = np.stack([mechanism.release(eager_source, VALUE * t, 0.1 * t) for t in range(6)])
    block = mechanism.draw(ahead, (6, *mechanism.noise_shape(VALUE.shape)))
    with jax.enable_x64(True):
        value = jnp.asarray(VALUE)

        def step(t: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return t + 1.0, mechanism.combine(
                value * t, 0.1 * t, row
            )  # the sensitivity is traced, 0 at first

        looped = jax.lax.scan(step, jnp.asarray(0.0, jnp.float64), jnp.asarray(block))[1]
    assert np.allclose(np.asarray(looped), eager, rtol=1e-14, atol=1e-15)
    assert np.array_equal(eager[0], np.zeros(4))


@BOTH
def test_sensitivity_zero_releases_the_value_itself(kind: Any, event: Any, law: Any) -> None:
    mechanism = kind(3.0)
    assert np.array_equal(mechanism.release(NoiseSource(seed=1), VALUE, 0.0), VALUE)
    with jax.enable_x64(True):
        noise = jnp.asarray(mechanism.draw(NoiseSource(seed=1), VALUE.shape))
        assert np.array_equal(np.asarray(jax.jit(mechanism.combine)(VALUE, 0.0, noise)), VALUE)


@BOTH
@pytest.mark.parametrize("sensitivity", [0.0, 1.0, math.inf])
def test_noise_off_releases_the_value_itself(kind: Any, event: Any, law: Any, sensitivity: float) -> None:
    mechanism = kind(0.0)
    source, untouched = NoiseSource(seed=2), NoiseSource(seed=2)
    released = mechanism.release(source, VALUE, sensitivity)
    assert np.array_equal(released, VALUE)
    assert released is not VALUE
    assert np.array_equal(source.normal((2,)), untouched.normal((2,)))
    with jax.enable_x64(True):
        combined = jax.jit(mechanism.combine)(VALUE, sensitivity, np.zeros(4))
        assert np.array_equal(np.asarray(combined), VALUE)


@BOTH
@pytest.mark.parametrize("sensitivity", [-1.0, math.nan, math.inf])
def test_a_sensitivity_that_no_noise_can_match_is_refused(
    kind: Any, event: Any, law: Any, sensitivity: float
) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        kind(1.0).release(NoiseSource(seed=1), VALUE, sensitivity)
    with jax.enable_x64(True):  # a compiled loop cannot raise: it gives NaN, for any data
        combined = kind(1.0).combine(jnp.asarray(VALUE), sensitivity, jnp.ones(4, jnp.float64))
    assert np.isnan(np.asarray(combined)).all()


@BOTH
@pytest.mark.parametrize("multiplier", [-0.1, math.nan, math.inf])
def test_a_wrong_multiplier_is_refused(kind: Any, event: Any, law: Any, multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier must be finite"):
        kind(multiplier)


@BOTH
def test_nothing_is_combined_in_single_precision(kind: Any, event: Any, law: Any) -> None:
    with pytest.raises(RuntimeError, match="single precision"):
        kind(1.0).combine(jnp.ones(3), 1.0, jnp.ones(3))


@BOTH
def test_huge_and_tiny_scales_keep_the_noise(kind: Any, event: Any, law: Any) -> None:
    """The noise is relative to the sensitivity: rescaling value and sensitivity together rescales the release."""
    for scale in (1e-150, 1.0, 1e150):
        released = kind(1.0).release(NoiseSource(seed=9), np.array([3.0, -1.0]) * scale, scale)
        assert np.allclose(
            released / scale, kind(1.0).release(NoiseSource(seed=9), [3.0, -1.0], 1.0), rtol=1e-14
        )


@BOTH
def test_seeded_releases_repeat_and_secret_ones_differ(kind: Any, event: Any, law: Any) -> None:
    def released(source: NoiseSource) -> list[float]:
        return kind(1.0).release(source, VALUE, 1.0).tolist()

    assert released(NoiseSource(seed=7)) == released(NoiseSource(seed=7))
    assert released(NoiseSource(seed=7)) != released(NoiseSource(seed=8))
    assert released(NoiseSource()) != released(NoiseSource())


@BOTH
def test_the_tails_of_the_noise_match_delta(kind: Any, event: Any, law: Any) -> None:
    mechanism = kind(0.5)
    added = mechanism.release(NoiseSource(seed=34), np.zeros(1_000_000), 2.0)
    for level in (3.0, 4.5):
        beyond = int(np.count_nonzero(added > level))
        assert stats.binomtest(beyond, added.size, law.sf(level)).pvalue > LEVEL
        for wrong in WRONG_SCALES:
            assert stats.binomtest(beyond, added.size, law.sf(level / wrong)).pvalue < LEVEL


def test_a_test_may_put_its_own_noise_in_the_place_of_the_source() -> None:
    class CosineNoise(NoiseSource):
        def normal(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.cos(np.arange(math.prod(shape))).reshape(shape)

    released = Gaussian(2.0).release(CosineNoise(exact=False), np.zeros(3), 0.5)
    assert np.allclose(released, np.cos(np.arange(3)))
