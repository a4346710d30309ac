"""Releases on a lattice: the argument of `mechanisms.base`, tried at its edges."""

import inspect
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from tests.support.scale_checks import LEVEL, coordinate_p_values

from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import noise_exponent, on_lattice, places_of, spacing_of, spacing_ratio
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import GaussianTest
from privopt.solvers import registry

MULTIPLIERS = [1e-300, 1e-9, 0.01, 0.5, 1.0, 1.0 + 2**-52, 3.7, 64.0, 1e4, 1e6]
HALF = Fraction(1, 2) + Fraction(1, 2**8)


def spacing(sensitivity: float, multiplier: float, entries: int, norm: Any = "l2") -> float:
    return float(spacing_of(np.float64(sensitivity), spacing_ratio(multiplier, entries, norm)))


def places(values: Any, g: float) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        return np.asarray(places_of(np.asarray(values, np.float64), np.float64(g)))


def root_above(square: int) -> Fraction:
    """A square root, rounded up."""
    return Fraction(math.isqrt(square * 4**20) + 1, 2**20)


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
@pytest.mark.parametrize("entries", [1, 7, 10**4, 10**8])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_noise_covers_the_sensitivity_on_the_lattice(multiplier: float, entries: int, norm: Any) -> None:
    """z D <= 2^t, in rational arithmetic; and hardly more noise than z s."""
    if norm == "l1":
        entries = min(entries, 10**6)
    for sensitivity in (1e-250, 3e-5, 1.0, math.pi, 1e200):
        g = Fraction(spacing(sensitivity, multiplier, entries, norm))
        t = noise_exponent(multiplier)
        grown = entries if norm == "l1" else root_above(entries)
        moved = Fraction(sensitivity) / g + grown * (1 + Fraction(1, 2**7))
        assert Fraction(multiplier) * moved <= Fraction(2) ** t
        if 1e-20 < multiplier < 1e4:
            scale = g * Fraction(2) ** t / (Fraction(multiplier) * Fraction(sensitivity))
            assert 1 <= scale <= 1 + 1.02 * grown / 2**30 + Fraction(1, 10**10)


def test_noise_out_of_all_proportion_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the integers"):
        Gaussian(1e13).release(NoiseSource(seed=0), np.zeros(4), 1.0)


@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    exponent=st.integers(-950, 1020),
    significand=st.floats(1.0, 2.0, exclude_max=True),
    halves=st.integers(-(2**63), 2**63),
)
@example(value=0.0, exponent=0, significand=1.0, halves=2**44 + 1)
@example(value=1.7e308, exponent=949, significand=1.9, halves=0)
@example(value=1e302, exponent=992, significand=1.6, halves=7)
def test_a_place_is_the_nearest_integer(value: float, exponent: int, significand: float, halves: int) -> None:
    """For any value, and for those half-way between two lattice points, or next to it in float64."""
    g = float(spacing_of(np.float64(significand * 2.0**exponent), 1.0))
    tie = float(np.clip(halves * (g / 2), -1e308, 1e308))
    values = np.array([value, tie, np.nextafter(tie, math.inf), np.nextafter(tie, -math.inf)])
    with jax.enable_x64(True):
        traced = np.asarray(jax.jit(places_of)(jnp.asarray(values), jnp.asarray(g, jnp.float64)))
    limit = min(Fraction(g) * 2**62, Fraction(2) ** 1022)
    for found in (places(values, g), traced):
        for number, place in zip(values, found, strict=True):
            private_held = max(min(Fraction(float(number)), limit), -limit)
            assert abs(int(place) - private_held / Fraction(g)) <= HALF


