"""The shrinkage of predictions: the noise that it goes by is that of the descent, and it takes out what is noise."""

import math

import numpy as np
import pytest

from privopt.planning.averaging import mixing_ratios
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.shrinkage import NoisePath, clipped_curvature, newton_end, shrinkage
from privopt.precision import double_precision
from privopt.problems import losses

D = 4
MOMENT = np.diag([0.9, 0.2, 0.01, 1.0])
ROWS = RowSpectrum(
    moment=MOMENT, eigenvalues=np.diag(MOMENT).copy(), axes=np.eye(D), floor=0.05, constant=D - 1
)


def path(*, steps=7, newton=0.0, deviation=0.1, clip=1.0, ridge=0.01):
    return NoisePath(
        step_size=1.1,
        momentum=0.5,
        clip=clip,
        deviations=np.full(steps, deviation),
        mixing=mixing_ratios("settled", steps),
        newton=newton,
        curvature=1.0,
        ridge=ridge,
        rows=ROWS,
    )


def descended(asked, slopes, noise):
    """The result of a descent of gradients `slopes * v` with this noise, (T, runs, d), from 0."""
    last = at = average = np.zeros(noise.shape[1:])
    points, gradients = [], []
    for ratio, one in zip(asked.mixing, noise, strict=True):
        gradient = slopes * at + one
        points.append(at)
        gradients.append(gradient)
        moved = at - asked.step_size * gradient
        at, last = moved + asked.momentum * (moved - last), moved
        average = average + ratio * (moved - average)
    if not asked.newton:
        return average
    ends = [
        newton_end(
            ROWS,
            point,
            gradient,
            start=np.zeros(D),
            curvature=1.0,
            ridge=asked.ridge,
            noise=float(asked.deviations[0]) / math.sqrt(len(noise)),
        )
        for point, gradient in zip(np.mean(points, axis=0), np.mean(gradients, axis=0), strict=True)
    ]
    return (1.0 - asked.newton) * average + asked.newton * np.stack(ends)


@pytest.mark.parametrize("newton", [0.0, 0.5])
def test_the_variance_is_that_of_many_descents(newton):
    asked, curvature = path(newton=newton), 0.6
    slopes = curvature * ROWS.damping + ROWS.ridge(asked.ridge)
    noise = 0.1 * np.random.default_rng(0).standard_normal((7, 4_000, D))
    found = np.var(descended(asked, slopes, noise), axis=0)
    np.testing.assert_allclose(asked.variance(curvature), found, rtol=0.1)


def test_what_is_all_noise_shrinks_to_a_half_and_what_is_none_stays():
    assert shrinkage(path(deviation=10.0), (0.0, 0.1), losses.squared) == 0.5
    assert shrinkage(path(deviation=1e-9), (0.0, 0.1), losses.squared) == pytest.approx(1.0)
    middle = shrinkage(path(deviation=0.05), (0.0, 0.2), losses.squared)
    assert 0.55 < middle < 0.98
    assert shrinkage(path(deviation=0.05), (3.0, 0.2), losses.squared) == middle  # the shift is no spread
    assert shrinkage(path(deviation=0.05), (0.0, 0.2), losses.poisson(2.0, 5.0)) == 1.0


@pytest.mark.parametrize("clip", [math.inf, 0.3])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (-2.0, 0.5)])
def test_the_clipped_curvature_is_that_of_normal_predictions(clip, shift, scale):
    drawn = shift + scale * np.random.default_rng(1).standard_normal(400_000)
    steep = 1.0 / (1.0 + np.exp(-np.abs(drawn)))
    expected = np.mean(steep * (1.0 - steep) * np.minimum(1.0, clip / steep))
    assert clipped_curvature(losses.logistic, shift, scale, clip) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("loss", [losses.quantile(0.5, 0.1), losses.quantile(0.9, 0.05)])
def test_the_curvature_of_numbers_is_that_of_normal_residuals(loss):
    drawn = 0.3 * np.random.default_rng(2).standard_normal(400_000)
    at = 0.3 * 1.2815515655446004 if getattr(loss, "level", 0.5) == 0.9 else 0.0
    with double_precision():
        expected = float(np.mean(np.asarray(loss.second_derivative(at + 0.0 * drawn, drawn))))
    assert clipped_curvature(loss, 0.0, 1.0, math.inf) == pytest.approx(expected, rel=0.08)