def test_what_is_no_number_has_a_place() -> None:
    assert places([math.nan, math.inf, -math.inf], 0.25).tolist() == [0, 2**62, -(2**62)]


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 17.0]))
def test_neighbours_move_by_no_more_than_the_stated_distance(
    entries: int, seed: int, multiplier: float
) -> None:
    """Values that differ by exactly the sensitivity, each pair of entries on the two sides of a half."""
    rng = np.random.default_rng(seed)
    sensitivity = float(rng.uniform(0.5, 2.0))
    g = spacing(sensitivity, multiplier, entries)
    left = (np.floor(rng.uniform(-1e3, 1e3, entries) * 2.0 ** rng.integers(0, 45)) + 0.5) * g
    step = rng.choice([-1.0, 1.0], entries) * sensitivity / math.sqrt(entries) * (1 - 1e-12)
    right = left + step
    actual = sum((Fraction(float(b)) - Fraction(float(a))) ** 2 for a, b in zip(left, right, strict=True))
    if actual > Fraction(sensitivity) ** 2:  # the float64 sum moved it further
        return
    moved = sum(int(b - a) ** 2 for a, b in zip(places(left, g), places(right, g), strict=True))
    bound = Fraction(sensitivity) / Fraction(g) + root_above(entries) * (1 + Fraction(1, 2**7))
    assert moved <= bound**2


def test_rounding_does_move_neighbours_further_than_their_distance() -> None:
    """So the spacing must make room for it: without, the worst pair would be under-priced."""
    entries, multiplier = 64, 2.0
    g = spacing(1.0, multiplier, entries)
    # s / g is an even number of half spacings for each entry, and a little more carries it over the next half.
    steps = math.floor(1.0 / math.sqrt(entries) / g)
    left = np.full(entries, (0.5 - 1e-3) * g)
    right = left + (steps - 1 + 2e-3) * g
    moved = math.sqrt(float(np.sum((places(right, g) - places(left, g)) ** 2.0)))
    distance = math.sqrt(entries) * (steps - 1 + 2e-3)
    assert moved > distance + 0.99 * math.sqrt(entries) * (1 - 2e-3)
    assert moved <= 1.0 / g + math.sqrt(entries) * (1 + 2.0**-7)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("multiplier", [0.02, 1.0, 41.3])
@pytest.mark.parametrize("magnitude", [0.0, 1.0, 1e9])
def test_no_output_is_off_the_lattice(kind: Any, multiplier: float, magnitude: float) -> None:
    """Whatever the value, a release is an integer times the spacing, rounded once."""
    rng = np.random.default_rng(3)
    value, sensitivity = magnitude * rng.normal(size=500), 0.013
    mechanism = kind(multiplier)
    g = spacing(sensitivity, multiplier, 500, mechanism.norm)
    released = mechanism.release(NoiseSource(), value, sensitivity)
    with jax.enable_x64(True):
        noise = mechanism.draw(NoiseSource(), (500,))
        assert noise.dtype == np.int64
        traced = np.asarray(jax.jit(mechanism.combine)(value, sensitivity, noise))
    for outputs in (released, traced):
        assert np.array_equal(np.rint(outputs / g) * g, outputs)


def test_float_noise_is_off_every_lattice() -> None:
    g = spacing(0.013, 1.0, 500)
    released = Gaussian(1.0).release(NoiseSource(exact=False), np.ones(500), 0.013)
    assert np.mean(np.rint(released / g) * g == released) < 0.5


@pytest.mark.parametrize(("kind", "law"), [(Gaussian, stats.norm), (Laplace, stats.laplace)])
@pytest.mark.parametrize("multiplier", [1e-5, 1e-3, 0.9, 5.0, 1e5])
def test_noise_of_every_size_has_its_scale(kind: Any, law: Any, multiplier: float) -> None:
    released = kind(multiplier).release(NoiseSource(seed=12), np.zeros((4000, 2)), 0.3)
    assert coordinate_p_values(released / (0.3 * multiplier), law.cdf).min() > LEVEL


def test_the_release_is_a_function_of_the_integer_alone() -> None:
    """Two values and noises with one sum release the same bits, near and far."""
    g = np.float64(spacing(1.0, 1.0, 3))
    values = np.array([0.7, 2.0**25, -3.0])
    sums = np.array([12345, 2**61 + 12345, -77], np.int64)
    for shifts in (0, 1, 2**40):
        moved = values + shifts * float(g)
        assert np.array_equal(on_lattice(moved, g, sums - places(moved, g)), sums.astype(np.float64) * g)


@pytest.mark.parametrize("fused", [1.0 / 3.0, 1.0 / 60_000.0])
def test_a_compiler_that_fuses_products_moves_no_place(fused: float) -> None:
    """The mean of a compiled loop is a sum times a constant, which may be fused into what follows."""
    rng = np.random.default_rng(5)
    sums = rng.normal(size=4000) * 2.0 ** rng.integers(-10, 50, 4000)
    g = spacing(0.3 * fused, 1.3, 4000)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(lambda total: places_of(total * fused, jnp.asarray(g)))(jnp.asarray(sums)))
    for total, place in zip(sums, found, strict=True):
        exact = Fraction(float(total)) * Fraction(fused) / Fraction(g)
        doubt = HALF + abs(exact) * Fraction(2, 2**53)  # the product rounded, or not
        assert abs(exact) > 2**62 or abs(int(place) - exact) <= doubt


def finer_digits(source: NoiseSource, value: float, releases: int) -> tuple[int, int]:
    """Of outputs in [1/4, 1/2), alike spaced: how many have, or not, finer digits than float64 sums with 1."""
    outputs = Gaussian(1.0).release(source, np.full(releases, value), 1.0)
    near = outputs[(outputs >= 0.25) & (outputs < 0.5)]
    finer = int(np.count_nonzero((near - 1.0) + 1.0 != near))
    return finer, len(near) - finer


def attack_p_value(source: NoiseSource, releases: int) -> float:
    """Whether the low bits tell the value 0 from the value 1 among outputs of about the same size."""
    table = np.array([finer_digits(source, value, releases) for value in (0.0, 1.0)])
    return float(stats.fisher_exact(table).pvalue)


def test_low_bits_betray_float_noise_and_not_integers() -> None:
    """Mironov 2012, section 3: next to 0 there are finer digits than any float64 sum with 1 can have."""
    floats = NoiseSource(seed=1, exact=False)
    assert finer_digits(floats, 1.0, 2000)[0] == 0 < finer_digits(floats, 0.0, 2000)[0]
    assert attack_p_value(floats, 2000) < 1e-10
    assert attack_p_value(NoiseSource(seed=1), 2000) > LEVEL


@pytest.mark.audit
def test_low_bits_betray_nothing_in_many_releases(evidence: Any) -> None:
    """Also every bit of an output, at equal size, is as often set for the one value as for the other."""
    assert attack_p_value(NoiseSource(seed=2), 3_000_000) > LEVEL
    evidence("noise", "low bits of releases, by the attack of Mironov 2012", tried=6_000_000, of="draws")
    source, bits = NoiseSource(seed=3), list[NDArray[np.int64]]()
    for value in (0.0, 1.0):
        outputs = Gaussian(1.0).release(source, np.full(3_000_000, value), 1.0)
        bits.append(outputs[np.abs(outputs - 0.5) < 0.001].view(np.int64))
    for position in range(30):
        ones = [int(np.count_nonzero(found >> position & 1)) for found in bits]
        table = [[one, len(found) - one] for one, found in zip(ones, bits, strict=True)]
        assert not 0 < stats.fisher_exact(table).pvalue < LEVEL / 30


@pytest.mark.parametrize("multiplier", [1e-6, 0.3, 2.0, 1e6])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9])
def test_a_gaussian_test_is_not_passed_more_often_than_it_says(multiplier: float, delta: float) -> None:
    """Just below `least`, on the lattice, with the noise as it is there: P(release >= threshold) <= delta."""
    sensitivity, least = 0.7, 3.0
    test = GaussianTest(multiplier, bad_event_delta=delta)
    g, t = spacing(sensitivity, multiplier, 1), noise_exponent(multiplier)
    highest = int(places(np.nextafter(least, 0.0), g))
    needed = math.ceil(Fraction(test.threshold(least, sensitivity)) * (1 - Fraction(1, 2**50)) / Fraction(g))
    assert stats.norm.sf((needed - highest - 0.5) / 2.0**t) <= delta
    plain = least + multiplier * sensitivity * stats.norm.isf(delta)
    assert test.threshold(least, sensitivity) == pytest.approx(plain, rel=1e-7)


def test_auto_takes_no_noise_that_is_not_on_a_lattice() -> None:
    """Inside an objective: in the list of solvers, and not where it chooses. At the steps of a pass: in neither."""
    source = inspect.getsource(registry)
    assert source.count("ObjectivePerturbation") == 1  # the list
    assert "SnowballSGD" not in source
    assert {"objective-perturbation", "snowball-sgd"} < set(registry.NAMES)
